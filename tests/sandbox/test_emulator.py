"""The emulator's wire and its walks: the service model held against it, faults, shortages.

The rest of the service's behavior is shown by the provider's contract and by tests/clusters.
"""

import json
import urllib.request
from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from hpctl.sandbox.emulator import HyperPodEmulator, NullMachineBackend
from tests.sagemaker.contract.beds import Client, cluster, counts, group

PLAN = "arn:aws:sagemaker:us-west-2:000000000000:training-plan/none"
Make = Callable[..., Client]


def until(api: Client, done: Callable[[], bool]) -> None:
    assert api.emulator.wait_until(done, 60), "it never came to pass"


def created(api: Client, *groups: dict[str, Any]) -> None:
    api.emulator.create(cluster("demo", **({"InstanceGroups": list(groups)} if groups else {})))
    api.emulator.wait_until_cluster_in_service("demo", 60)


def update(api: Client, *groups: dict[str, Any], **more) -> dict[str, Any]:
    given = {"InstanceGroups": list(groups)} if groups else {}
    return api("UpdateCluster", ClusterName="demo", **given, **more)


def nodes(api: Client, name: str = "workers", **more) -> list[dict[str, Any]]:
    body = api("ListClusterNodes", ClusterName="demo", InstanceGroupNameContains=name, **more)
    found: list[dict[str, Any]] = body["ClusterNodeSummaries"]
    return found


def shown(api: Client) -> dict[str, Any]:
    return api("DescribeCluster", ClusterName="demo")


def group_of(api: Client, name: str = "workers") -> dict[str, Any]:
    return next(g for g in shown(api)["InstanceGroups"] if g["InstanceGroupName"] == name)


def code(answer: dict[str, Any]) -> str:
    return str(answer.get("__type", ""))


@pytest.fixture
def machines() -> NullMachineBackend:
    return NullMachineBackend()


@pytest.fixture
def make(machines: NullMachineBackend):
    made: list[HyperPodEmulator] = []

    def one(**more) -> Client:
        made.append(HyperPodEmulator(machines, **{"boot_time_s": 0.02, **more}))
        made[-1].start()
        return Client(made[-1])

    yield one
    for emulator in made:
        emulator.stop()


@pytest.fixture
def demo(make: Make):
    api = make()
    created(api)
    yield api
    assert api.emulator.response_errors == []


@pytest.fixture
def emulator(make: Make) -> HyperPodEmulator:
    return make().emulator


def client(emulator: HyperPodEmulator):
    return boto3.client(
        "sagemaker", endpoint_url=emulator.endpoint_url, region_name="us-west-2",
        aws_access_key_id="sandbox", aws_secret_access_key="sandbox",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=10),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ({"ClusterStatus": "InService"}, "Missing required parameter"),
        ({"ClusterStatus": "Splendid"}, "enum value set"),
        ({"ClusterArn": "arn:aws:s3:::bucket"}, "regular expression"),
        ({"Colour": "blue"}, "Unknown parameter"),
        ({"InstanceGroups": [{"TargetCount": 9999}]}, "less than or equal to 6758"),
    ],
)
def test_an_answer_that_drifts_from_the_model_is_caught(emulator, answer, found):
    emulator.handlers["DescribeCluster"] = lambda _request: answer
    with pytest.raises(ClientError, match="emulator bug") as caught:
        client(emulator).describe_cluster(ClusterName="demo")
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 500
    assert any(found in line for line in emulator.response_errors)


def test_operations_that_are_not_offered_say_so(emulator):
    with pytest.raises(ClientError, match="does not offer") as caught:
        client(emulator).list_training_jobs()
    assert caught.value.response["Error"]["Code"] == "UnknownOperationException"
    assert "no operation 'Dance'" in str(emulator.handle("Dance", {}).body)


def test_another_process_reads_the_calls(emulator):
    emulator.faults.add("throttle", calls=1)
    with pytest.raises(ClientError, match="Rate exceeded"):
        client(emulator).list_clusters()
    client(emulator).list_clusters()
    for path, errors in (("", ["ThrottlingException", ""]), ("/DescribeCluster", [])):
        with urllib.request.urlopen(f"{emulator.endpoint_url}/_emulator/calls{path}") as answer:
            assert [call["error"] for call in json.load(answer)["calls"]] == errors


def test_a_cluster_can_be_deleted_under_a_stuck_replacement(demo, machines):
    demo.emulator.faults.add("stuck")
    demo("BatchReplaceClusterNodes", ClusterName="demo", NodeIds=[nodes(demo)[0]["InstanceId"]])
    demo("DeleteCluster", ClusterName="demo")
    until(demo, lambda: not demo.emulator.world.clusters)
    booted = [i for verb, i in machines.done if verb == "boot"]
    destroyed = {i for verb, i in machines.done if verb == "destroy"}
    assert set(booted) <= destroyed, "no machine may outlive its cluster"


def test_a_shortage_leaves_continuous_nodes_pending_until_it_ends(make):
    api = make(retry_time_s=0.05)
    api.emulator.capacity.set({"groups": {"demo/workers": 3}})
    api.emulator.create(cluster("demo"))
    until(api, lambda: (counts(api)["workers"], group_of(api)["Status"]) == ((3, 4), "Degraded"))

    def waiting() -> list[dict[str, Any]]:
        return [n["InstanceStatus"] for n in nodes(api, IncludeNodeLogicalIds=True)
                if not n["InstanceId"]]  # fmt: skip

    until(api, lambda: bool([w for w in waiting() if "Insufficient" in w.get("Message", "")]))
    assert [w["Status"] for w in waiting()] == ["Pending"]
    api.emulator.capacity.set({"groups": {"demo/workers": None}})
    until(api, lambda: counts(api)["workers"] == (4, 4))


def test_a_spot_instance_is_interrupted_after_a_notice(make):
    api = make(retry_time_s=0.3)
    workers = group("workers", "Compute", 1, CapacityRequirements={"Spot": {}})
    created(api, group("controller", "Controller", 1), workers)
    [head], [old] = nodes(api, "controller"), nodes(api, IncludeNodeLogicalIds=True)
    assert not api.emulator.interrupt(head["InstanceId"])
    assert api.emulator.interrupt(old["InstanceId"], 0.05)
    warned = api("ListClusterEvents", ClusterName="demo")["Events"][0]
    assert (warned["EventLevel"], warned["InstanceId"]) == ("Warn", old["InstanceId"])
    until(api, lambda: not nodes(api))
    until(api, lambda: [n["InstanceStatus"]["Status"] for n in nodes(api)] == ["Running"])
    [new] = nodes(api, IncludeNodeLogicalIds=True)
    assert new["InstanceId"] != old["InstanceId"]
    assert new["NodeLogicalId"] == old["NodeLogicalId"]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        *(
            ({"InstanceGroups": [{**group("workers", "Compute", 4), **change}]}, message)
            for change, message in (
                ({"InstanceType": "ml.p5e.48xlarge"}, "InstanceType of an existing instance group"),
                ({"SlurmConfig": {"NodeType": "Login"}}, "NodeType cannot be changed"),
                ({"ImageReleaseVersion": "9.9.9"}, "no HyperPod AMI release 9.9.9"),
                ({"CapacityRequirements": {"Spot": {}, "OnDemand": {}}}, "are Spot or OnDemand"),
            )
        ),
        ({"InstanceGroupsToDelete": ["nope"]}, "ResourceNotFound"),
        ({"InstanceGroupsToDelete": ["controller"]}, "ValidationException"),
        ({"InstanceGroups": [group("controller", "Controller", 2)]}, "ValidationException"),
        ({"Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Merge"}}}, "ValidationException"),
        ({"InstanceGroups": [group("w", "Compute", 1, TrainingPlanArn=PLAN)]}, "ResourceNotFound"),
    ],
)
def test_what_cannot_change_is_refused_and_nothing_is_done(demo, request_, error):
    answer = update(demo, **{"NodeRecovery": "Automatic", **request_})
    assert code(answer)
    assert error in str(answer)
    assert demo("DescribeCluster", ClusterName="demo")["NodeRecovery"] == "None"
    assert counts(demo) == {"controller": (1, 1), "workers": (4, 4)}


def test_a_login_group_that_fails_keeps_a_cluster_from_service(make, machines):
    """The guide, sagemaker-hyperpod-scaling-slurm, "Priority-based provisioning":
    InService "when one controller node is up and one login node is up (if a login instance group
    is specified)".
    """
    api = make(retry_time_s=0.05)
    machines.fail_boot = {"login-1"}
    spec = cluster("demo")
    spec["InstanceGroups"].append(group("login", "Login", 1))
    api("CreateCluster", **spec)
    until(api, lambda: counts(api)["workers"] == (4, 4))
    until(api, lambda: len([v for v, i in machines.done if v == "boot"]) > 8)
    assert shown(api)["ClusterStatus"] == "Creating"
    machines.fail_boot = set()
    until(api, lambda: shown(api)["ClusterStatus"] == "InService")

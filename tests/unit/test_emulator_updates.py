"""UpdateCluster and what grows groups: what is taken, what is refused, what comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hpctl.sandbox.emulator import Emulator, NullMachines
from hpctl.sandbox.emulator.launch import Timings
from hpctl.sandbox.machines import Machine
from tests.contract.provider.beds import Client, cluster, counts, group

LIFECYCLE = {"SourceS3Uri": "s3://sagemaker-x/scripts", "OnCreate": "on_create.sh"}
PLAN = "arn:aws:sagemaker:us-west-2:000000000000:training-plan/none"


@pytest.fixture
def machines() -> NullMachines:
    return NullMachines()


@pytest.fixture
def api(machines: NullMachines) -> Iterator[Client]:
    emulator = Emulator(machines, boot_time_s=0.0)
    emulator.start()
    yield Client(emulator)
    emulator.stop()
    assert emulator.response_errors == []


def until(api: Client, done: Callable[[], bool]) -> None:
    assert api.emulator.wait_until(done, 10), "it never came to pass"


def created(api: Client, *, continuous: bool = True, **more: Any) -> None:
    spec = cluster("demo", **more)
    if not continuous:
        del spec["NodeProvisioningMode"]
    api.emulator.create(spec)
    api.emulator.wait_in_service("demo", 10)


def update(api: Client, *groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = {"InstanceGroups": list(groups)} if groups else {}
    return api("UpdateCluster", ClusterName="demo", **given, **more)


def described(api: Client, name: str = "workers") -> dict[str, Any]:
    groups = api("DescribeCluster", ClusterName="demo")["InstanceGroups"]
    return next(g for g in groups if g["InstanceGroupName"] == name)


def code(answer: dict[str, Any]) -> str:
    return str(answer.get("__type", ""))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"InstanceType": "ml.p5e.48xlarge"}, "InstanceType of an existing instance group"),
        ({"ThreadsPerCore": 2}, "ThreadsPerCore of an existing instance group"),
        (
            {"OverrideVpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}},
            "OverrideVpcConfig of an existing",
        ),
        ({"SlurmConfig": {"NodeType": "Login"}}, "NodeType cannot be changed"),
        ({"ImageReleaseVersion": "9.9.9"}, "no HyperPod AMI release 9.9.9"),
        ({"MinInstanceCount": 5}, "MinInstanceCount exceeds InstanceCount"),
        ({"CapacityRequirements": {"Spot": {}, "OnDemand": {}}}, "are Spot or OnDemand"),
    ],
)
def test_what_cannot_change_is_refused_and_nothing_is_done(
    api: Client, change: dict[str, Any], message: str
) -> None:
    created(api)
    answer = update(api, {**group("workers", "Compute", 4), **change}, NodeRecovery="Automatic")
    assert code(answer) == "ValidationException"
    assert message in answer["message"]
    assert api("DescribeCluster", ClusterName="demo")["NodeRecovery"] == "None"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"InstanceGroupsToDelete": ["nope"]}, "ResourceNotFound"),
        ({"InstanceGroupsToDelete": ["controller"]}, "ValidationException"),
        (
            {
                "InstanceGroups": [group("workers", "Compute", 1)],
                "InstanceGroupsToDelete": ["workers"],
            },
            "ValidationException",
        ),
        ({"InstanceGroups": [group("controller", "Controller", 0)]}, "ValidationException"),
        ({"InstanceGroups": [group("controller", "Controller", 2)]}, "ValidationException"),
        ({"Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Merge"}}}, "ValidationException"),
        (
            {"InstanceGroups": [group("w", "Compute", 1, TrainingPlanArn=PLAN)]},
            "ResourceNotFound",
        ),
    ],
)
def test_the_words_of_each_refusal(api: Client, request_: dict[str, Any], error: str) -> None:
    created(api)
    assert code(update(api, **request_)) == error
    assert counts(api) == {"controller": (1, 1), "workers": (4, 4)}


def test_a_continuous_cluster_stays_in_service_and_scales_twice_at_once(
    api: Client, machines: NullMachines
) -> None:
    gate = threading.Event()
    boot = machines.boot

    def slow(machine: Machine) -> None:
        gate.wait(5)
        boot(machine)

    created(api)
    machines.boot = slow  # type: ignore[method-assign]
    update(api, group("workers", "Compute", 6))
    assert api("DescribeCluster", ClusterName="demo")["ClusterStatus"] == "InService"
    assert counts(api)["workers"] == (4, 6)
    assert described(api)["ActiveOperations"] == {"Scaling": 1}
    assert described(api)["Status"] == "Updating"
    update(api, group("workers", "Compute", 8))
    assert counts(api)["workers"] == (4, 8)
    second, first, _ = api("ListClusterOperations", ClusterName="demo")["ClusterOperationSummaries"]
    assert (second["Status"], first["Status"]) == ("InProgress", "Superseded")
    gate.set()
    until(api, lambda: counts(api)["workers"] == (8, 8))
    until(api, lambda: "ActiveOperations" not in described(api))
    detail = api("DescribeClusterOperation", ClusterName="demo", OperationId=second["OperationId"])
    assert detail["Status"] == "Done"
    assert detail["ScalingDetails"] == [
        {
            "InstanceGroupName": "workers",
            "Status": "Done",
            "Original": {"CurrentCount": 4, "TargetCount": 6},
            "Desired": {"CurrentCount": 4, "TargetCount": 8},
        }
    ]


def test_what_failed_is_tried_again_with_a_fresh_instance(machines: NullMachines) -> None:
    emulator = Emulator(machines, boot_time_s=0.0, retry_time_s=0.05)
    emulator.start()
    api = Client(emulator)
    try:
        machines.fail_boot = {"workers-2"}
        workers = group("workers", "Compute", 2, LifeCycleConfig=LIFECYCLE)
        created(api, InstanceGroups=[group("controller", "Controller", 1), workers])
        until(api, lambda: len([v for v, _ in machines.done if v == "boot"]) >= 5)
        machines.fail_boot = set()
        until(api, lambda: counts(api)["workers"] == (2, 2))
        events = api("ListClusterEvents", ClusterName="demo", SortOrder="Ascending")["Events"]
        said = [
            api("DescribeClusterEvent", ClusterName="demo", EventId=e["EventId"])["EventDetails"]
            for e in events
            if "lifecycle script execution" in e["Description"]
        ]
        states = [e["EventDetails"]["EventMetadata"]["Instance"]["LcsExecutionState"] for e in said]
        assert {"Started", "Failed", "Succeeded"} == set(states)
        failed = [e for e in said if e["EventLevel"] == "Error"]
        assert len({e["InstanceId"] for e in failed}) == len(failed) >= 2
        why = failed[0]["EventDetails"]["EventMetadata"]["Instance"]["FailureMessage"]
        assert "did not run successfully" in why
    finally:
        emulator.stop()
    assert emulator.response_errors == []


def test_a_minimum_missed_is_rolled_back(api: Client) -> None:
    api.emulator.launches.timings = Timings(boot_s=0.0, minimum_s=0.1)
    created(api)
    api.emulator.capacity.set({"types": {"ml.p5.48xlarge": 5}})
    update(api, group("workers", "Compute", 8, MinInstanceCount=7))
    assert described(api)["Status"] == "Updating"
    until(api, lambda: counts(api)["workers"] == (4, 4))
    events = api("ListClusterEvents", ClusterName="demo", ResourceType="InstanceGroup")["Events"]
    missed = next(e for e in events if e["EventLevel"] == "Error")
    told = api("DescribeClusterEvent", ClusterName="demo", EventId=missed["EventId"])
    scaling = told["EventDetails"]["EventDetails"]["EventMetadata"]["InstanceGroupScaling"]
    assert "did not reach its MinInstanceCount of 7" in scaling["FailureMessage"]
    assert (scaling["InstanceCount"], scaling["TargetCount"], scaling["MinCount"]) == (5, 8, 7)

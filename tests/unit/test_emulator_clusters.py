"""Clusters of the emulator: creation, updates, deletion, and what the service refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hpctl.errors import HpctlError
from hpctl.sandbox.emulator import Emulator, NullMachines
from hpctl.sandbox.emulator.launch import Timings
from hpctl.sandbox.machines import Machine
from tests.contract.provider.beds import ROLE, Client, cluster, counts, group


@pytest.fixture
def machines() -> NullMachines:
    return NullMachines()


@pytest.fixture
def api(machines: NullMachines) -> Iterator[Client]:
    emulator = Emulator(machines, boot_time_s=0.02)
    emulator.start()
    yield Client(emulator)
    emulator.stop()
    assert emulator.response_errors == []


def created(api: Client, **more: Any) -> str:
    spec = cluster("demo", **more)
    api.emulator.create(spec)
    api.emulator.wait_in_service("demo", 10)
    return "demo"


def without(spec: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {k: v for k, v in spec.items() if k not in keys}


def test_a_cluster_is_created_controller_first(api: Client, machines: NullMachines) -> None:
    arn = api("CreateCluster", **cluster("demo"))["ClusterArn"]
    api.emulator.wait_in_service("demo", 10)
    by_arn = api("DescribeCluster", ClusterName=arn)
    assert by_arn["ClusterStatus"] == "InService"
    assert by_arn["NodeRecovery"] == "None"
    assert counts(api) == {"controller": (1, 1), "workers": (4, 4)}
    first = machines.done[0][1]
    roles = {m.instance_id: m.role for m in api.emulator.machines_of("demo")}
    assert roles[first] == "controller"
    assert sorted(roles.values()) == ["compute"] * 4 + ["controller"]


def test_a_machine_is_told_all_it_needs(api: Client) -> None:
    lifecycle = {"SourceS3Uri": "s3://sagemaker-x/scripts", "OnCreate": "on_create.sh"}
    groups = [
        group("ctl", "Controller", 1, LifeCycleConfig=lifecycle),
        group("h100", "Compute", 1),
    ]
    api("CreateCluster", ClusterName="demo", InstanceGroups=groups)
    api.emulator.wait_in_service("demo", 10)
    ctl, worker = api.emulator.machines_of("demo")
    assert isinstance(ctl, Machine)
    assert (ctl.name, ctl.group, ctl.instance_type) == ("ctl-1", "ctl", "ml.m5.xlarge")
    assert (ctl.address, ctl.node) == ("127.0.1.1", "ip-127-0-1-1")
    assert (ctl.source_s3_uri, ctl.on_create) == ("s3://sagemaker-x/scripts", "on_create.sh")
    assert (worker.role, worker.partition, worker.on_create) == ("compute", "dev", "")


def test_a_lifecycle_failure_fails_the_cluster(api: Client, machines: NullMachines) -> None:
    machines.fail_boot = {"workers-2"}
    api("CreateCluster", **without(cluster("demo"), "NodeProvisioningMode"))
    with pytest.raises(HpctlError, match=r"is Failed after .* on_create.sh"):
        api.emulator.wait_in_service("demo", 10)
    told = api("DescribeCluster", ClusterName="demo")
    assert told["ClusterStatus"] == "Failed"
    assert "Lifecycle scripts did not run successfully" in told["FailureMessage"]


def test_continuous_provisioning_takes_a_failed_worker(api: Client, machines: NullMachines) -> None:
    machines.fail_boot = {"workers-2"}
    created(api)
    assert counts(api)["workers"] == (3, 4)
    nodes = api("ListClusterNodes", ClusterName="demo")["ClusterNodeSummaries"]
    failed = [n["InstanceStatus"] for n in nodes if n["InstanceStatus"]["Status"] == "Failure"]
    assert len(failed) == 1
    groups = api("DescribeCluster", ClusterName="demo")["InstanceGroups"]
    assert [g["Status"] for g in groups] == ["InService", "Degraded"]
    assert "Please see CloudWatch logs" in failed[0]["Message"]
    assert "exited" not in failed[0]["Message"], "the service does not say why"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"InstanceGroups": []}, "validation error"),
        ({"ClusterName": "-bad-"}, "regular expression"),
        ({"NodeRecovery": "Sometimes"}, "enum value set"),
        ({"Surprise": 1}, "Unknown parameter"),
        ({"InstanceGroups": [group("a", "Compute", 1)]}, "with Controller node type"),
        ({"InstanceGroups": [group("a", "Controller", 2)]}, "several controllers"),
        (
            {"InstanceGroups": [group("a", "Controller", 1), group("a", "Compute", 1)]},
            "must be unique",
        ),
        (
            {
                "InstanceGroups": [
                    group("a", "Controller", 1, SlurmConfig={"NodeType": "Compute"}),
                ]
            },
            "PartitionNames is required",
        ),
        (
            {
                "InstanceGroups": [
                    group(
                        "a",
                        "Controller",
                        1,
                        LifeCycleConfig={
                            "SourceS3Uri": "s3://b/p",
                            "OnCreate": "a.sh",
                            "OnInitComplete": "b.sh",
                        },
                    )
                ]
            },
            "mutually exclusive",
        ),
        (
            {
                "InstanceGroups": [
                    {
                        "InstanceGroupName": "a",
                        "InstanceCount": 7000,
                        "ExecutionRole": ROLE,
                        "InstanceType": "ml.p5.48xlarge",
                    }
                ]
            },
            "less than or equal to 6758",
        ),
    ],
)
def test_a_bad_specification_is_refused(api: Client, change: dict[str, Any], message: str) -> None:
    answer = api("CreateCluster", **{**cluster("demo"), **change})
    assert answer["__type"] == "ValidationException"
    assert message in answer["message"]
    assert api("ListClusters") == {"ClusterSummaries": []}


def test_a_name_is_taken_once(api: Client) -> None:
    created(api)
    assert api("CreateCluster", **cluster("demo"))["__type"] == "ResourceInUse"


def test_lists_are_filtered_and_paged(api: Client) -> None:
    for name in ("beta", "alpha", "gamma"):
        api.emulator.create(cluster(name, workers=0))
    api.emulator.wait_in_service("gamma", 10)
    names = [
        c["ClusterName"]
        for c in api("ListClusters", SortBy="NAME", NameContains="a")["ClusterSummaries"]
    ]
    assert names == ["alpha", "beta", "gamma"]
    page = api("ListClusters", SortBy="NAME", SortOrder="Descending", MaxResults=2)
    assert [c["ClusterName"] for c in page["ClusterSummaries"]] == ["gamma", "beta"]
    rest = api(
        "ListClusters",
        SortBy="NAME",
        SortOrder="Descending",
        MaxResults=2,
        NextToken=page["NextToken"],
    )
    assert [c["ClusterName"] for c in rest["ClusterSummaries"]] == ["alpha"]
    assert "NextToken" not in rest
    assert api("ListClusters", NextToken="made-up")["__type"] == "ValidationException"


def test_an_update_grows_shrinks_and_deletes_groups(api: Client) -> None:
    created(api)
    before = {m.instance_id for m in api.emulator.machines_of("demo")}
    api("UpdateCluster", ClusterName="demo", InstanceGroups=[group("workers", "Compute", 6)])
    api.emulator.wait_in_service("demo", 10)
    assert counts(api)["workers"] == (6, 6)
    assert before < {m.instance_id for m in api.emulator.machines_of("demo")}
    api("UpdateCluster", ClusterName="demo", InstanceGroups=[group("workers", "Compute", 1)])
    api.emulator.wait_in_service("demo", 10)
    api.emulator.wait_until(lambda: counts(api)["workers"] == (1, 1), 10)
    assert counts(api)["workers"] == (1, 1)
    api("UpdateCluster", ClusterName="demo", InstanceGroupsToDelete=["workers"])
    api.emulator.wait_until(lambda: list(counts(api)) == ["controller"], 10)
    assert list(counts(api)) == ["controller"]


def test_an_update_may_not_touch_the_controller(api: Client) -> None:
    created(api)
    refused = api("UpdateCluster", ClusterName="demo", InstanceGroupsToDelete=["controller"])
    assert refused["__type"] == "ValidationException"
    other = group("workers", "Login", 1)
    assert (
        "NodeType cannot be changed"
        in api("UpdateCluster", ClusterName="demo", InstanceGroups=[other])["message"]
    )


def test_a_failed_growth_is_rolled_back(api: Client, machines: NullMachines) -> None:
    spec = without(cluster("demo"), "NodeProvisioningMode")
    api.emulator.create(spec)
    api.emulator.wait_in_service("demo", 10)
    machines.fail_boot = {"workers-5"}
    api("UpdateCluster", ClusterName="demo", InstanceGroups=[group("workers", "Compute", 6)])
    api.emulator.wait_in_service("demo", 10)
    assert counts(api)["workers"] == (4, 4)
    assert "Lifecycle" in api("DescribeCluster", ClusterName="demo")["FailureMessage"]


def test_node_recovery_is_switched_by_an_update(api: Client) -> None:
    created(api)
    api("UpdateCluster", ClusterName="demo", NodeRecovery="Automatic")
    assert api("DescribeCluster", ClusterName="demo")["NodeRecovery"] == "Automatic"


def test_a_deleted_cluster_takes_its_machines_along(api: Client, machines: NullMachines) -> None:
    created(api)
    mine = api.emulator.machines_of("demo")
    api("DeleteCluster", ClusterName="demo")
    api.emulator.wait_until(lambda: not api.emulator.world.clusters, 10)
    assert not any(machines.alive(m) for m in mine)
    assert api("DescribeCluster", ClusterName="demo")["__type"] == "ResourceNotFound"


def test_a_cluster_in_the_making_is_left_alone(api: Client, machines: NullMachines) -> None:
    gate = threading.Event()
    boot = machines.boot

    def slow(machine: Machine) -> None:
        gate.wait(5)
        boot(machine)

    machines.boot = slow  # type: ignore[method-assign]
    api("CreateCluster", **cluster("demo"))
    node = api("ListClusterNodes", ClusterName="demo")["ClusterNodeSummaries"][0]
    assert node["InstanceStatus"] == {"Status": "Pending"}
    assert api("DeleteCluster", ClusterName="demo")["__type"] == "ConflictException"
    assert api("UpdateCluster", ClusterName="demo")["__type"] == "ConflictException"
    for batch in ("BatchReplaceClusterNodes", "BatchRebootClusterNodes"):
        answer = api(batch, ClusterName="demo", NodeIds=[node["InstanceId"]])
        assert answer["__type"] == "ValidationException"
        assert "must be InService" in answer["message"]
    gate.set()
    api.emulator.wait_in_service("demo", 10)


def test_a_cluster_can_be_deleted_under_a_stuck_replacement(
    api: Client, machines: NullMachines
) -> None:
    created(api)
    victim = api.emulator.machines_of("demo")[1]
    api.emulator.faults.add("stuck")
    api("BatchReplaceClusterNodes", ClusterName="demo", NodeIds=[victim.instance_id])
    api("DeleteCluster", ClusterName="demo")
    assert api.emulator.wait_until(lambda: not api.emulator.world.clusters, 10)
    booted = [i for verb, i in machines.done if verb == "boot"]
    destroyed = {i for verb, i in machines.done if verb == "destroy"}
    assert set(booted) <= destroyed, "no machine may outlive its cluster"


def test_a_group_that_shrinks_twice_loses_each_node_once(
    api: Client, machines: NullMachines
) -> None:
    api.emulator.launches.timings = Timings(shutdown_s=0.1)
    created(api)
    for count in (3, 1):
        shrunk = group("workers", "Compute", count)
        api("UpdateCluster", ClusterName="demo", InstanceGroups=[shrunk])
    assert api.emulator.wait_until(lambda: len(api.emulator.machines_of("demo")) == 2, 10)
    destroyed = [i for verb, i in machines.done if verb == "destroy"]
    assert len(destroyed) == len(set(destroyed)) == 3

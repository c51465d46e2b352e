"""Clusters of the emulator: creation, updates, deletion, and what the service refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hpctl.errors import HpctlError
from hpctl.sandbox.emulator import Emulator, NullMachines
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


def test_a_lifecycle_failure_fails_the_cluster(api: Client, machines: NullMachines) -> None:
    machines.fail_boot = {"workers-2"}
    api("CreateCluster", **without(cluster("demo"), "NodeProvisioningMode"))
    with pytest.raises(HpctlError, match=r"is Failed after .* on_create.sh"):
        api.emulator.wait_in_service("demo", 10)
    told = api("DescribeCluster", ClusterName="demo")
    assert told["ClusterStatus"] == "Failed"
    assert "Lifecycle scripts did not run successfully" in told["FailureMessage"]


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


def test_a_failed_growth_is_rolled_back(api: Client, machines: NullMachines) -> None:
    spec = without(cluster("demo"), "NodeProvisioningMode")
    api.emulator.create(spec)
    api.emulator.wait_in_service("demo", 10)
    machines.fail_boot = {"workers-5"}
    api("UpdateCluster", ClusterName="demo", InstanceGroups=[group("workers", "Compute", 6)])
    api.emulator.wait_in_service("demo", 10)
    assert counts(api)["workers"] == (4, 4)
    assert "Lifecycle" in api("DescribeCluster", ClusterName="demo")["FailureMessage"]


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

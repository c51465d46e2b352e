"""Software updates, deep health checks, tags, training plans, capacity and quotas; sessions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hpctl.sandbox.emulator import Emulator, NullMachines
from tests.contract.provider.beds import Client, cluster, group
from tests.unit.emulator_calls import code, described, nodes, settled, statuses, until

CHECKS = [{"InstanceGroupName": "workers", "DeepHealthChecks": ["InstanceStress"]}]


@pytest.fixture
def machines() -> NullMachines:
    return NullMachines()


@pytest.fixture
def api(machines: NullMachines) -> Iterator[Client]:
    emulator = Emulator(machines, boot_time_s=0.0, health_check_time_s=0.1)
    emulator.start()
    yield Client(emulator)
    emulator.stop()
    assert emulator.response_errors == []


@pytest.fixture
def demo(api: Client) -> Client:
    api.emulator.create(cluster("demo"))
    api.emulator.wait_in_service("demo", 10)
    return api


# --- software ---------------------------------------------------------------------------------


def test_software_is_updated_batch_by_batch_with_the_same_instances(
    demo: Client, machines: NullMachines
) -> None:
    before = [n["InstanceId"] for n in nodes(demo)]
    demo.emulator.publish("1.1.0")
    assert described(demo)["ImageVersionStatus"] == "UpdateAvailable"
    machines.done.clear()
    policy = {"MaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 25}}
    demo(
        "UpdateClusterSoftware",
        ClusterName="demo",
        InstanceGroups=[{"InstanceGroupName": "workers"}],
        DeploymentConfig={"RollingUpdatePolicy": policy, "WaitIntervalInSeconds": 0},
    )
    until(demo, lambda: described(demo).get("SoftwareUpdateStatus") == "Succeeded")
    settled(demo)
    assert [verb for verb, _ in machines.done] == ["destroy", "boot"] * 4, "one at a time"
    assert [n["InstanceId"] for n in nodes(demo)] == before
    assert {n["CurrentImageReleaseVersion"] for n in nodes(demo)} == {"1.1.0"}
    assert all(n["LastSoftwareUpdateTime"] for n in nodes(demo))
    assert described(demo)["ImageVersionStatus"] == "UpToDate"
    assert described(demo, "controller")["CurrentImageReleaseVersion"] == "1.0.0"


def test_software_that_does_not_come_up_is_rolled_back(
    demo: Client, machines: NullMachines
) -> None:
    demo.emulator.publish("1.1.0")
    boot = machines.boot
    failing = iter([True])

    def fails_once(machine: Any) -> None:
        machines.fail_boot = {machine.name} if next(failing, False) else set()
        boot(machine)

    machines.boot = fails_once  # type: ignore[method-assign]
    demo("UpdateClusterSoftware", ClusterName="demo")
    until(demo, lambda: described(demo, "controller").get("SoftwareUpdateStatus") is not None)
    until(
        demo,
        lambda: (
            "RollbackComplete"
            in {described(demo, g).get("SoftwareUpdateStatus") for g in ("controller", "workers")}
        ),
    )
    settled(demo)
    assert statuses(demo) == {"Running"}


# --- deep health checks -----------------------------------------------------------------------


def test_deep_checks_hold_the_nodes_and_are_one_at_a_time(demo: Client) -> None:
    started = demo(
        "StartClusterHealthCheck", ClusterName="demo", DeepHealthCheckConfigurations=CHECKS
    )
    assert started["ClusterArn"]
    assert statuses(demo) == {"DeepHealthCheckInProgress"}
    again = demo(
        "StartClusterHealthCheck", ClusterName="demo", DeepHealthCheckConfigurations=CHECKS
    )
    assert code(again) == "ConflictException"
    assert code(demo("UpdateCluster", ClusterName="demo", NodeRecovery="None")) == (
        "ConflictException"
    )
    [running] = demo("ListClusterOperations", ClusterName="demo", Type="DeepHealthCheck")[
        "ClusterOperationSummaries"
    ]
    assert running["Status"] == "InProgress"
    until(demo, lambda: statuses(demo) == {"Running"})
    detail = demo(
        "DescribeClusterOperation", ClusterName="demo", OperationId=running["OperationId"]
    )
    assert detail["DeepHealthCheckDetails"] == CHECKS


@pytest.mark.parametrize(("remedy", "verb"), [("replace", "destroy"), ("reboot", "reboot")])
def test_a_node_that_fails_its_deep_checks_is_mended(
    demo: Client, machines: NullMachines, remedy: str, verb: str
) -> None:
    victim = nodes(demo)[1]["InstanceId"]
    demo.emulator.faults.add("fail_health_check", nodes=[victim], code=remedy)
    only = [{**CHECKS[0], "InstanceIds": [victim]}]
    demo("StartClusterHealthCheck", ClusterName="demo", DeepHealthCheckConfigurations=only)
    until(demo, lambda: (verb, victim) in machines.done)
    settled(demo)
    errors = [
        e["Description"]
        for e in demo("ListClusterEvents", ClusterName="demo")["Events"]
        if e["EventLevel"] == "Error"
    ]
    assert errors == ["Deep health check failed."]


def test_deep_checks_on_start_come_before_running(api: Client) -> None:
    workers = group("workers", "Compute", 1, OnStartDeepHealthChecks=["InstanceConnectivity"])
    api.emulator.create(
        cluster("demo", InstanceGroups=[group("controller", "Controller", 1), workers])
    )
    until(api, lambda: statuses(api) == {"DeepHealthCheckInProgress"})
    until(api, lambda: statuses(api) == {"Running"})


# --- tags -------------------------------------------------------------------------------------


# --- neighbours -------------------------------------------------------------------------------

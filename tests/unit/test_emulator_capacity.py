"""Instances that are not to be had: shortages, quotas, training plans, types in order, spot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hpctl.sandbox.emulator import Emulator, NullMachines
from tests.contract.provider.beds import Client, cluster, counts, group
from tests.unit.emulator_calls import code, described, nodes, settled, statuses, until


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


@pytest.fixture
def demo(api: Client) -> Client:
    api.emulator.create(cluster("demo"))
    settled(api)
    return api


def test_a_shortage_leaves_continuous_nodes_pending_until_it_ends(machines: NullMachines) -> None:
    emulator = Emulator(machines, boot_time_s=0.0, retry_time_s=0.05)
    emulator.start()
    api = Client(emulator)
    try:
        emulator.capacity.set({"groups": {"demo/workers": 3}})
        emulator.create(cluster("demo"))
        until(api, lambda: counts(api)["workers"] == (3, 4))
        until(api, lambda: described(api)["Status"] == "Degraded")

        def waiting() -> list[dict[str, Any]]:
            body = api("ListClusterNodes", ClusterName="demo", IncludeNodeLogicalIds=True)
            nodes = [n for n in body["ClusterNodeSummaries"] if not n["InstanceId"]]
            return [n["InstanceStatus"] for n in nodes]

        until(api, lambda: [w for w in waiting() if "Insufficient" in w.get("Message", "")])
        assert [w["Status"] for w in waiting()] == ["Pending"]
        emulator.capacity.set({"groups": {"demo/workers": None}})
        until(api, lambda: counts(api)["workers"] == (4, 4))
    finally:
        emulator.stop()


def test_a_flexible_group_takes_its_types_in_order(api: Client) -> None:
    api.emulator.capacity.set({"types": {"ml.p5.48xlarge": 1}})
    flexible = group("workers", "Compute", 3)
    del flexible["InstanceType"]
    flexible["InstanceRequirements"] = {"InstanceTypes": ["ml.p5.48xlarge", "ml.p5e.48xlarge"]}
    api.emulator.create(
        cluster("demo", InstanceGroups=[group("controller", "Controller", 1), flexible])
    )
    settled(api)
    assert sorted(n["InstanceType"] for n in nodes(api)) == [
        "ml.p5.48xlarge",
        "ml.p5e.48xlarge",
        "ml.p5e.48xlarge",
    ]
    told = described(api)
    assert [(d["InstanceType"], d["CurrentCount"]) for d in told["InstanceTypeDetails"]] == [
        ("ml.p5.48xlarge", 1),
        ("ml.p5e.48xlarge", 2),
    ]
    assert told["InstanceRequirements"]["DesiredInstanceTypes"][1] == "ml.p5e.48xlarge"


def test_a_quota_refuses_whatever_goes_beyond_it(demo: Client) -> None:
    demo.emulator.capacity.set({"quotas": {"ml.p5.48xlarge": 5}})
    refusals = [
        demo("CreateCluster", **cluster("other", workers=2)),
        demo("UpdateCluster", ClusterName="demo", InstanceGroups=[group("workers", "Compute", 6)]),
        demo(
            "BatchAddClusterNodes",
            ClusterName="demo",
            NodesToAdd=[{"InstanceGroupName": "workers", "IncrementTargetCountBy": 2}],
        ),
    ]
    assert {code(r) for r in refusals} == {"ResourceLimitExceeded"}
    assert (
        "'ml.p5.48xlarge for cluster usage' is 5 Instances, with current utilization of 4"
        in (refusals[0]["message"])
    )
    assert counts(demo)["workers"] == (4, 4)
    fits = demo(
        "UpdateCluster", ClusterName="demo", InstanceGroups=[group("workers", "Compute", 5)]
    )
    assert code(fits) == ""


def test_a_spot_instance_is_interrupted_after_a_notice(machines: NullMachines) -> None:
    emulator = Emulator(machines, boot_time_s=0.0, retry_time_s=0.3)
    emulator.start()
    api = Client(emulator)
    try:
        workers = group("workers", "Compute", 1, CapacityRequirements={"Spot": {}})
        emulator.create(
            cluster("demo", InstanceGroups=[group("controller", "Controller", 1), workers])
        )
        settled(api)
        [head] = nodes(api, "controller")
        [node] = nodes(api, IncludeNodeLogicalIds=True)
        assert not emulator.interrupt(head["InstanceId"])
        assert emulator.interrupt(node["InstanceId"], 0.05)
        warned = api("ListClusterEvents", ClusterName="demo")["Events"][0]
        assert (warned["EventLevel"], warned["InstanceId"]) == ("Warn", node["InstanceId"])
        until(api, lambda: not nodes(api))
        until(api, lambda: statuses(api) == {"Running"})
        assert nodes(api)[0]["InstanceId"] != node["InstanceId"]
        [again] = nodes(api, IncludeNodeLogicalIds=True)
        assert again["NodeLogicalId"] == node["NodeLogicalId"]
    finally:
        emulator.stop()


def test_additions_that_do_not_suit_the_group_are_refused_one_by_one(demo: Client) -> None:
    def added(**entry: Any) -> str:
        wanted = {"InstanceGroupName": "workers", "IncrementTargetCountBy": 1, **entry}
        answer = demo("BatchAddClusterNodes", ClusterName="demo", NodesToAdd=[wanted])
        return str(answer["Failed"][0]["ErrorCode"]) if answer["Failed"] else ""

    assert added(InstanceGroupName="nope") == "InstanceGroupNotFound"
    assert added(InstanceTypes=["ml.p5e.48xlarge"]) == "IncompatibleInstanceTypes"
    assert added(AvailabilityZones=["us-west-2c"]) == "IncompatibleAvailabilityZones"
    assert added(InstanceTypes=["ml.p5.48xlarge"], AvailabilityZones=["us-west-2a"]) == ""
    demo.emulator.world.cluster("demo").groups["workers"].phase = "SystemUpdating"
    assert added() == "InvalidInstanceGroupStatus"

"""Nodes of the emulator: identity, lists, batches, events, and the service's own deeds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hpctl.sandbox.emulator import Emulator, NullMachines
from hpctl.sandbox.emulator.launch import Timings
from tests.contract.provider.beds import Client, cluster


@pytest.fixture
def machines() -> NullMachines:
    return NullMachines()


@pytest.fixture
def api(machines: NullMachines) -> Iterator[Client]:
    emulator = Emulator(machines, boot_time_s=0.02)
    emulator.start()
    emulator.create(cluster("demo"))
    emulator.wait_in_service("demo", 10)
    yield Client(emulator)
    emulator.stop()
    assert emulator.response_errors == []


def listed(api: Client, **more: Any) -> list[dict[str, Any]]:
    body = api("ListClusterNodes", ClusterName="demo", **more)
    found: list[dict[str, Any]] = body["ClusterNodeSummaries"]
    return found


def workers(api: Client) -> list[str]:
    return [n["InstanceId"] for n in listed(api, InstanceGroupNameContains="work")]


def describe(api: Client, **which: str) -> dict[str, Any]:
    body: dict[str, Any] = api("DescribeClusterNode", ClusterName="demo", **which)
    return dict(body.get("NodeDetails", body))


def settled(api: Client) -> None:
    api.emulator.wait_in_service("demo", 10)


def plain(api: Client, name: str = "plain") -> str:
    spec = cluster(name)
    del spec["NodeProvisioningMode"]
    api.emulator.create(spec)
    api.emulator.wait_in_service(name, 10)
    return name


def test_a_replacement_walks_through_its_states(api: Client, machines: NullMachines) -> None:
    api.emulator.launches.timings = Timings(shutdown_s=0.05, boot_s=0.05)
    old = describe(api, NodeId=workers(api)[0])
    api("BatchReplaceClusterNodes", ClusterName="demo", NodeIds=[old["InstanceId"]])
    seen: list[tuple[str, str]] = []

    def done() -> bool:
        now = describe(api, NodeLogicalId=old["NodeLogicalId"])
        at = (now["InstanceId"], now["InstanceStatus"]["Status"])
        if not seen or seen[-1] != at:
            seen.append(at)
        return at[1] == "Running"

    assert api.emulator.wait_until(done, 10)
    new = describe(api, NodeLogicalId=old["NodeLogicalId"])
    assert [s for _, s in seen] == ["ShuttingDown", "Pending", "Running"]
    assert [i for i, _ in seen] == [old["InstanceId"], new["InstanceId"], new["InstanceId"]]
    same = ("PrivatePrimaryIp", "PrivateDnsHostname", "InstanceGroupName", "InstanceType")
    assert {k: new[k] for k in same} == {k: old[k] for k in same}
    assert new["LaunchTime"] > old["LaunchTime"]
    assert machines.done[-2:] == [("destroy", old["InstanceId"]), ("boot", new["InstanceId"])]


def test_a_lifecycle_script_that_fails_leaves_the_node_in_failure(
    api: Client, machines: NullMachines
) -> None:
    machines.fail_boot = {"workers-1", "workers-2", "workers-3", "workers-4"}
    old = describe(api, NodeId=workers(api)[0])
    api("BatchReplaceClusterNodes", ClusterName="demo", NodeIds=[old["InstanceId"]])
    settled(api)
    failed = describe(api, NodeLogicalId=old["NodeLogicalId"])
    assert failed["InstanceStatus"]["Status"] == "Failure"
    assert "Lifecycle scripts did not run successfully" in failed["InstanceStatus"]["Message"]


def test_at_most_25_and_at_least_one(api: Client) -> None:
    ids = [f"i-{n:017x}" for n in range(26)]
    many = api("BatchReplaceClusterNodes", ClusterName="demo", NodeIds=ids)
    assert many["__type"] == "ValidationException"
    assert "less than or equal to 25" in many["message"]
    none = api("BatchReplaceClusterNodes", ClusterName="demo")
    assert none["__type"] == "ValidationException"
    answer = api("BatchReplaceClusterNodes", ClusterName="demo", NodeIds=ids[:25])
    assert {f["ErrorCode"] for f in answer["Failed"]} == {"InstanceIdNotFound"}
    assert "Successful" not in answer


def add(group: str, count: int) -> dict[str, Any]:
    return {"InstanceGroupName": group, "IncrementTargetCountBy": count}


def test_events_tell_what_happened(api: Client) -> None:
    one = workers(api)[0]
    api.emulator.faults.add("no_capacity", calls=1)
    api("BatchReplaceClusterNodes", ClusterName="demo", NodeIds=[one])
    settled(api)
    newest = api("ListClusterEvents", ClusterName="demo", MaxResults=1)["Events"][0]
    assert (newest["EventLevel"], newest["ResourceType"]) == ("Error", "Instance")
    detail = api("DescribeClusterEvent", ClusterName="demo", EventId=newest["EventId"])
    metadata = detail["EventDetails"]["EventDetails"]["EventMetadata"]["Instance"]
    assert "sufficient capacity" in metadata["FailureMessage"]
    same = api("ListClusterEvents", ClusterName="demo", OperationId=newest["OperationId"])
    assert [e["Description"] for e in same["Events"]][::-1] == [
        "Replacement began (customer).",
        "Instance launched.",
        "Instance failed.",
    ]
    missing = "00000000-0000-0000-0000-000000000000"
    assert (
        api("DescribeClusterEvent", ClusterName="demo", EventId=missing)["__type"]
        == "ResourceNotFound"
    )


def test_what_is_unhealthy_is_replaced_only_with_automatic_recovery(api: Client) -> None:
    one = workers(api)[0]
    assert not api.emulator.mark_unhealthy(one)
    assert one in workers(api)
    api("UpdateCluster", ClusterName="demo", NodeRecovery="Automatic")
    assert api.emulator.mark_unhealthy(one)
    settled(api)
    assert one not in workers(api)

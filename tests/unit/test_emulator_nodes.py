"""Nodes of the emulator: identity, lists, batches, events, and the service's own deeds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from hpctl.sandbox.emulator import Emulator, NullMachines
from hpctl.sandbox.emulator.launch import Timings
from tests.contract.provider.beds import Client, cluster, counts


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


def test_only_describe_tells_the_address(api: Client) -> None:
    summary = listed(api, IncludeNodeLogicalIds=True)[0]
    assert "PrivatePrimaryIp" not in summary
    details = describe(api, NodeId=summary["InstanceId"])
    dashed = details["PrivatePrimaryIp"].replace(".", "-")
    assert summary["PrivateDnsHostname"] == f"ip-{dashed}.us-west-2.compute.internal"
    assert describe(api, NodeLogicalId=summary["NodeLogicalId"]) == details
    assert describe(api, NodeId="i-00000000")["__type"] == "ResourceNotFound"
    assert api("DescribeClusterNode", ClusterName="demo")["__type"] == "ValidationException"


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


def test_a_reboot_runs_no_lifecycle_script_and_keeps_the_status(
    api: Client, machines: NullMachines
) -> None:
    one = workers(api)[0]
    answer = api("BatchRebootClusterNodes", ClusterName="demo", NodeIds=[one])
    assert answer == {"Successful": [one]}
    assert describe(api, NodeId=one)["InstanceStatus"] == {"Status": "Running"}
    settled(api)
    assert machines.done[-1] == ("reboot", one)


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


def test_logical_ids_are_for_continuous_clusters(api: Client) -> None:
    """API model, ClusterNodeSummary: only with IncludeNodeLogicalIds in the request."""
    assert not any("NodeLogicalId" in node for node in listed(api))
    logical = listed(api, IncludeNodeLogicalIds=True)[1]["NodeLogicalId"]
    answer = api("BatchReplaceClusterNodes", ClusterName="demo", NodeLogicalIds=[logical])
    assert answer == {"SuccessfulNodeLogicalIds": [logical]}
    settled(api)
    name = plain(api)
    assert (
        "NodeLogicalId" not in api("ListClusterNodes", ClusterName=name)["ClusterNodeSummaries"][0]
    )
    for operation, more in (
        ("ListClusterNodes", {"IncludeNodeLogicalIds": True}),
        ("BatchReplaceClusterNodes", {"NodeLogicalIds": [logical]}),
        ("DescribeClusterNode", {"NodeLogicalId": logical}),
        ("ListClusterEvents", {}),
        ("BatchAddClusterNodes", {"NodesToAdd": [add("workers", 1)]}),
    ):
        answer = api(operation, ClusterName=name, **more)
        assert answer["__type"] == "ValidationException", operation
        assert "Continuous" in answer["message"]


def add(group: str, count: int) -> dict[str, Any]:
    return {"InstanceGroupName": group, "IncrementTargetCountBy": count}


def test_added_nodes_have_no_instance_at_first(api: Client) -> None:
    api.emulator.launches.timings = Timings(boot_s=0.2)
    request = {"NodesToAdd": [add("workers", 2), add("nowhere", 1)], "ClientToken": "t1"}
    answer = api("BatchAddClusterNodes", ClusterName="demo", **request)
    assert [n["Status"] for n in answer["Successful"]] == ["Pending", "Pending"]
    assert answer["Failed"][0]["ErrorCode"] == "InstanceGroupNotFound"
    assert len(listed(api)) == 5
    waiting = [n for n in listed(api, IncludeNodeLogicalIds=True) if not n["InstanceId"]]
    made = {n["NodeLogicalId"] for n in answer["Successful"]}
    assert {n["NodeLogicalId"] for n in waiting} == made
    again = api("BatchAddClusterNodes", ClusterName="demo", **request)
    assert {n["NodeLogicalId"] for n in again["Successful"]} == made
    settled(api)
    assert counts(api)["workers"] == (6, 6)
    other = {**request, "NodesToAdd": [add("workers", 3)]}
    assert api("BatchAddClusterNodes", ClusterName="demo", **other)["__type"] == (
        "ValidationException"
    )
    too_many = [add("workers", 50), add("workers", 1)]
    refused = api("BatchAddClusterNodes", ClusterName="demo", NodesToAdd=too_many)
    assert "At most 50" in refused["message"]
    heads = [add("workers", 1), add("controller", 1)]
    refused = api("BatchAddClusterNodes", ClusterName="demo", NodesToAdd=heads)
    assert "several controllers are not supported" in refused["message"]
    assert counts(api)["controller"] == (1, 1)


def test_deleted_nodes_lower_the_count(api: Client) -> None:
    controller = listed(api, InstanceGroupNameContains="controller")[0]["InstanceId"]
    victim = workers(api)[0]
    answer = api("BatchDeleteClusterNodes", ClusterName="demo", NodeIds=[victim, controller])
    assert answer["Successful"] == [victim]
    assert [f["Code"] for f in answer["Failed"]] == ["InvalidNodeStatus"]
    assert api.emulator.wait_until(lambda: victim not in workers(api), 10)
    assert counts(api)["workers"] == (3, 3)
    one, other, *_ = workers(api)
    api.emulator.faults.add("fail_nodes", calls=1)
    partly = api("BatchDeleteClusterNodes", ClusterName="demo", NodeIds=[one, other])
    assert [f["Code"] for f in partly["Failed"]] == ["InvalidNodeStatus"]
    assert partly["Successful"] == [other]
    whole = api("BatchDeleteClusterNodes", ClusterName="demo", NodeIds=[controller])
    assert whole["__type"] == "ValidationException"
    many = [f"i-{n:017x}" for n in range(100)]
    assert (
        "at most 99" in api("BatchDeleteClusterNodes", ClusterName="demo", NodeIds=many)["message"]
    )


def test_lists_are_filtered_by_group_and_time(api: Client) -> None:
    assert {n["InstanceGroupName"] for n in listed(api, InstanceGroupNameContains="contr")} == {
        "controller"
    }
    late = time.time() + 60
    assert listed(api, CreationTimeAfter=late) == []
    assert len(listed(api, CreationTimeBefore=late)) == 5
    up = [n["InstanceId"] for n in listed(api)]
    down = [n["InstanceId"] for n in listed(api, SortOrder="Descending")]
    assert down == up[::-1]


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


def test_the_service_acts_without_a_call(api: Client, machines: NullMachines) -> None:
    one = workers(api)[0]
    before = len(api.emulator.calls.all())
    assert api.emulator.act_by_itself(one)
    settled(api)
    assert len(api.emulator.calls.all()) == before
    assert ("destroy", one) in machines.done
    assert one not in workers(api)


def test_what_is_unhealthy_is_replaced_only_with_automatic_recovery(api: Client) -> None:
    one = workers(api)[0]
    assert not api.emulator.mark_unhealthy(one)
    assert one in workers(api)
    api("UpdateCluster", ClusterName="demo", NodeRecovery="Automatic")
    assert api.emulator.mark_unhealthy(one)
    settled(api)
    assert one not in workers(api)


def test_a_dead_instance_is_noticed_by_the_service() -> None:
    machines = NullMachines()
    emulator = Emulator(machines, boot_time_s=0.02, watch_interval_s=0.02)
    emulator.start()
    try:
        emulator.create(cluster("demo", NodeRecovery="Automatic"))
        emulator.wait_in_service("demo", 10)
        victim = emulator.machines_of("demo")[2]
        machines.destroy(victim)

        def replaced() -> bool:
            now = emulator.machines_of("demo")
            return victim.instance_id not in [m.instance_id for m in now]

        assert emulator.wait_until(replaced, 10)
        assert emulator.calls.all() == ()
    finally:
        emulator.stop()


def test_a_late_list_shows_the_past(api: Client) -> None:
    old, then = workers(api)[0], time.monotonic()
    time.sleep(0.01)
    api("BatchReplaceClusterNodes", ClusterName="demo", NodeIds=[old])
    settled(api)
    assert old not in workers(api)
    api.emulator.faults.add("list_lag", seconds=time.monotonic() - then)
    assert old in workers(api)
    assert describe(api, NodeId=old)["__type"] == "ResourceNotFound"
    api.emulator.faults.clear("list_lag")
    assert old not in workers(api)

"""A node's many names: read over HTTP from the emulator, joined, and found again."""

from datetime import datetime

import pytest
from msgspec.structs import replace

from hpctl.clusters.fleet import NOT_FOUND, NodeLookupError, NodeRow
from hpctl.clusters.fleet_joining import (
    add_health_to_node_rows,
    add_instance_names_to_rows,
    add_slurm_states_to_node_rows,
)
from hpctl.clusters.fleet_reading import read_fleet, read_node_rows
from hpctl.clusters.node_lookup import resolve_node_by_name, resolve_nodes_by_names
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode
from tests.clusters.bed import CLUSTER

pytestmark = pytest.mark.integration

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_node_that_goes_between_the_calls_is_left_out(bed):
    gone = bed.worker()
    bed.behind_a_list("BatchDeleteClusterNodes", gone)
    rows = read_node_rows(bed.aws, CLUSTER)
    assert gone not in [row.instance_id for row in rows]
    assert len(rows) == 4


def test_a_replaced_node_is_found_by_its_logical_id(bed):
    before = next(r for r in read_node_rows(bed.aws, CLUSTER) if r.group == "workers")
    bed.behind_a_list("BatchReplaceClusterNodes", before.instance_id)
    after = next(r for r in read_node_rows(bed.aws, CLUSTER) if r.logical_id == before.logical_id)
    assert after.instance_id != before.instance_id


def test_what_cannot_be_described_is_a_row_that_says_so(bed, monkeypatch):
    bed.emulator.faults.add("internal_error", calls=8, operations=["DescribeClusterNode"])
    monkeypatch.setattr("hpctl.clusters.fleet_reading.AT_ONCE", 1)
    rows = read_fleet(bed.aws, CLUSTER).rows
    assert [bool(row.unread) for row in rows].count(True) == 1
    assert all(row.instance_id for row in rows)


ROWS = (
    NodeRow("ip-10-1-0-2", "i-01", "node-a", "10.1.0.2", "ip-10-1-0-2.ec2.internal", "workers"),
    NodeRow("ip-10-1-0-3", "i-02", "node-b", "10.1.0.3", "ip-10-1-0-3.ec2.internal", "workers"),
    NodeRow("ip-10-1-0-13", "i-03", "node-c", "10.1.0.13", "ip-10-1-0-13.ec2.internal", "big"),
)


@pytest.mark.parametrize(
    "name",
    ["ip-10-1-0-3", "IP-10-1-0-3", "i-02", "node-b", "10.1.0.3", "ip-10-1-0-3.ec2.internal", "w-2"],
)
def test_a_node_is_found_by_each_of_its_names(name):
    config = {
        "InstanceGroups": [
            {"Name": "empty", "Instances": None},
            {
                "Name": "workers",
                "Instances": [
                    {"InstanceName": "w-1", "InstanceId": "i-01", "CustomerIpAddress": "10.1.0.2"},
                    {"InstanceName": "w-2", "InstanceId": "i-0", "CustomerIpAddress": "10.1.0.3"},
                ],
            },
        ]
    }
    assert (
        resolve_node_by_name(add_instance_names_to_rows(ROWS, config), name).instance_id == "i-02"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ip-10-1-0-33", "did you mean ip-10-1-0-3 or"),
        ("workers", "its nodes: ip-10-1-0-2, ip-10-1-0-3"),
        ("zzz", "hpctl cluster instances"),
    ],
)
def test_a_name_that_nothing_has_is_answered_with_the_nearest(name, said):
    with pytest.raises(NodeLookupError) as caught:
        resolve_node_by_name(ROWS, name)
    assert name in str(caught.value)
    assert said in caught.value.hint


def test_a_name_that_two_have_is_no_name():
    twins = (*ROWS, replace(ROWS[0], instance_id="i-09", logical_id="node-z"))
    with pytest.raises(NodeLookupError, match="2 nodes: i-01, i-09"):
        resolve_node_by_name(twins, "10.1.0.2")


def test_hostlists_name_several_and_all_wrong_names_are_reported_at_once():
    found = resolve_nodes_by_names(ROWS, ["ip-10-1-0-[2-3]", "i-02"])
    assert [row.instance_id for row in found] == ["i-01", "i-02"]
    with pytest.raises(NodeLookupError) as caught:
        resolve_nodes_by_names(ROWS, ["i-01", "nope", "ip-10-1-0-[9"])
    assert "nope" in str(caught.value)
    assert "ip-10-1-0-[9" in str(caught.value)


def test_slurm_is_joined_by_name_or_by_address():
    running = SlurmJob(7, "RUNNING", NOW, nodes=("gpu-3",))
    ended = SlurmJob(6, "COMPLETED", NOW, nodes=("gpu-3",))
    nodes = (
        SlurmNode("ip-10-1-0-2", "IDLE", frozenset({"DRAIN"}), "why", "10.1.0.2"),
        SlurmNode("gpu-3", "ALLOCATED", address="10.1.0.3", partitions=("dev",)),
    )
    view = SchedulerView(NOW, {n.name: n for n in nodes}, {j.id: j for j in (running, ended)})
    first, second, third = add_slurm_states_to_node_rows(ROWS, view)
    assert (first.slurm_state, first.slurm_flags, first.role) == ("IDLE", ("DRAIN",), "")
    assert (second.node, second.jobs, second.role) == ("gpu-3", (7,), "compute")
    assert third.slurm_state == NOT_FOUND


def test_health_is_of_this_instance_and_of_no_earlier_one():
    def judged(node: str, instance: str) -> NodeAssessment:
        here = NodeGeneration(node, instance, "b")
        return NodeAssessment(here, NodeCondition.HEALTHY, NOW, why="all checks pass")

    answer = {
        "ip-10-1-0-2": judged("ip-10-1-0-2", "i-01"),
        "ip-10-1-0-3": judged("ip-10-1-0-3", "i-00"),
    }
    first, second, third = add_health_to_node_rows(ROWS, answer)
    assert first.health == "healthy"
    assert second.health == "unknown"
    assert "i-00" in second.health_why
    assert third.health_why == "no agent has reported"

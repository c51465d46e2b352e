"""A request against DescribeCluster's answer: what differs, and what comes of it."""

import copy

import pytest

from hpctl.clusters.apply import plan_cluster_update
from hpctl.clusters.diff import SpecChange, SpecChangeKind, diff_request_with_cluster
from tests.clusters import api_model
from tests.tables import beside

pytestmark = pytest.mark.integration

DATA = beside(__file__, "diff.yaml")
REQUEST = DATA["request"]


def described():
    """The cluster of REQUEST as the service tells of it; it keeps no order of subnets."""
    made = api_model.described(copy.deepcopy(REQUEST))
    made["VpcConfig"]["Subnets"].reverse()
    for one in made["InstanceGroups"]:
        one["ThreadsPerCore"] = 1
    return {**made, "Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Merge"}}}


def wanted(**of_workers):
    """REQUEST with other words for the workers."""
    made = copy.deepcopy(REQUEST)
    workers = made["InstanceGroups"][1]
    workers |= of_workers
    made["InstanceGroups"][1] = {k: v for k, v in workers.items() if v is not None}
    return made


def only(request) -> SpecChange:
    changes = diff_request_with_cluster(request, described()).changes
    assert len(changes) == 1, changes
    return changes[0]


def test_what_the_service_fills_in_is_no_difference():
    assert diff_request_with_cluster(REQUEST, described()).changes == ()


@pytest.mark.parametrize(("of_workers", "kind", "place"), DATA["changes"])
def test_each_change_has_its_kind_and_its_consequence(of_workers, kind, place):
    change = only(wanted(**of_workers))
    assert (change.kind, change.place) == (kind, f"workers.{place}")
    assert change.consequence


def test_the_controller_neither_shrinks_nor_goes():
    request = copy.deepcopy(REQUEST)
    del request["InstanceGroups"][0]
    assert only(request).kind is SpecChangeKind.IMPOSSIBLE
    there = described()
    there["InstanceGroups"][0]["TargetCount"] = 2
    assert diff_request_with_cluster(REQUEST, there).changes[0].kind is SpecChangeKind.IMPOSSIBLE


def test_tags_are_compared_where_they_were_read():
    request = {**REQUEST, "Tags": [{"Key": "team", "Value": "nlp"}, {"Key": "a", "Value": "b"}]}
    assert diff_request_with_cluster(request, described()).changes == ()
    changes = diff_request_with_cluster(
        request, described(), {"team": "cv", "old": "x", "a": "b"}
    ).changes
    assert [(c.place, c.old, c.new) for c in changes] == [
        ("Tags.team", "cv", "nlp"), ("Tags.old", "x", None),
    ]  # fmt: skip
    # A file that says nothing of tags may come from somebody who was not allowed to see them.
    assert diff_request_with_cluster(REQUEST, described(), {"team": "cv"}).changes == ()


def planned(request):
    there = described()
    return plan_cluster_update(request, there, diff_request_with_cluster(request, there))


def test_a_group_that_only_shrinks_is_not_restated():
    made = planned(wanted(InstanceCount=1))
    assert (made.update, made.shrink, made.final["workers"]) == ({}, {"workers": 3}, 1)


def test_a_group_that_changes_and_shrinks_is_restated_with_the_count_that_it_has():
    made = planned(wanted(InstanceCount=1, MinInstanceCount=1))
    [group] = made.update["InstanceGroups"]
    assert group["InstanceCount"] == 4
    assert (made.targets["workers"], made.shrink) == (4, {"workers": 3})


def test_what_is_restated_keeps_what_the_spec_leaves_open_but_no_image():
    made = planned(wanted(InstanceCount=6))
    [group] = made.update["InstanceGroups"]
    assert group["ThreadsPerCore"] == 1
    assert group["LifeCycleConfig"]["OnInitComplete"] == "on_init_complete.sh"
    assert "ImageId" not in group
    assert set(made.update) == {"InstanceGroups"}

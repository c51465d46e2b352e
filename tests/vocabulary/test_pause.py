"""Pauses: what each covers, when it ends, and what lifting some of them leaves."""

from datetime import datetime, timezone

import pytest

from hpctl.vocabulary.pause import (
    Pause,
    find_active_cluster_pause,
    find_active_pause_covering_targets,
    find_active_pauses,
    find_latest_pause_end,
    lift_pauses_in_scope,
    parse_pause_request,
    remove_pauses_ended_before,
)
from tests.fakes.values import at

CLUSTER = Pause("", "ana", at(0))
NODES = Pause("n[1-3]", "bo", at(0), "new cables", at(60))
GPU = Pause("partition=gpu", "cy", at(0))


def of(*pauses: Pause) -> dict[str, Pause]:
    return {pause.scope: pause for pause in pauses}


@pytest.mark.parametrize(
    ("pause", "nodes", "partitions", "covers"),
    [
        (CLUSTER, (), (), True), (CLUSTER, ("n9",), ("cpu",), True),
        (NODES, ("n2",), ("gpu",), True), (NODES, ("n4",), ("gpu",), False),
        (NODES, ("n4", "n1"), (), True), (NODES, (), (), False),
        (GPU, ("n9",), ("gpu",), True), (GPU, ("n9",), ("cpu",), False), (GPU, (), (), False),
    ],
)  # fmt: skip
def test_a_pause_covers_the_cluster_its_nodes_or_its_partition(pause, nodes, partitions, covers):
    assert bool(find_active_pause_covering_targets(of(pause), at(1), nodes, partitions)) is covers


@pytest.mark.parametrize(("seconds", "active"), [(0, True), (59, True), (60, False)])
def test_a_pause_ends_at_its_end(seconds, active):
    assert bool(find_active_pause_covering_targets(of(NODES), at(seconds), ("n1",))) is active


def test_several_pauses_are_open_at_once_and_the_clusters_comes_first():
    open_now = of(GPU, NODES, CLUSTER)
    assert find_active_pauses(open_now, at(1)) == [CLUSTER, NODES, GPU]
    assert find_active_cluster_pause(open_now, at(1)) == CLUSTER
    assert find_active_cluster_pause(of(GPU, NODES), at(1)) is None


def test_lifting_without_a_scope_ends_every_pause():
    assert find_active_pauses(lift_pauses_in_scope(of(CLUSTER, NODES, GPU), "", at(1)), at(1)) == []


def test_lifting_one_scope_leaves_the_others():
    left = lift_pauses_in_scope(of(CLUSTER, NODES, GPU), "partition=gpu", at(1))
    assert find_active_pauses(left, at(1)) == [CLUSTER, NODES]
    assert lift_pauses_in_scope(of(CLUSTER), "partition=cpu", at(1)) == of(CLUSTER)


def test_nodes_that_are_lifted_leave_a_pause_of_more_nodes():
    (left,) = find_active_pauses(lift_pauses_in_scope(of(NODES), "n2", at(1)), at(1))
    assert (left.scope, left.by, left.why, left.until) == ("n[1,3]", "bo", "new cables", at(60))
    assert find_active_pauses(lift_pauses_in_scope(of(CLUSTER), "n2", at(1)), at(1)) == [CLUSTER]


def test_lifted_nodes_leave_every_pause_that_has_them():
    """One of exactly these nodes, open or ended long ago, hides no other."""
    for other in (Pause("n1", "cy", at(0)), Pause("n1", "cy", at(0), lifted=at(1))):
        (left,) = find_active_pauses(lift_pauses_in_scope(of(NODES, other), "n1", at(2)), at(2))
        assert (left.scope, left.by) == ("n[2-3]", "bo")


def test_what_is_left_of_a_pause_shortens_no_other():
    longer = Pause("n[2-3]", "cy", at(0))
    assert find_active_pauses(lift_pauses_in_scope(of(NODES, longer), "n1", at(1)), at(1)) == [
        longer
    ]
    shorter = Pause("n[2-3]", "cy", at(0), until=at(30))
    (left,) = find_active_pauses(lift_pauses_in_scope(of(NODES, shorter), "n1", at(1)), at(1))
    assert (left.scope, left.until) == ("n[2-3]", at(60))


def test_a_lifted_pause_stays_lifted_where_the_clock_is_set_back():
    assert find_active_pauses(lift_pauses_in_scope(of(CLUSTER), "", at(3600)), at(0)) == []


def test_what_was_paused_can_be_acted_on_since_the_end_of_the_last_pause():
    assert find_latest_pause_end({}, at(1), ("n1",)) is None
    assert find_latest_pause_end(of(NODES), at(1), ("n9",)) is None
    assert find_latest_pause_end(of(NODES), at(1), ("n1",)) == at(1)
    assert find_latest_pause_end(of(NODES), at(99), ("n1",)) == at(60)
    assert find_latest_pause_end(
        lift_pauses_in_scope(of(NODES), "", at(30)), at(99), ("n1",)
    ) == at(30)


def test_pauses_that_ended_long_ago_are_forgotten():
    assert remove_pauses_ended_before(of(CLUSTER, NODES), at(61)) == of(CLUSTER)
    assert remove_pauses_ended_before(of(CLUSTER, NODES), at(59)) == of(CLUSTER, NODES)


def test_the_text_says_who_why_until_when_and_how_to_lift_it():
    assert NODES.text == "n[1-3] is paused by bo until 2026-03-01 12:01:00 UTC: new cables"
    assert (NODES.lift_command, GPU.lift_command) == (
        "hpctl unpause n[1-3]",
        "hpctl unpause --partition gpu",
    )
    assert (CLUSTER.text, CLUSTER.lift_command) == ("paused by ana", "hpctl unpause")


@pytest.mark.parametrize("detail", ["{", "[]", '{"nodes":"n[1-"}', '{"color":"red"}', '{"why":3}'])
def test_a_detail_that_is_no_pause_is_refused(detail):
    with pytest.raises(ValueError, match="not a pause"):
        parse_pause_request(detail)


def test_a_detail_is_bounded():
    asked = parse_pause_request(
        '{"why":"' + "x" * 9999 + '\\u001b","until":"9999-12-31T00:00:00Z"}'
    )
    assert len(asked.why) == 500
    assert asked.until is not None
    assert asked.until < datetime(9001, 1, 1, tzinfo=timezone.utc)

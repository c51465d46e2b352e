"""When Slurm is read, as pure values."""

import pytest
from msgspec.structs import replace

from hpctl.engine.config import RecoveryLoopSection
from hpctl.engine.reading_pace import (
    JOB_S,
    NODE_S,
    SlurmReadingAge,
    find_nodes_with_service_changes,
    is_slurm_reading_due,
    should_wake_loop_for_log_event,
)
from hpctl.vocabulary.controller_news import SlurmctldLogEvent
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.fakes.values import T0, slurm_node

PACE = RecoveryLoopSection(reconcile_s=30.0, rest_s=300.0)


def since(
    age_s: float, news=SlurmctldLogEvent.NONE, *, busy=False, followed=True
) -> SlurmReadingAge:
    return SlurmReadingAge(age_s, busy, followed, news)


@pytest.mark.parametrize(
    ("news", "after_s"), [(SlurmctldLogEvent.JOB, JOB_S), (SlurmctldLogEvent.NODE, NODE_S)]
)
def test_a_reading_is_due_and_ends_the_rest_the_sooner_the_more_urgent_the_news(news, after_s):
    early, late = since(after_s - 0.1, news), since(after_s, news)
    assert not is_slurm_reading_due(early, PACE)
    assert not should_wake_loop_for_log_event(early)
    assert is_slurm_reading_due(late, PACE)
    assert should_wake_loop_for_log_event(late)


@pytest.mark.parametrize(
    ("sizes_capacity", "after_s"), [(False, PACE.rest_s), (True, PACE.reconcile_s)]
)
def test_without_news_a_reading_is_due_rarely_and_ends_no_rest(sizes_capacity, after_s):
    early, late = since(after_s - 0.1), since(after_s)
    early, late = (replace(one, sizes_capacity=sizes_capacity) for one in (early, late))
    assert not is_slurm_reading_due(early, PACE)
    assert is_slurm_reading_due(late, PACE)
    assert not should_wake_loop_for_log_event(late)


def test_each_cycle_reads_where_something_is_open_or_the_log_is_not_followed():
    assert is_slurm_reading_due(since(0.0, busy=True), PACE)
    assert is_slurm_reading_due(since(0.0, followed=False), PACE)


def test_the_longest_interval_is_never_below_that_of_a_busy_queue():
    pace = RecoveryLoopSection(reconcile_s=30.0, rest_s=5.0)
    assert not is_slurm_reading_due(since(29.0), pace)
    assert is_slurm_reading_due(since(30.0), pace)


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (slurm_node(1, state="ALLOCATED"), []),
        (slurm_node(1, flags=frozenset({"NOT_RESPONDING"})), []),
        (slurm_node(1, state="DOWN"), ["n1"]),
        (slurm_node(1, flags=frozenset({"DRAIN"}), reason="bad fan"), ["n1"]),
        (slurm_node(1, flags=frozenset({"FAIL"}), reason="Action:Replace"), ["n1"]),
        (slurm_node(2, state="DOWN"), []),
    ],
)
def test_what_a_log_that_tells_everything_would_have_announced(after, found):
    before = SchedulerView(T0, {"n1": slurm_node(1)})
    assert find_nodes_with_service_changes(before, SchedulerView(T0, {after.name: after})) == found

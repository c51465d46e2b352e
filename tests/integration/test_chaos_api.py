"""The cluster API misbehaves while nodes are sick: one replacement each, and every end is told."""

import time
from collections.abc import Iterator

import pytest

from hpctl.core.recovery import StepKind, last_step
from tests.integration.chaos import REPLACE, Chaos, cluster, stays
from tests.integration.live import until

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def shared() -> Iterator[Chaos]:
    with cluster() as live:
        yield live


@pytest.fixture
def live(shared: Chaos) -> Iterator[Chaos]:
    yield shared
    shared.settle()


def test_a_lost_reply_earns_no_second_replacement(live: Chaos) -> None:
    job = live.start("srun sleep 600", "--nodes=2")
    victim = str(live.job(job).nodes[1])
    before = live.instance(victim)
    live.sandbox.inject_api("drop-reply")
    live.xid(victim)
    recovery = live.returned(victim)
    assert last_step(recovery.steps, StepKind.REPLACE) is not None
    assert live.accepted(before) == 1
    fresh = live.instance(victim)
    assert fresh != before
    assert live.asked(fresh) == [], "the fresh machine was asked for as well"
    assert live.job(job).restarts == 1


@pytest.mark.nightly
def test_ten_seconds_of_latency_delay_nobody_elses_job(live: Chaos) -> None:
    job = live.start("sleep 600")
    quick = str(live.job(job).nodes[0])
    (slow,) = live.victims(1)
    live.sandbox.inject_api("latency", seconds=10.0, operations=[REPLACE], calls=1)
    live.xid(slow)
    asked = time.monotonic()
    until(lambda: bool(live.asked(live.last(slow).generation.instance)), 10, "the call is made")
    live.xid(quick)
    until(lambda: live.running(job, restarts=1), 8, "the other node's job runs again")
    assert time.monotonic() - asked < 10
    step = last_step(live.last(slow).steps, StepKind.REPLACE)
    assert step is not None
    assert step.outcome is None, "the slow call was to be under way still"
    live.returned(slow)
    live.returned(quick)


@pytest.mark.nightly
def test_in_use_means_that_somebody_else_acts_and_a_person_hears_when_nobody_does(
    live: Chaos,
) -> None:
    (node,) = live.victims(1)
    old = live.instance(node)
    live.reconfigure(node={"replace_deadline_s": 5.0})
    live.sandbox.inject_api("partial", nodes=[node], code="InstanceIdInUse")
    live.xid(node)
    until(lambda: live.phase(node) == "escalated", 25, "a person is told")
    assert live.accepted(old) == 0
    assert live.node(node).drained
    live.put_back(node)


@pytest.mark.nightly
def test_no_capacity_is_told_then_breaks_the_circuit_until_a_person_approves(live: Chaos) -> None:
    first, second, third = live.victims(3)
    live.reconfigure(node={"replace_deadline_s": 8.0}, budgets={"launch_failures": 2})
    live.sandbox.inject_api("no-capacity", seconds=0.5, calls=2)
    live.xid(first, second)
    for node in (first, second):
        until(lambda n=node: live.phase(n) == "escalated", 30, "escalated")  # type: ignore[misc]
        assert "capacity" in live.last(node).trail[-1].why
    live.xid(third)
    until(lambda: third in live.state().holds, 10, "held")
    assert live.state().holds[third].gate == "launch_breaker"
    assert not live.node(third).drained
    live.hpctl("approve", third)
    live.returned(third)
    # The place has a new instance id that never booted: an operator's order is for that one.
    live.order("replace", first, second)
    live.returned(first)
    live.returned(second)


@pytest.mark.nightly
def test_a_stuck_replacement_is_waited_for_and_not_repeated(live: Chaos) -> None:
    (node,) = live.victims(1)
    old = live.instance(node)
    live.sandbox.inject_api("stuck-replace")
    live.xid(node)
    until(lambda: live.phase(node) == "remedying", 15, "remedying")
    stays(lambda: live.phase(node) == "remedying", 5, "it waits")
    assert len(live.asked(old)) == 1
    live.sandbox.inject_api("clear")
    live.returned(node)
    assert len(live.asked(old)) == 1


@pytest.mark.nightly
def test_a_list_that_lags_earns_no_second_replacement(live: Chaos) -> None:
    (node,) = live.victims(1)
    old = live.instance(node)
    live.sandbox.inject_api("list-lag", seconds=6.0)
    live.xid(node)
    live.returned(node)
    assert len(live.asked(old)) == 1

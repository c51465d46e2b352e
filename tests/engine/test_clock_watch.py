"""A wall clock that is set moves what is open, forward and back, once."""

from datetime import datetime, timedelta

import pytest

from hpctl.engine.clock_watch import SET_S, WallClockChangeDetector
from hpctl.engine.journal.events import ClockSet, JobRecoveryOpened, SignalSeen, StepStarted
from hpctl.engine.journal.state import replay_events
from hpctl.vocabulary.recovery import StepKind
from tests.fakes.values import T0, at, attempt, opened

HOUR_S = 3600.0


class Clock:
    """A wall clock and a monotonic one, each set by hand."""

    def __init__(self) -> None:
        self.wall_s = self.steady_s = 0.0

    def now(self) -> datetime:
        return T0 + timedelta(seconds=self.wall_s)

    def monotonic(self) -> float:
        return self.steady_s

    def pass_s(self, seconds: float, set_by: float = 0.0) -> None:
        """Let time pass, and set the wall clock meanwhile."""
        self.steady_s += seconds
        self.wall_s += seconds + set_by


@pytest.mark.parametrize("by_s", [HOUR_S, -HOUR_S, SET_S + 1, -SET_S - 1])
def test_set_clock_is_reported_once_with_the_difference(by_s: float) -> None:
    clock = Clock()
    watch = WallClockChangeDetector(clock)
    assert watch.look(None) == []
    clock.pass_s(600.0)
    assert watch.look(clock.now()) == []
    clock.pass_s(10.0, set_by=by_s)
    assert watch.look(T0) == [ClockSet(clock.now(), by_s)]
    clock.pass_s(10.0)
    assert watch.look(clock.now()) == []


@pytest.mark.parametrize("by_s", [0.0, SET_S, -SET_S])
def test_slewed_clock_is_not_reported(by_s: float) -> None:
    clock = Clock()
    watch = WallClockChangeDetector(clock)
    watch.look(None)
    clock.pass_s(10.0, set_by=by_s)
    assert watch.look(T0) == []


def test_a_daemon_that_starts_before_its_newest_event_moves_what_is_open_into_the_past() -> None:
    clock = Clock()
    newest = clock.now() + timedelta(seconds=HOUR_S)
    watch = WallClockChangeDetector(clock)
    assert watch.look(newest) == [ClockSet(clock.now(), -HOUR_S)]
    assert watch.look(newest) == []
    assert WallClockChangeDetector(clock).look(T0) == []


def test_the_times_of_what_is_open_follow_the_clock() -> None:
    job = JobRecoveryOpened(at(9), "j-1", attempt(), "n-1", ("n1",), "its node", start_at=at(30))
    begun = StepStarted(at(10), "n-1", StepKind.DRAIN, 1, "n1")
    state = replay_events([opened("n-1", seconds=5), job, begun, ClockSet(at(20), -HOUR_S)])
    node, hit = state.nodes["n-1"], state.jobs["j-1"]
    back = timedelta(seconds=-HOUR_S)
    assert (node.opened, node.since) == (at(5) + back, at(5) + back)
    (step,) = node.steps
    assert (step.started, step.resolved) == (at(10) + back, None)
    assert (hit.since, hit.start_at) == (at(9) + back, at(30) + back)


def test_ended_recoveries_keep_their_times() -> None:
    ends = SignalSeen(at(8), "n-1", "operator_cancelled", "eve")
    state = replay_events([opened("n-1", seconds=5), ends, ClockSet(at(20), -HOUR_S)])
    assert (state.nodes["n-1"].opened, state.nodes["n-1"].since) == (at(5), at(8))

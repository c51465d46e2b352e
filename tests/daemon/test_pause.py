"""How long the loop sleeps between two cycles."""

from datetime import timedelta

import pytest

from hpctl.daemon.pause import LISTEN_S, OFTEN_S, CycleSleeper
from hpctl.engine.config import Config
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop import NextLoopCycleTime
from hpctl.vocabulary.recovery import RecheckInterval
from tests.fakes.values import T0, Clock

LOOP = Config().loop


class Quiet:
    """No event comes, and no line of a log, but where told; it notes how long was slept."""

    def __init__(self, *, event: bool = False, line: bool = False) -> None:
        self.slept: list[float] = []
        self.event, self.line = event, line

    def wait(self, timeout_s: float) -> bool:
        self.slept.append(timeout_s)
        return self.event

    def has_urgent_controller_log_event(self) -> bool:
        return self.line


def pause() -> CycleSleeper:
    return CycleSleeper(LiveConfig(Config()), Quiet(), Quiet(), Clock(T0))


@pytest.mark.parametrize(
    ("look", "seconds"),
    [
        (RecheckInterval.SOON, LOOP.poll_s),
        (RecheckInterval.OFTEN, OFTEN_S),
        (RecheckInterval.SLOWLY, LOOP.slow_poll_s),
        (RecheckInterval.WOKEN, min(LOOP.reconcile_s, Config().flush_interval_s * 4 / 3)),
    ],
)
def test_the_loop_looks_as_often_as_what_it_waits_for_asks(look, seconds):
    assert pause().compute_pause_s(NextLoopCycleTime(False, look, None), 0.0) == seconds


def test_after_an_action_the_next_cycle_comes_at_once():
    assert (
        pause().compute_pause_s(NextLoopCycleTime(True, RecheckInterval.SLOWLY, None), 5.0) == 0.0
    )


def test_the_loop_sleeps_twice_as_long_as_a_cycle_takes():
    assert pause().compute_pause_s(NextLoopCycleTime(False, RecheckInterval.SOON, None), 2.0) == 4.0


@pytest.mark.parametrize(("after_s", "seconds"), [(0.2, 0.2), (-5.0, 0.02)])
def test_a_deadline_ends_the_sleep(after_s, seconds):
    until = T0 + timedelta(seconds=after_s)
    assert pause().compute_pause_s(
        NextLoopCycleTime(False, RecheckInterval.WOKEN, until), 0.0
    ) == pytest.approx(seconds)


def rest(world: Quiet, pace: NextLoopCycleTime) -> bool:
    return CycleSleeper(LiveConfig(Config()), world, world, Clock(T0)).rest(pace, 0.0)


def test_a_line_of_slurmctlds_log_ends_the_sleep_and_is_no_event():
    world = Quiet(line=True)
    assert rest(world, NextLoopCycleTime(False, RecheckInterval.WOKEN, None))
    assert sum(world.slept) == LISTEN_S


@pytest.mark.parametrize(
    ("event", "acted", "quiet"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_a_cycle_is_quiet_where_no_event_asks_for_it_and_nothing_was_done(event, acted, quiet):
    pace = NextLoopCycleTime(acted, RecheckInterval.SOON, None)
    assert rest(Quiet(event=event), pace) is quiet

"""How long the loop sleeps between two cycles."""

from datetime import timedelta

import pytest

from hpctl.daemon.pause import OFTEN_S, Pause
from hpctl.engine.config import Config
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop import NextCycle
from hpctl.vocabulary.recovery import Look
from tests.fakes.values import T0, Clock

LOOP = Config().loop


class Quiet:
    """No event and no mark ever comes; it notes how long it was slept for."""

    def __init__(self, *, mark: bool = False) -> None:
        self.slept: list[float] = []
        self.mark = mark

    def wait(self, timeout_s: float) -> bool:
        self.slept.append(timeout_s)
        return False

    def marked(self) -> bool:
        return self.mark


def pause() -> Pause:
    return Pause(LiveConfig(Config()), Quiet(), Quiet(), Clock(T0))


@pytest.mark.parametrize(
    ("look", "seconds"),
    [
        (Look.SOON, LOOP.poll_s),
        (Look.OFTEN, OFTEN_S),
        (Look.SLOWLY, LOOP.slow_poll_s),
        (Look.WOKEN, min(LOOP.reconcile_s, Config().upkeep_s * 4 / 3)),
    ],
)
def test_the_loop_looks_as_often_as_what_it_waits_for_asks(look, seconds):
    assert pause().choose_s(NextCycle(False, look, None), 0.0) == seconds


def test_after_an_action_the_next_cycle_comes_at_once():
    assert pause().choose_s(NextCycle(True, Look.SLOWLY, None), 5.0) == 0.0


def test_the_loop_sleeps_twice_as_long_as_a_cycle_takes():
    assert pause().choose_s(NextCycle(False, Look.SOON, None), 2.0) == 4.0


@pytest.mark.parametrize(("after_s", "seconds"), [(0.2, 0.2), (-5.0, 0.02)])
def test_a_deadline_ends_the_sleep(after_s, seconds):
    until = T0 + timedelta(seconds=after_s)
    assert pause().choose_s(NextCycle(False, Look.WOKEN, until), 0.0) == pytest.approx(seconds)


def test_a_mark_of_the_health_agent_ends_the_sleep():
    marks = Quiet(mark=True)
    alarm = Quiet()
    config = Config()
    Pause(LiveConfig(config), alarm, marks, Clock(T0)).rest(NextCycle(False, Look.WOKEN, None), 0.0)
    assert len(alarm.slept) == 1

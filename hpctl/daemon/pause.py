"""How long the loop sleeps between two cycles, and what ends the sleep."""

import time
from datetime import timedelta
from typing import Protocol

from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop import NextLoopCycleTime
from hpctl.vocabulary.ports import Clock
from hpctl.vocabulary.recovery import RecheckInterval

LISTEN_S = 0.2
"""How often slurmctld's log is looked at during a sleep, in seconds."""
OFTEN_S = 0.3
"""How often Slurm is read while an idle node is tested, in seconds: a user's job waits as long."""


class LoopWakeupEvent(Protocol):
    """Sleeps until an event."""

    def wait(self, timeout_s: float) -> bool:
        """Sleep until an event or until the time is over; True for an event."""


class ControllerLogWatcher(Protocol):
    """Follows slurmctld's log."""

    def has_urgent_controller_log_event(self) -> bool:
        """Return whether it asks for a reading of Slurm now."""


class CycleSleeper:
    """Sleeps between two cycles."""

    def __init__(
        self, live: LiveConfig, alarm: LoopWakeupEvent, news: ControllerLogWatcher, clock: Clock
    ) -> None:
        """`alarm` ends a sleep, and so does slurmctld's log."""
        self._live, self._alarm, self._news, self._clock = live, alarm, news, clock

    def rest(self, pace: NextLoopCycleTime, spent_s: float) -> bool:
        """Sleep as the last cycle asks for; `spent_s`: how long it took. Return whether the next
        cycle is quiet: no event asks for it, and nothing was done in the last."""
        woken = self._sleep_until_event(self.compute_pause_s(pace, spent_s))
        gather_s = self._live.config.loop.gather_s
        if woken and gather_s:
            # One fault seldom comes alone: nodes of a mass event report within milliseconds of
            # each other, and the gates must see them together.
            time.sleep(gather_s)
        return not woken and not pace.acted

    def compute_pause_s(self, pace: NextLoopCycleTime, spent_s: float) -> float:
        """Return the seconds to sleep: none after an action, else as the waiting recoveries
        ask."""
        loop = self._live.config.loop
        if pace.acted:
            return 0.0
        looks = {
            RecheckInterval.SOON: loop.poll_s,
            RecheckInterval.OFTEN: OFTEN_S,
            RecheckInterval.SLOWLY: loop.slow_poll_s,
        }
        pause_s = looks.get(pace.look, loop.reconcile_s)
        # On a cluster where looking is slow, look less: never more than a third of the time.
        pause_s = max(pause_s, 2 * spent_s)
        if pace.until is not None:
            left_s = (pace.until - self._clock.now()) / timedelta(seconds=1)
            pause_s = min(pause_s, max(left_s, 0.02))
        return min(pause_s, loop.reconcile_s, self._live.config.flush_interval_s * 4 / 3)

    def _sleep_until_event(self, pause_s: float) -> bool:
        """Sleep until an event, or until slurmctld's log asks for a reading. Return whether it was
        an event."""
        end = time.monotonic() + pause_s
        while (left_s := end - time.monotonic()) > LISTEN_S:
            if self._alarm.wait(LISTEN_S):
                return True
            if self._news.has_urgent_controller_log_event():
                return self._alarm.wait(0.0)
        return self._alarm.wait(left_s)

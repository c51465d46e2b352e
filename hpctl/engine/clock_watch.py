"""Whether the wall clock was set.

A recovery waits by it: once an hour's error is put right, it would wait an hour too long, or not at
all.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from hpctl.engine.journal.events import ClockSet
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.ports import Clock

SET_S: Final = 5.0
"""More than the clock services of one cluster differ by, and than they slew between two looks."""


class WallClockChangeDetector:
    """Compares the wall clock with the monotonic one, look by look."""

    def __init__(self, clock: Clock) -> None:
        """Nothing was looked at yet."""
        self._clock = clock
        self._last: tuple[datetime, float] | None = None

    def look(self, newest: datetime | None) -> Sequence[ClockSet]:
        """Return how far the clock was set since the last look; None where it was not.

        At the first look the time of the newest event tells: what was journaled lies in the past.
        A clock that was set forward while no daemon ran is not seen.
        """
        now, steady_s = self._clock.now(), self._clock.monotonic()
        expected = now
        if self._last is not None:
            before, before_s = self._last
            expected = add_seconds_within_bounds(before, steady_s - before_s)
        elif newest is not None:
            expected = max(newest, now)
        self._last = now, steady_s
        by_s = (now - expected).total_seconds()
        return [ClockSet(now, by_s)] if abs(by_s) > SET_S else []

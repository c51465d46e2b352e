"""When the sender is woken: immediately for what is new, later for what repeats."""

from __future__ import annotations

from hpctl.detection.send import BURST, EVERY_S
from hpctl.toolkit.token_bucket import TokenBucket


class SendRateLimiter:
    """A limiter that wakes the sender BURST times immediately, then once in EVERY_S. Times are
    monotonic seconds."""

    def __init__(self) -> None:
        self._wakes = TokenBucket(BURST, 1 / EVERY_S)
        self._news = False

    def news(self) -> None:
        """Record that something is new: the next `due` may return True."""
        self._news = True

    def due(self, now: float) -> bool:
        """Return whether to wake the sender now. True at most once for what was new."""
        if not self._news or not self._wakes.take(now):
            return False
        self._news = False
        return True

    def wait_s(self, now: float) -> float | None:
        """Return how long until news that had to wait are due; None where there are none."""
        return self._wakes.wait_s(now) if self._news else None

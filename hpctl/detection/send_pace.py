"""When the sender is woken: at once for news, later for what repeats."""

from __future__ import annotations

from msgspec import Struct

from hpctl.detection.send import BURST, EVERY_S


class Pace(Struct):
    """A bucket of `burst` wakes that fills by one in `every_s`. Times are monotonic seconds."""

    burst: int = BURST
    every_s: float = EVERY_S
    _left: float = 0.0
    _at: float = 0.0
    _news: bool = False

    def __post_init__(self) -> None:
        self._left = float(self.burst)

    def news(self) -> None:
        """Something is new: the next `due` may say so."""
        self._news = True

    def due(self, now: float) -> bool:
        """Whether to wake the sender now. True at most once for what was new."""
        self._fill(now)
        if not self._news or self._left < 1:
            return False
        self._left -= 1
        self._news = False
        return True

    def wait_s(self, now: float) -> float | None:
        """How long until news that had to wait are due; None where there are none."""
        if not self._news:
            return None
        self._fill(now)
        return max(0.0, (1 - self._left) * self.every_s)

    def _fill(self, now: float) -> None:
        self._left = min(float(self.burst), self._left + max(0.0, now - self._at) / self.every_s)
        self._at = now

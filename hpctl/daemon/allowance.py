"""How much each of many may ask for: so much at once, and so much a second in the long run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable

MOST_KEYS = 20_000


class Allowance:
    """A token bucket for each key, as long as it is not full. Safe in any thread."""

    def __init__(
        self, at_once: float, a_second: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._at_once, self._a_second, self._monotonic = at_once, a_second, monotonic
        self._left: dict[Hashable, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, key: Hashable, amount: float = 1.0) -> bool:
        """Take so much of what a key has left; False, and nothing taken, where it has less."""
        now = self._monotonic()
        with self._lock:
            if len(self._left) > MOST_KEYS:
                full = self._at_once
                self._left = {k: v for k, v in self._left.items() if self._now(v, now) < full}
            left = self._now(self._left.get(key, (self._at_once, now)), now)
            enough = amount <= left
            self._left[key] = (left - amount if enough else left, now)
        return enough

    def _now(self, then: tuple[float, float], now: float) -> float:
        left, at = then
        return min(self._at_once, left + (now - at) * self._a_second)

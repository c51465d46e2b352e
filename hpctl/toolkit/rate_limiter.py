"""A token bucket for each sender."""

import threading
import time
from collections.abc import Callable, Hashable

from hpctl.toolkit.token_bucket import TokenBucket

MOST_KEYS = 20_000
"""Keys from which on full buckets are dropped: a full one is the same as none."""


class RateLimiter:
    """Limits each key to `burst` at once and `per_second` a second. Safe in any thread."""

    def __init__(
        self, burst: float, per_second: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst, self._per_second, self._monotonic = burst, per_second, monotonic
        self._buckets: dict[Hashable, TokenBucket] = {}
        self._lock = threading.Lock()

    def take(self, key: Hashable, amount: float = 1.0) -> bool:
        """Take `amount` of what a key has left; return False and take none if it has less."""
        now = self._monotonic()
        with self._lock:
            if len(self._buckets) > MOST_KEYS:
                self._drop_full_token_buckets(now)
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._buckets[key] = TokenBucket(self._burst, self._per_second)
            return bucket.take(now, amount)

    def _drop_full_token_buckets(self, now: float) -> None:
        kept = {k: b for k, b in self._buckets.items() if b.available(now) < self._burst}
        self._buckets = kept

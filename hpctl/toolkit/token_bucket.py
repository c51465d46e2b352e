"""The one rate limit: a burst at once, then so much a second."""

import math


class TokenBucket:
    """Counts tokens over monotonic times that the caller gives, in seconds.

    The bucket starts full with `burst` tokens and earns `per_second` tokens a second up to `burst`.
    A time before the last one earns nothing. Not safe in several threads: `RateLimiter` is.
    """

    __slots__ = ("_at", "_tokens", "burst", "per_second")

    def __init__(self, burst: float, per_second: float) -> None:
        self.burst, self.per_second = burst, per_second
        self._tokens, self._at = float(burst), -math.inf

    def available(self, now: float) -> float:
        """Return the tokens at `now`; below zero after `spend` took more than there were."""
        elapsed = now - self._at
        if elapsed > 0:
            self._tokens = min(self.burst, self._tokens + elapsed * self.per_second)
            self._at = now
        return self._tokens

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Take `amount` tokens; return False and take none if there are fewer."""
        if self.available(now) < amount:
            return False
        self._tokens -= amount
        return True

    def spend(self, now: float, amount: float = 1.0) -> None:
        """Take `amount` tokens even if there are fewer: later ones pay for them."""
        self._tokens = self.available(now) - amount

    def wait_s(self, now: float, amount: float = 1.0) -> float:
        """Return the seconds until there are `amount` tokens; 0 if there are."""
        return max(0.0, (amount - self.available(now)) / self.per_second)

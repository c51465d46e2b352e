"""Pauses of random length, so that many nodes do not retry at the same moment."""

import random

_SYSTEM = random.SystemRandom()
"""It has no state: threads and forked children share nothing."""


def pick_random_pause_seconds(least_s: float, most_s: float) -> float:
    """Return a number of seconds between both, each equally likely."""
    return _SYSTEM.uniform(least_s, most_s)

"""Waiting for what must come about."""

import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE_S: Final = 60.0
"""The least that `until` waits: it bounds failures, and a busy machine is slow."""
LONGER_AND_LONGER: Final = (0.5, 2.0, 8.0, 20.0)
"""Time limits in seconds, for what has to do something before its limit ends it: a busy machine may
need seconds to start a program."""


def until(so: Callable[[], Any], seconds: float = 10.0, every: float = 0.02) -> Any:
    """What `so` finds, as soon as it finds anything. AssertionError where that is not in time."""
    patience_s = max(seconds, PATIENCE_S)
    end = time.monotonic() + patience_s
    while not (found := so()):
        assert time.monotonic() < end, f"not within {patience_s:g} s"
        time.sleep(every)
    return found

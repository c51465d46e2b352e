"""Waiting for what must come about."""

import time
from collections.abc import Callable
from typing import Any


def until(so: Callable[[], Any], seconds: float = 10.0, every: float = 0.02) -> Any:
    """What `so` finds, as soon as it finds anything. AssertionError where that is not in time."""
    end = time.monotonic() + seconds
    while not (found := so()):
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(every)
    return found

"""Waiting for what must come about."""

import time
from collections.abc import Callable


def until(so: Callable[[], object], seconds: float = 10.0) -> None:
    """Until `so` is true. AssertionError where it is not within its time."""
    end = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.02)

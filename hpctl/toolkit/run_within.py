"""Run a program that may hang where no signal reaches it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import IO

from hpctl.toolkit.bounded_child import BoundedSubprocess


def run_program_with_timeout(
    command: Sequence[str], seconds: float, *, out: IO[bytes], error: IO[bytes] | int | None = None
) -> int | None:
    """Run a program with its output in a file and return its exit code; None after `seconds`.

    The program is killed then, and not waited for. It stays in the process group of its caller.
    Raises OSError where the program cannot be started.
    """
    child = BoundedSubprocess(command, directory=None, stdout=out, stderr=error, own_group=False)
    done = False
    try:
        done = child.wait(time.monotonic() + seconds)
    finally:
        code = child.end(_REAP_S if done else 0.0)
    return code if done else None


_REAP_S = 10.0
"""How long an ended process may take to be reaped; it takes no time."""

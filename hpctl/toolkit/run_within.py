"""Run a program that may hang where no signal reaches it."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from typing import IO

_left: list[subprocess.Popen[bytes]] = []
_lock = threading.Lock()


def run_within(
    command: Sequence[str], seconds: float, *, out: IO[bytes], error: IO[bytes] | int | None = None
) -> int | None:
    """Run a program with its output in a file and return its exit code; None after `seconds`.

    The program is killed then, and not waited for, as `subprocess.run` would: a process that sleeps
    in the kernel (state D), as on a dead file server, ends when that call ends. It is reaped by a
    later call. Raises OSError where the program cannot be started.
    """
    _reap_left()
    started = subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=error)
    try:
        return started.wait(seconds)
    except subprocess.TimeoutExpired:
        started.kill()
        with _lock:
            _left.append(started)
        return None
    except BaseException:
        started.kill()
        raise


def _reap_left() -> None:
    with _lock:
        _left[:] = [each for each in _left if each.poll() is None]

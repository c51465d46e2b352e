"""Children and children's children: found, killed, collected."""

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (see prctl(2)).

    So a daemon that detaches itself, changes its session and clears its environment is still found.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Get a signal when the thread that started this process ends."""
    _prctl(PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def list_descendants(of: int, spare: frozenset[int] = frozenset()) -> dict[int, str]:
    """Return the processes below one, with their names; zombies are left out.

    `spare` and what is below that is left out as well: in one reading, because a process that
    starts between two readings would be in the second alone.
    """
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            head, _, rest = place.read_text(errors="replace").rpartition(")")
            state, parent = rest.split()[:2]
            pid = int(place.parent.name)
            children.setdefault(int(parent), []).append(pid)
            if state != "Z":
                names[pid] = head.partition("(")[2]
    found: dict[int, str] = {}
    waiting = [of]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            if pid in spare:
                continue
            waiting.append(pid)
            if pid in names:
                found[pid] = names[pid]
    return found


def collect_zombies() -> dict[int, int]:
    """Collect every child that has ended; return the exit codes (negative: the signal)."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def kill_descendants(limit_s: float = 5.0, spare: frozenset[int] = frozenset()) -> dict[int, str]:
    """Kill every process below this one but `spare` and what is below that; collect them.

    Returns what is still there after `limit_s`: a process that waits inside the kernel.
    Call it only in a process that has called `adopt_orphans` and no longer waits for a child.
    """
    end = time.monotonic() + limit_s
    while True:
        alive = list_descendants(os.getpid(), spare)
        if not alive or time.monotonic() > end:
            return alive
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not spare:
            collect_zombies()
        time.sleep(0.02)

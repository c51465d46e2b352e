"""Ways to keep a process from running, each undone at the end of its `with`."""

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.waiting import until

_LIBC = ctypes.CDLL(None, use_errno=True)
_SEIZE, _INTERRUPT, _DETACH, _WALL = 0x4206, 0x4207, 17, 0x40000000
FREEZER_V1 = Path("/sys/fs/cgroup/freezer")
CPU_V1 = Path("/sys/fs/cgroup/cpu")
CGROUP_V2 = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def traced(pid: int) -> Iterator[None]:
    """As a debugger does it: all threads are interrupted by ptrace."""
    threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    for thread in threads:
        for request in (_SEIZE, _INTERRUPT):
            assert _LIBC.ptrace(request, thread, None, None) == 0, os.strerror(ctypes.get_errno())
        os.waitpid(thread, _WALL)
    try:
        yield
    finally:
        for thread in threads:
            _LIBC.ptrace(_DETACH, thread, None, None)


@contextmanager
def _in_group(top: Path, pid: int) -> Iterator[Path]:
    """A group below a fresh one, with the process in it; yields the upper of the two."""
    upper = top / f"hpctl-test-{os.getpid()}"
    lower = upper / "lower"
    lower.mkdir(parents=True)
    (lower / "cgroup.procs").write_text(str(pid))
    try:
        yield upper
    finally:
        (top / "cgroup.procs").write_text(str(pid))
        lower.rmdir()
        upper.rmdir()


@contextmanager
def frozen_v1(pid: int) -> Iterator[None]:
    """By an ancestor of its own group."""
    with _in_group(FREEZER_V1, pid) as upper:
        (upper / "freezer.state").write_text("FROZEN")
        try:
            yield
        finally:
            (upper / "freezer.state").write_text("THAWED")


@contextmanager
def frozen_v2(pid: int) -> Iterator[None]:
    """By an ancestor of its own group."""
    with _in_group(_v2(), pid) as upper:
        (upper / "cgroup.freeze").write_text("1")
        try:
            yield
        finally:
            (upper / "cgroup.freeze").write_text("0")
            until(lambda: "frozen 0" in (upper / "lower/cgroup.events").read_text())


@contextmanager
def starved(pid: int) -> Iterator[None]:
    """One millisecond of processor time a second."""
    with _in_group(CPU_V1, pid) as upper:
        (upper / "cpu.cfs_period_us").write_text("1000000")
        (upper / "cpu.cfs_quota_us").write_text("1000")
        yield


def _v2() -> Path:
    return next(top for top in CGROUP_V2 if (top / "cgroup.controllers").exists())


Halt = Callable[[int], AbstractContextManager[None]]


def halts() -> dict[str, tuple[Halt, str]]:
    """What this machine allows: the way to halt a process, and how the reason begins.

    Cgroups need root and a hierarchy that can be written. The unit tests of the cgroups' files
    run everywhere.
    """
    found: dict[str, tuple[Halt, str]] = {
        "SIGSTOP": (stopped, "the NVML child is stopped"),
        "debugger": (traced, "the NVML child is stopped"),
    }
    if os.geteuid() != 0:
        return found
    if os.access(FREEZER_V1, os.W_OK):
        found["freezer v1"] = (frozen_v1, "the NVML child is frozen")
    if any(os.access(top / "cgroup.procs", os.W_OK) for top in CGROUP_V2):
        found["freezer v2"] = (frozen_v2, "the NVML child is frozen")
    if os.access(CPU_V1, os.W_OK):
        found["cpu quota"] = (starved, "the NVML child gets no processor time")
    return found

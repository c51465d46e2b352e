"""Time in which the NVML child does not answer for a reason that is not the driver's.

A call that does not return is `gpu.hung`, a fault that stops jobs and reboots the node. But a child
that does not run does not answer either. So before it reports the driver, the client examines the
thread that makes the call:

- state T or t: a signal (SIGSTOP) or a debugger has stopped it;
- its cgroup is frozen: `freezer.state` is FROZEN (v1) or `cgroup.events` says `frozen 1` (v2). Both
  files of the thread's own cgroup also show that an ancestor is frozen. The state letter does not
  help: a frozen thread is D on v1 and S on v2 (Linux 6.18). A cgroup that is FREEZING has a task
  that does not leave the kernel, and is not frozen;
- state R at two observations, with almost no processor time in between: it waits for a processor
  (`cpu.max`, real-time tasks). With processor time it spins in the driver.

States D and S, and R with processor time, are the driver's: that time counts. So does a stop that
is only pending: a thread in state D keeps that state when it is sent SIGSTOP.

Time in which the agent itself did not run does not count either: it appears as a long pause between
two observations.
"""

import os
from collections import deque
from pathlib import Path

from msgspec import Struct

from hpctl.detection.procs import read_proc_stat_fields

STOPPED = "the NVML child is stopped (SIGSTOP or a debugger)"
FROZEN = "the NVML child is frozen by its cgroup"
STARVED = "the NVML child gets no processor time"
PROC = Path("/proc")

STARVED_SHARE = 0.05
"""Of one core. A full sweep of an H200 takes 16 ms of processor time: a thread that gets 5 % of a
core for 20 s gets 60 times as much."""
_MOST_PAUSES = 1024
"""Pauses of one call; beyond this number the oldest counts again."""
_STOPPED_STATES = frozenset("Tt")
_RUNNABLE = "R"
_TICKS = os.sysconf("SC_CLK_TCK")


class ThreadSample(Struct, frozen=True):
    """One thread at one time. `halted` is why it cannot run, empty where it can."""

    thread: int
    halted: str
    runnable: bool
    cpu_s: float


def sample_thread_state(pid: int, thread: int, proc: Path = PROC) -> ThreadSample | None:
    """Sample one thread of a process (`thread` is its kernel id); None once it has ended."""
    stat = read_proc_stat_fields(str(proc / str(pid) / "task" / str(thread) / "stat"))
    if stat is None:
        return None
    _name, fields = stat
    state, user, system = fields[0], fields[11], fields[12]
    halted = ""
    if state in _STOPPED_STATES:
        halted = STOPPED
    elif is_process_frozen(pid, proc):
        halted = FROZEN
    return ThreadSample(thread, halted, state == _RUNNABLE, (int(user) + int(system)) / _TICKS)


def is_process_frozen(pid: int, proc: Path = PROC) -> bool:
    """Return whether the cgroup of a process or an ancestor of it is frozen, v1 or v2."""
    try:
        memberships = (proc / str(pid) / "cgroup").read_text(errors="replace")
        mounts = (proc / "self/mountinfo").read_text(errors="replace")
    except OSError:
        return False
    for line in memberships.splitlines():
        _hierarchy, controllers, path = line.split(":", 2)
        if controllers and "freezer" not in controllers.split(","):
            continue
        folder = _find_cgroup_directory(path, v2=not controllers, mounts=mounts)
        if folder is not None and _is_cgroup_frozen(folder):
            return True
    return False


def _find_cgroup_directory(path: str, *, v2: bool, mounts: str) -> Path | None:
    """Return where a cgroup of that path is mounted; see proc(5) for the fields of mountinfo."""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, rest = right.partition(" ")
        if v2 and kind != "cgroup2":
            continue
        if not v2 and (kind != "cgroup" or "freezer" not in rest.split()[-1].split(",")):
            continue
        root, mount_point = left.split()[3:5]
        below = path.removeprefix(root) if path.startswith(root.rstrip("/") + "/") else path
        if path == root:
            below = ""
        # A cgroup outside of our namespace is `/../...`: it cannot be read from here.
        return None if ".." in below.split("/") else Path(mount_point, below.lstrip("/"))
    return None


def _is_cgroup_frozen(folder: Path) -> bool:
    for file, frozen in (("freezer.state", "FROZEN"), ("cgroup.events", "frozen 1")):
        try:
            lines = (folder / file).read_text().splitlines()
        except OSError:
            continue  # the other version's file, or the root cgroup, which cannot be frozen
        if frozen in lines:
            return True
    return False


class NvmlChildPauseTracker:
    """The time that does not count, as the client's observations of the child find it.

    `longest_s`: no pause between two observations counts for longer. The class reads no clock.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._lost: deque[tuple[float, float]] = deque(maxlen=_MOST_PAUSES)
        self._last_at: float | None = None
        self._last: ThreadSample | None = None
        self.reason = ""
        """Why the child does not answer, by the last observation; empty for no such reason."""

    def calm(self, now: float) -> None:
        """Record an observation of a child that answers."""
        self._lost.clear()
        self._last_at, self._last, self.reason = now, None, ""

    def overdue(self, now: float, seen: ThreadSample | None) -> None:
        """Record an observation of a child that does not answer; `seen` is the thread in the
        call."""
        began, before = self._last_at, self._last
        self._last_at, self._last = now, seen
        self.reason = "" if seen is None else seen.halted
        if began is None:
            return
        if self.reason or (before is not None and before.halted):
            # The exact time at which it was stopped or continued is unknown.
            self._add_pause_interval(began, now)
        elif now - began > self._longest_s:
            self._add_pause_interval(began + self._longest_s, now)
            self.reason = f"the agent itself did not run for {now - began:.0f} s"
        elif _is_thread_starved(before, seen, now - began):
            self._add_pause_interval(began, now)
            self.reason = STARVED

    def compute_observation_age_s(self, now: float) -> float:
        """Return the seconds since the last observation; infinite before the first."""
        return float("inf") if self._last_at is None else now - self._last_at

    def compute_unpaused_s(self, since: float, now: float) -> float:
        """Return the seconds between two times, without those that do not count."""
        lost_s = sum(max(0.0, min(end, now) - max(start, since)) for start, end in self._lost)
        return now - since - lost_s

    def _add_pause_interval(self, start: float, end: float) -> None:
        if self._lost and self._lost[-1][1] == start:
            start = self._lost.pop()[0]
        self._lost.append((start, end))


def _is_thread_starved(
    before: ThreadSample | None, seen: ThreadSample | None, elapsed_s: float
) -> bool:
    if before is None or seen is None or before.thread != seen.thread:
        return False
    used_s = seen.cpu_s - before.cpu_s
    return before.runnable and seen.runnable and used_s < STARVED_SHARE * elapsed_s

"""What a process has used so far, as /proc counts it, and what that makes in an hour."""

import os
import re
import time
from pathlib import Path

from msgspec import Struct

PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK")
_MB = 1e6


class Reading(Struct, frozen=True):
    """One process at one time: seconds of processor time, MB, and voluntary context switches.

    `children_s` is the time of the children that it has waited for, and of theirs.
    """

    at: float
    own_s: float
    children_s: float
    peak_mb: float
    resident_mb: float
    switches: int


class Cost(Struct, frozen=True):
    """Between two readings: processor seconds an hour, wakeups a second; the peak is the last."""

    own_s_per_hour: float
    children_s_per_hour: float
    wakeups_per_s: float
    peak_mb: float
    resident_mb: float

    @property
    def s_per_hour(self) -> float:
        """With the programs that it ran."""
        return self.own_s_per_hour + self.children_s_per_hour


def read(pid: int, proc: Path = PROC) -> Reading:
    """Raises OSError when the process has ended."""
    folder = proc / str(pid)
    # The name may hold blanks and brackets: the fields begin behind the last bracket.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    user, system, waited_user, waited_system = (int(fields[i]) / _TICKS for i in range(11, 15))
    status = (folder / "status").read_text()
    tasks = [status_of.read_text() for status_of in folder.glob("task/*/status")]
    return Reading(
        time.monotonic(),
        user + system,
        waited_user + waited_system,
        _number(status, "VmHWM") * 1024 / _MB,
        _number(status, "VmRSS") * 1024 / _MB,
        sum(_number(text, "voluntary_ctxt_switches") for text in tasks),
    )


def cost(before: Reading, after: Reading) -> Cost:
    """What the process used between the two."""
    seconds = after.at - before.at
    return Cost(
        (after.own_s - before.own_s) * 3600 / seconds,
        (after.children_s - before.children_s) * 3600 / seconds,
        (after.switches - before.switches) / seconds,
        after.peak_mb,
        after.resident_mb,
    )


def children(pid: int, proc: Path = PROC) -> list[int]:
    """The living children of a process."""
    found = []
    for stat in proc.glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # ended between the two looks
        if parent == pid:
            found.append(int(stat.parent.name))
    return sorted(found)


def tree_mb(pid: int, proc: Path = PROC) -> float:
    """The memory of a process and its descendants in MB; what they share counts once (Pss)."""
    # A child that has not become its program yet is still a copy of us.
    own = 0.0 if command(pid, proc) == command(os.getpid()) else _pss_mb(pid, proc)
    return own + sum(tree_mb(child, proc) for child in children(pid, proc))


def _pss_mb(pid: int, proc: Path) -> float:
    try:
        return _number((proc / str(pid) / "smaps_rollup").read_text(), "Pss") * 1024 / _MB
    except OSError:
        return 0.0


def command(pid: int, proc: Path = PROC) -> list[str]:
    """Its arguments; none once it has ended."""
    try:
        return (proc / str(pid) / "cmdline").read_text(errors="replace").split("\0")[:-1]
    except OSError:
        return []


def _number(status: str, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)
    return int(match[1]) if match else 0

"""What Linux offers and Python does not: who dies with whom, and whose child is whose."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends, instead of init: so
    that none can hide from `descendants` by leaving its process group."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """SIGKILL this process when the thread that forked it ends; now, where `parent` has ended."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def descendants(root: int) -> set[int]:
    """Every living process under `root`, zombies left out. One that forks meanwhile may be missed,
    so ask again until there is none."""
    children = _children_of if Path(f"/proc/{root}/task/{root}/children").exists() else _table()
    found: set[int] = set()
    front = [root]
    while front:
        fresh = children(front.pop()) - found
        found |= fresh
        front += fresh
    return {pid for pid in found if lives(pid)}


def _children_of(pid: int) -> set[int]:
    """From the kernel's own list (CONFIG_PROC_CHILDREN): no need to read every process."""
    found: set[int] = set()
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found |= {int(word) for word in (task / "children").read_text().split()}
    except OSError:
        pass  # it has ended since: its children have another parent now
    return found


def _table() -> Callable[[int], set[int]]:
    children: dict[int, set[int]] = defaultdict(set)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            children[int(stat[1])].add(int(entry.name))
    return lambda pid: children[pid]


def lives(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    stat = _stat(pid)
    return bool(stat) and stat[0] not in "ZX"


def _stat(pid: int) -> list[str]:
    """State, parent, ...; nothing for a process that has ended."""
    try:
        # A name that a process gave itself is cut at 15 bytes, in the middle of a letter perhaps.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal; false where it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False

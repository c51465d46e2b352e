"""The processes of one node's ranks: started, watched, and ended with all that they started.

Each rank leads a session of its own, dies with this process, and what it leaves behind becomes our
child (we are the subreaper), so that `stop` can say with certainty that nothing is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hpctl.core.bounds import printable
from hpctl.jobs.elastic.options import Program
from hpctl.jobs.elastic.wire import wait_for

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


KILL_S = 30.0
"""How long after SIGKILL a process may still be there. Longer, and the node is faulty: a process
in uninterruptible sleep holds the GPU that the next generation needs."""

Ended = Callable[[int, int], None]
"""Local rank and status (-n for signal n)."""


class UnkillableProcesses(Exception):
    """Processes that SIGKILL did not end."""


class RankProcesses:
    """The ranks of this node. Make it in the main thread of a running asyncio loop."""

    def __init__(self, program: Program, ended: Ended) -> None:
        self._program, self._ended = program, ended
        self._alive: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        self._changed = asyncio.Event()
        adopt_orphans()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def start(self, environments: Sequence[Mapping[str, str]]) -> None:
        """Start one rank for each environment."""
        for local, environment in enumerate(environments):
            self._spawn(local, environment)

    def signal_who_catch(self, number: int) -> None:
        """Send a signal to the ranks that have a handler for it: others it would end."""
        for pid in self._alive:
            if catches(pid, number):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, `grace_s`, SIGKILL; returns when no rank and nothing they started is left.

        Raises WillNotDie after KILL_S.
        """
        for pid in self._alive:
            _kill_group(pid, signal.SIGTERM)
            _kill_group(pid, signal.SIGCONT)  # one that is stopped would not see the other
        limit = time.monotonic() + grace_s
        while self._alive and (left := limit - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await wait_for(self._changed.wait(), left)
        await self._sweep()

    async def _sweep(self) -> None:
        limit = time.monotonic() + KILL_S
        pause = 0.001
        while left := self._left():
            if time.monotonic() > limit:
                raise UnkillableProcesses(", ".join(str(pid) for pid in sorted(left)))
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(pause)
            pause = min(0.1, pause * 2)

    def _left(self) -> set[int]:
        return descendants(os.getpid()) | set(self._alive)

    def _spawn(self, local: int, environment: Mapping[str, str]) -> None:
        parent = os.getpid()
        try:
            self._program.check()
            process = subprocess.Popen(
                self._program.argv,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 (one thread forks)
            )
        except OSError as error:
            print(
                printable(f"hpctl elastic: cannot start a rank: {error}"),
                file=sys.stderr,
                flush=True,
            )
            code = 126 if isinstance(error, PermissionError) else 127
            asyncio.get_running_loop().call_soon(self._ended, local, code)
            return
        self._alive[process.pid] = (local, process)

    def _reap(self) -> None:
        """Every child that has ended: ranks, and orphans that became ours."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                return
            if found is None:
                return
            killed = found.si_code != os.CLD_EXITED
            status = -found.si_status if killed else found.si_status
            if found.si_pid in self._alive:
                local, process = self._alive.pop(found.si_pid)
                process.returncode = status
                self._changed.set()
                self._ended(local, status)


def _kill_group(pid: int, number: int) -> None:
    """Signal a rank's process group. The rank is not reaped yet, so the id is still its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)

"""The processes of one node's ranks: started, watched, and ended with all that they started.

Each rank leads a session of its own, dies with this process, and what it leaves behind becomes our
child (we are the subreaper), so that `stop` can say with certainty that nothing is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpctl.core.bounds import printable
from hpctl.jobs.elastic import linux
from hpctl.jobs.elastic.program import Program
from hpctl.jobs.elastic.warm import Template
from hpctl.jobs.elastic.wire import wait_for

KILL_S = 30.0
"""How long after SIGKILL a process may still be there. Longer, and the node is faulty: a process
in uninterruptible sleep holds the GPU that the next generation needs."""

Ended = Callable[[int, int], None]
"""Local rank and status (-n for signal n)."""


class WillNotDie(Exception):
    """Processes that SIGKILL did not end."""


@dataclass(slots=True)
class _Rank:
    local: int
    process: subprocess.Popen[bytes] | None = None
    """None for one that the template forked."""


class Ranks:
    """The ranks of this node. Make it in the main thread of a running asyncio loop."""

    def __init__(self, program: Program, ended: Ended, template: Template | None = None) -> None:
        self._program, self._ended, self._template = program, ended, template
        self._alive: dict[int, _Rank] = {}
        self._changed = asyncio.Event()
        linux.adopt_orphans()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    async def start(self, environments: Sequence[Mapping[str, str]]) -> None:
        """Start one rank for each environment: from the template where it is fit, else anew."""
        template = self._template
        if template is not None and await template.ready():
            for local, environment in enumerate(environments):
                pid = await template.fork(environment)
                if pid:
                    self._alive[pid] = _Rank(local)
                    template.watch(pid, self._forked_ended)
                    if not template.pid and not linux.lives(pid):
                        self._over(pid, -signal.SIGKILL)  # both died before we knew of the rank
                else:
                    self._spawn(local, environment)
            return
        for local, environment in enumerate(environments):
            self._spawn(local, environment)

    def signal_who_catch(self, number: int) -> None:
        """Send a signal to the ranks that have a handler for it: others it would end."""
        for pid in self._alive:
            if linux.catches(pid, number):
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

    async def close(self) -> None:
        """End the template too."""
        if self._template is not None:
            self._template.close()

    async def _sweep(self) -> None:
        limit = time.monotonic() + KILL_S
        pause = 0.001
        while left := self._left():
            if time.monotonic() > limit:
                raise WillNotDie(", ".join(str(pid) for pid in sorted(left)))
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(pause)
            pause = min(0.1, pause * 2)

    def _left(self) -> set[int]:
        found = linux.descendants(os.getpid()) | set(self._alive)
        return found - {self._template.pid} if self._template is not None else found

    def _spawn(self, local: int, environment: Mapping[str, str]) -> None:
        parent = os.getpid()
        try:
            self._program.check()
            process = subprocess.Popen(
                self._program.argv,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=lambda: linux.die_with_parent(parent),  # noqa: PLW1509 (one thread forks)
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
        self._alive[process.pid] = _Rank(local, process)

    def _reap(self) -> None:
        """Every child that has ended: ranks, the template, and orphans that became ours."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)
            except ChildProcessError:
                return
            if found is None:
                return
            killed = found.si_code != os.CLD_EXITED
            status = -found.si_status if killed else found.si_status
            if self._template is not None and found.si_pid == self._template.pid:
                self._template.ended()
            elif found.si_pid in self._alive:
                self._over(found.si_pid, status)

    def _forked_ended(self, pid: int, status: int) -> None:
        """The template tells of one of its children; it holds the process id until we answer."""
        if pid in self._alive:
            self._over(pid, status)

    def _over(self, pid: int, status: int) -> None:
        rank = self._alive.pop(pid)
        if rank.process is not None:
            rank.process.returncode = status
        self._changed.set()
        self._ended(rank.local, status)


def _kill_group(pid: int, number: int) -> None:
    """Signal a rank's process group. The rank is not reaped yet, so the id is still its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)

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

from hpctl.core.bounds import printable
from hpctl.jobs.elastic import linux
from hpctl.jobs.elastic.program import Program
from hpctl.jobs.elastic.wire import wait_for

KILL_S = 30.0
"""How long after SIGKILL a process may still be there. Longer, and the node is faulty: a process
in uninterruptible sleep holds the GPU that the next generation needs."""

Ended = Callable[[int, int], None]
"""Local rank and status (-n for signal n)."""


class WillNotDie(Exception):
    """Processes that SIGKILL did not end."""


class Ranks:
    """The ranks of this node. Make it in the main thread of a running asyncio loop."""

    def __init__(self, program: Program, ended: Ended) -> None:
        self._program, self._ended = program, ended
        self._alive: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        self._changed = asyncio.Event()
        linux.adopt_orphans()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)

    def start(self, environments: Sequence[Mapping[str, str]]) -> None:
        """Start one rank for each environment."""
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
        return linux.descendants(os.getpid()) | set(self._alive)

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

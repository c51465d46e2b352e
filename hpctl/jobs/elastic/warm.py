"""The launcher's end of the warm template (template.py): start it, have it fork, hear of ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpctl.core.bounds import printable
from hpctl.jobs.elastic import template as template_file
from hpctl.jobs.elastic.program import Program
from hpctl.jobs.elastic.wire import wait_for

_NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With it `torch.cuda.is_available()`, which many libraries call when they are imported, asks NVML
and leaves CUDA alone. The ranks do not get it."""

READY_S = 300.0
"""How long the imports may take: torch from a cold network file system is slow."""
FORK_S = 10.0
SEND_S = 5.0


class Template:
    """A process that has imported `modules` already. Where it cannot be used, `ready` is false and
    one line has said why; the ranks are then started anew each."""

    def __init__(self, program: Program, modules: str, environment: Mapping[str, str]) -> None:
        self.pid = 0
        self._program, self._modules, self._environment = program, modules, dict(environment)
        self._ready = asyncio.Event()
        self._fit = True
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._buffer = b""
        self._forks: dict[int, asyncio.Future[int]] = {}
        self._watched: dict[int, Callable[[int, int], None]] = {}
        self._early: dict[int, int] = {}
        self._count = 0
        self._start()

    async def ready(self) -> bool:
        """Wait for its imports; whether it can fork. Starts a new one where the last has died."""
        if not self._fit:
            return False
        if self._process is None:
            self._start()
        try:
            await wait_for(self._ready.wait(), READY_S)
        except TimeoutError:
            self._unfit(f"its imports took longer than {READY_S:g} s")
        return self._fit and self._process is not None

    async def fork(self, environment: Mapping[str, str]) -> int:
        """Start a rank with this environment; its process id, or 0 where that failed."""
        if self._channel is None:
            return 0
        self._count += 1
        told = asyncio.get_running_loop().create_future()
        self._forks[self._count] = told
        changed = {k: v for k, v in environment.items() if self._environment.get(k) != v}
        order = {
            "start": self._count,
            "env": changed,
            "unset": [
                name for name in (_NVML_CHECK, *self._environment) if name not in environment
            ],
            "argv": list(self._program.warm),
            "module": self._program.module,
        }
        self._send(order)
        try:
            return await wait_for(told, FORK_S)
        except TimeoutError:
            self._unfit(f"it did not fork within {FORK_S:g} s")
            return 0

    def watch(self, pid: int, ended: Callable[[int, int], None]) -> None:
        """Have `ended(pid, status)` called once when that rank has ended."""
        if pid in self._early:
            self._tell_end(pid, self._early.pop(pid), ended)
        else:
            self._watched[pid] = ended

    def ended(self) -> None:
        """The template itself is gone (the reaper says). Its ranks die with it and come to us."""
        self._gone()

    def close(self) -> None:
        """End it, and any rank of it that is left. Waits for the process, which is killed."""
        self._fit = False
        pid = self.pid
        self._drop()
        if pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(SEND_S)
        words = [str(theirs.fileno()), str(os.getpid()), self._modules]
        try:
            self._process = subprocess.Popen(
                [self._program.python, "-u", str(Path(template_file.__file__)), *words],
                env={_NVML_CHECK: "1", **self._environment},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            self._unfit(str(error))
            return
        finally:
            theirs.close()
        self.pid, self._channel, self._buffer = self._process.pid, ours, b""
        self._ready.clear()
        asyncio.get_running_loop().add_reader(ours, self._read)

    def _read(self) -> None:
        if self._channel is None:
            return
        try:
            got = self._channel.recv(65536)
        except OSError:
            got = b""
        if not got:
            self._gone()
            return
        *lines, self._buffer = (self._buffer + got).split(b"\n")
        for line in lines:
            self._heard(json.loads(line))

    def _heard(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self._ready.set()
        elif "unfit" in message:
            self._unfit(str(message["unfit"]))
        elif "started" in message:
            told = self._forks.pop(message["started"], None)
            if told is not None and not told.done():
                told.set_result(message["pid"])
        elif "ended" in message:
            pid, status = message["ended"], message["status"]
            if pid in self._watched:
                self._tell_end(pid, status, self._watched.pop(pid))
            else:
                self._early[pid] = status

    def _tell_end(self, pid: int, status: int, ended: Callable[[int, int], None]) -> None:
        ended(pid, status)
        self._send({"reap": pid})

    def _send(self, message: dict[str, Any]) -> None:
        if self._channel is None:
            return
        # A few KB to a process that reads at once: only one that is stuck makes this wait. Where it
        # fails the end of the socket, or the fork that never comes, tells.
        with contextlib.suppress(OSError):
            self._channel.sendall(json.dumps(message).encode() + b"\n")

    def _gone(self) -> None:
        """Its end, seen by the reaper or by the socket, whichever comes first."""
        if self._fit and not self._ready.is_set():
            self._unfit("it ended during its imports")  # another one would too
        else:
            self._drop()

    def _unfit(self, why: str) -> None:
        self._fit = False
        print(printable(f"hpctl elastic: no warm starts: {why}"), file=sys.stderr, flush=True)
        self._drop()

    def _drop(self) -> None:
        if self._channel is not None:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()
        if self._process is not None and self._process.returncode is None:
            self._process.returncode = 0  # the reaper collects it, not Popen
        self._channel, self._process, self.pid = None, None, 0
        for told in self._forks.values():
            if not told.done():
                told.set_result(0)
        self._forks.clear()
        self._watched.clear()
        self._ready.set()

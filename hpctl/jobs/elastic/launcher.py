"""One node's half of the group: does what the controller says, reports what became of its ranks."""

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from hpctl.jobs.elastic import PYTHON, RESULT, SECRET, group, wire
from hpctl.jobs.elastic.controller import print_launcher_log_line
from hpctl.jobs.elastic.group import LOST, STOPPED
from hpctl.jobs.elastic.options import LauncherLocation, LauncherOptions, RankProgram
from hpctl.jobs.elastic.wire import await_with_timeout
from hpctl.jobs.job_processes import has_signal_handler
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.jitter import pick_random_pause_seconds
from hpctl.wire import job_ports

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def become_child_subreaper() -> None:
    """Make this process the parent of descendants whose own parent ends, instead of init: so
    that none can hide from `list_descendants` by leaving its process group."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def set_parent_death_signal(parent: int) -> None:
    """Have this process killed (SIGKILL) when the thread that forked it ends; now, where `parent`
    has ended."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def list_descendant_processes(root: int) -> set[int]:
    """Return every living process under `root`, zombies left out. One that forks meanwhile may be
    missed, so ask again until there is none."""
    children = (
        _list_child_pids
        if Path(f"/proc/{root}/task/{root}/children").exists()
        else _make_child_pid_lookup()
    )
    found: set[int] = set()
    front = [root]
    while front:
        fresh = children(front.pop()) - found
        found |= fresh
        front += fresh
    return {pid for pid in found if is_process_alive(pid)}


def _list_child_pids(pid: int) -> set[int]:
    """Return the children by the kernel's own list (CONFIG_PROC_CHILDREN): no need to read every
    process."""
    found: set[int] = set()
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found |= {int(word) for word in (task / "children").read_text().split()}
    except OSError:
        pass  # it has ended since: its children have another parent now
    return found


def _make_child_pid_lookup() -> Callable[[int], set[int]]:
    children: dict[int, set[int]] = defaultdict(set)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _read_process_stat_fields(int(entry.name))):
            children[int(stat[1])].add(int(entry.name))
    return lambda pid: children[pid]


def is_process_alive(pid: int) -> bool:
    """Return whether there is such a process, and it is no zombie."""
    stat = _read_process_stat_fields(pid)
    return bool(stat) and stat[0] not in "ZX"


def _read_process_stat_fields(pid: int) -> list[str]:
    """Return state, parent, ...; nothing for a process that has ended."""
    try:
        # A name that a process gave itself is cut at 15 bytes, in the middle of a letter perhaps.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


KILL_S = 30.0
"""How long after SIGKILL a process may still be there. Longer, and the node is faulty: a process
in uninterruptible sleep holds the GPU that the next generation needs."""

Ended = Callable[[int, int], None]
"""Local rank and status (-n for signal n)."""


class UnkillableProcessesError(Exception):
    """Processes that SIGKILL did not end."""


class RankProcesses:
    """The ranks of this node. Make it in the main thread of a running asyncio loop."""

    def __init__(self, program: RankProgram, ended: Ended) -> None:
        self._program, self._ended = program, ended
        self._alive: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        self._changed = asyncio.Event()
        become_child_subreaper()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap_children)

    def send_signal_to_ranks_handling_it(self, number: int) -> None:
        """Send a signal to the ranks that have a handler for it: others it would end."""
        for pid in self._alive:
            if has_signal_handler(pid, number):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, wait `grace_s`, send SIGKILL; return when no rank and nothing they started
        is left.

        Raise UnkillableProcessesError after KILL_S.
        """
        for pid in self._alive:
            _signal_process_group(pid, signal.SIGTERM)
            _signal_process_group(
                pid, signal.SIGCONT
            )  # one that is stopped would not see the other
        limit = time.monotonic() + grace_s
        while self._alive and (left := limit - time.monotonic()) > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await await_with_timeout(self._changed.wait(), left)
        await self._kill_remaining_processes()

    async def _kill_remaining_processes(self) -> None:
        limit = time.monotonic() + KILL_S
        pause = 0.001
        while left := self._list_remaining_processes():
            if time.monotonic() > limit:
                raise UnkillableProcessesError(", ".join(str(pid) for pid in sorted(left)))
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(pause)
            pause = min(0.1, pause * 2)

    def _list_remaining_processes(self) -> set[int]:
        return list_descendant_processes(os.getpid()) | set(self._alive)

    def start(self, local: int, environment: Mapping[str, str]) -> None:
        """Start one rank."""
        parent = os.getpid()
        try:
            self._program.check()
            process = subprocess.Popen(
                self._program.argv,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=lambda: set_parent_death_signal(parent),  # noqa: PLW1509 (one thread forks)
            )
        except OSError as error:
            print(
                make_printable(f"hpctl elastic: cannot start a rank: {error}"),
                file=sys.stderr,
                flush=True,
            )
            code = 126 if isinstance(error, PermissionError) else 127
            asyncio.get_running_loop().call_soon(self._ended, local, code)
            return
        self._alive[process.pid] = (local, process)

    def _reap_children(self) -> None:
        """Reap every child that has ended: ranks, and orphans that became ours."""
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


def _signal_process_group(pid: int, number: int) -> None:
    """Signal a rank's process group. The rank is not reaped yet, so the id is still its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def build_rank_environment(  # noqa: PLR0913 -- pure: all that a rank is given, by keyword
    base: Mapping[str, str],
    order: Mapping[str, Any],
    place: LauncherLocation,
    *,
    local: int,
    locals_: int,
    error_file: Path,
) -> dict[str, str]:
    """Return the environment of one rank. `order` is the controller's message that starts a
    generation."""
    rank, world = str(order["base"] + local), str(order["world"])
    fresh = {
        **base,
        "RANK": rank,
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(locals_),
        "GROUP_RANK": str(place.node),
        "GROUP_WORLD_SIZE": str(order["nodes"]),
        "ROLE_NAME": "default",
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": str(order["address"]),
        "MASTER_PORT": str(order["port"]),
        "TORCHELASTIC_RESTART_COUNT": str(order["start"]),
        "TORCHELASTIC_MAX_RESTARTS": str(order["max_restarts"]),
        "TORCHELASTIC_RUN_ID": place.run_id,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": str(error_file),
        PYTHON: sys.executable,
    }
    fresh.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if locals_ > 1:
        fresh.setdefault("OMP_NUM_THREADS", "1")
    fresh.pop("HPCTL_RESUME_FROM", None)
    if order["resume"]:
        fresh["HPCTL_RESUME_FROM"] = str(order["resume"])
    return fresh


STOP_GRACE_S = 25.0
"""From SIGTERM to SIGKILL where the step itself is ended; Slurm's KillWait is 30 s."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0
"""Between two tries to reach the first node's launcher."""


class NodeRankLauncher:
    """The launcher of the ranks of one node. `run` returns the exit code."""

    def __init__(
        self, options: LauncherOptions, place: LauncherLocation, environment: Mapping[str, str]
    ) -> None:
        self._options, self._place = options, place
        self._environment = {k: v for k, v in environment.items() if k not in (SECRET, RESULT)}
        self._files = Path(tempfile.mkdtemp(prefix="hpctl-elastic-"))
        self._generation = -1
        self._base = 0
        self._stopping = False
        self._line: wire.LauncherConnection | None = None
        self._orders: asyncio.Queue[wire.Message] = asyncio.Queue()
        self._ranks = RankProcesses(options.program, self._handle_rank_end)

    async def run(self) -> int:
        """Run until the controller reports the end, the step is ended, or the controller is
        gone."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._handle_termination_signal, number)
        loop.add_signal_handler(
            signal.SIGUSR1, self._ranks.send_signal_to_ranks_handling_it, signal.SIGUSR1
        )
        loop.add_signal_handler(signal.SIGUSR2, self._send_controller_message, {"ask": "SIGUSR2"})
        background: list[asyncio.Task[None]] = []
        try:
            self._line = await self._join_controller_until_stopped()
            if self._line is None:
                return STOPPED
            background = [
                asyncio.create_task(each)
                for each in (self._receive_controller_orders(self._line), self._send_heartbeats())
            ]
            return await self._execute_controller_orders()
        finally:
            for task in background:
                task.cancel()
            await self._disconnect_from_controller()

    async def _execute_controller_orders(self) -> int:
        """Follow one order at a time: the stop of a generation is over before the next one
        starts."""
        while True:
            order = await self._orders.get()
            try:
                if "start" in order:
                    await self._start_ranks(order)
                elif "stop" in order:
                    await self._stop_ranks(self._options.grace_s)
                    self._send_controller_message({"stopped": self._generation})
                elif "end" in order:
                    stopped = order["end"] == "stopped"
                    await self._stop_ranks(STOP_GRACE_S if stopped else self._options.grace_s)
                    return int(order["code"])
                elif "lost" in order:
                    print_launcher_log_line(f"{self._place.host}: {order['lost']}")
                    await self._stop_ranks(self._options.grace_s)
                    return LOST
                elif "signal" in order:
                    self._send_controller_message({"leaving": order["signal"]})
                    await self._stop_ranks(STOP_GRACE_S)
                    return STOPPED
            except UnkillableProcessesError as error:
                print_launcher_log_line(
                    f"{self._place.host}: processes that SIGKILL does not end: {error}"
                )
                return LOST

    async def _start_ranks(self, order: wire.Message) -> None:
        self._generation, self._base = int(order["start"]), int(order["base"])
        self._stopping = False
        for local in range(self._options.nproc):
            self._make_rank_error_file_path(local).unlink(missing_ok=True)
            environment = build_rank_environment(
                self._environment,
                order,
                self._place,
                local=local,
                locals_=self._options.nproc,
                error_file=self._make_rank_error_file_path(local),
            )
            self._ranks.start(local, environment)

    async def _stop_ranks(self, grace_s: float) -> None:
        self._stopping = True
        await self._ranks.stop(grace_s)

    def _handle_rank_end(self, local: int, status: int) -> None:
        """Handle a rank that has ended. One that we end ourselves is not a reason for the end."""
        rank, code = self._base + local, group.convert_to_shell_exit_code(status)
        if status == 0:
            self._send_controller_message({"finished": rank, "generation": self._generation})
            return
        failed = group.read_rank_failure(
            rank, self._place.host, code, time.time(), self._make_rank_error_file_path(local)
        )
        if not self._stopping or failed.exception:
            self._send_controller_message(
                {"failed": msgspec.to_builtins(failed), "generation": self._generation}
            )

    def _make_rank_error_file_path(self, local: int) -> Path:
        return self._files / f"error-{self._generation}-{local}.json"

    async def _join_controller_until_stopped(self) -> wire.LauncherConnection | None:
        """Return the connection; None where the step is ended before there is one."""
        join = asyncio.ensure_future(self._join_controller())
        order = asyncio.ensure_future(self._orders.get())
        await asyncio.wait({join, order}, return_when=asyncio.FIRST_COMPLETED)
        if not order.done():
            order.cancel()
            return join.result()
        if not join.cancel():
            join.result().abort()
        return None

    async def _join_controller(self) -> wire.LauncherConnection:
        """Find the controller: on one of the step's ports, whenever its node is ready."""
        place = self._place
        hello = {"node": place.node, "ranks": self._options.nproc, "host": place.host}
        first = job_ports.choose_rendezvous_port(place.secret, place.run_id)
        limit = time.monotonic() + self._options.timing.join_s
        address = "127.0.0.1" if place.node == 0 else place.address
        pause = FIRST_PAUSE_S
        while True:
            with contextlib.suppress(OSError, wire.LauncherProtocolError, TimeoutError):
                return await wire.connect_to_controller(address, place.run_id, place.secret, hello)
            if time.monotonic() > limit:
                raise TimeoutError(f"no launcher answers on {address}, ports {first} and up")
            # Many nodes wait for one: ever more seldom, and not all at the same moment.
            await asyncio.sleep(pick_random_pause_seconds(0.5 * pause, pause))
            pause = min(LAST_PAUSE_S, pause * 1.5)

    async def _receive_controller_orders(self, line: wire.LauncherConnection) -> None:
        try:
            while True:
                message = await line.receive_with_timeout(self._options.timing.silence_s)
                if "beat" not in message:
                    self._orders.put_nowait(message)
        except TimeoutError:
            why = f"silent for {self._options.timing.silence_s:g} s"
        except wire.LauncherProtocolError as error:
            why = str(error)
        self._orders.put_nowait({"lost": f"the first node's launcher is gone ({why})"})

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._options.timing.beat_s)
            self._send_controller_message({"beat": 1})

    def _send_controller_message(self, message: wire.Message) -> None:
        if self._line is not None:
            self._line.send(message)

    def _handle_termination_signal(self, number: signal.Signals) -> None:
        self._orders.put_nowait({"signal": number.name})

    async def _disconnect_from_controller(self) -> None:
        if self._line is not None:
            await self._line.close()
        shutil.rmtree(self._files, ignore_errors=True)

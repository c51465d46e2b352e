"""The first node's half of the group: gathers the launchers and drives one generation to the next.

It decides nothing but what `group.Group` says; here are only connections, clocks and the account of
the group's life. The account is a JSON file that the supervisor reads, while it runs and after:
written whole to a temporary name and renamed, so that a reader never sees half of it. A file that
cannot be written is reported once and then left: it must not end the run.
"""

import asyncio
import json
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.checkpoints.resume import find_resume_point_of_rank_generation
from hpctl.jobs.elastic import group as failure
from hpctl.jobs.elastic import wire
from hpctl.jobs.elastic.group import (
    EndRankGroupOrder,
    Order,
    PrepareRankGenerationOrder,
    RankFailure,
    RankGroup,
    RankGroupPhase,
    RankGroupTimeouts,
    RankRestartLimits,
    StopRankGenerationOrder,
    find_root_cause_failure,
    format_rank_group_end_line,
)
from hpctl.jobs.elastic.options import LauncherLocation
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.user_files import read_own_file_tail
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import EVIDENCE_CHARS, STOP_EXIT_CODE, Trouble

KEEP = 50
"""How many generations the file keeps, the last ones."""


class RankGenerationRecord(msgspec.Struct, frozen=True):
    """One life of all ranks. Times are seconds since the epoch; `ended_at` None while it runs."""

    number: int = msgspec.field(name="generation")
    started_at: float
    ended_at: float | None
    resumed_from: str | None
    why: str
    failures: tuple[RankFailure, ...]
    nodes: tuple[str, ...] = ()


class RankGroupRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The document. `verdict` is `running` or one of group.RankGroupResult."""

    format: Literal["hpctl-elastic"] = "hpctl-elastic"
    version: Literal[1] = 1
    run_id: str
    verdict: str
    exit_code: int | None
    why: str
    restarts: int
    generations: tuple[RankGenerationRecord, ...]

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """Return one trouble for each generation that did not end well, oldest first."""
        return tuple(
            t for each in self.generations if (t := find_generation_failure(each)) is not None
        )


class RankGroupRecorder(Struct):
    """What the first node's launcher writes. `path` None writes nothing."""

    path: Path | None
    run_id: str
    _generations: list[RankGenerationRecord] = field(default_factory=list)

    def record_generation_start(
        self, generation: int, resumed_from: str, hosts: Sequence[str]
    ) -> None:
        """Note that its ranks are being started."""
        began, whence, nodes = time.time(), resumed_from or None, tuple(hosts)
        fresh = RankGenerationRecord(generation, began, None, whence, "", (), nodes)
        self._generations = [*self._generations, fresh][-KEEP:]
        self._write_record_file("running", None, "")

    def record_generation_end(self, why: str, failures: Sequence[RankFailure]) -> None:
        """Note that none of its ranks is left."""
        if self._generations:
            self._generations[-1] = msgspec.structs.replace(
                self._generations[-1], ended_at=time.time(), why=why, failures=tuple(failures)
            )

    def record_group_end(self, end: EndRankGroupOrder, failures: Sequence[RankFailure]) -> None:
        """Note that the group is over."""
        self.record_generation_end(end.why, failures)
        self._write_record_file(end.verdict.value, end.code, end.why)

    def _write_record_file(self, verdict: str, code: int | None, why: str) -> None:
        if self.path is None:
            return
        record = RankGroupRecord(
            run_id=self.run_id,
            verdict=verdict,
            exit_code=code,
            why=why,
            restarts=self._generations[-1].number if self._generations else 0,
            generations=tuple(self._generations),
        )
        # Not msgspec's encoder: a path in it may be no text, and json escapes such a one.
        text = json.dumps(msgspec.to_builtins(record), indent=1)
        try:
            # Others may write to the folder: a name that they know could be a link of theirs.
            place, name = self.path.parent, f".{self.path.name}."
            with tempfile.NamedTemporaryFile("w", dir=place, prefix=name, delete=False) as file:
                file.write(text)
            Path(file.name).replace(self.path)
        except OSError as error:
            print(
                make_printable(f"hpctl elastic: no account: {error}"), file=sys.stderr, flush=True
            )
            self.path = None


_LARGEST_ACCOUNT = 64 << 20


def read_rank_group_record(path: Path) -> RankGroupRecord:
    """Read an account. Raises HpctlError; FileNotFoundError where there is none (yet)."""
    try:
        return msgspec.convert(
            json.loads(read_own_file_tail(path, _LARGEST_ACCOUNT)), RankGroupRecord
        )
    except ValueError as error:
        raise HpctlError(
            f"cannot read the status file {path} of the job's launcher (hpctl elastic): {error}",
            "the launcher writes the file again at its next step; hpctl run continues without it",
        ) from error


def find_generation_failure(generation: RankGenerationRecord) -> Trouble | None:
    """Return what ended a generation, as a fact; None where it runs, or ended well or by request.

    Kind and signature are what `crash.classify` makes of exit code and traceback.
    """
    # Only the reader's business: the launcher, which writes accounts, needs none of its patterns.
    from hpctl.jobs.crash import classify_crash

    if generation.ended_at is None or not generation.failures:
        return None
    first = find_root_cause_failure(list(generation.failures))
    trace = first.trace or (f"{first.exception}: {first.message}" if first.exception else "")
    classified = classify_crash(
        first.code,
        trace.splitlines(),
        at=datetime.fromtimestamp(first.at, UTC),
        node=NodeName(first.node),
        rank=first.rank,
        policy=RunPolicy(),
        again=generation.number > 0,
    )
    return replace(
        classified,
        why=first.why,
        node=NodeName(first.node),
        rank=first.rank,
        evidence=classified.evidence or first.trace[-EVIDENCE_CHARS:],
    )


class RankGroupController:
    """The server of the launchers of one step. `run` returns when the end was sent to them all."""

    def __init__(
        self,
        place: LauncherLocation,
        limits: RankRestartLimits,
        timing: RankGroupTimeouts,
        account: RankGroupRecorder,
        environment: Mapping[str, str],
    ) -> None:
        self._place, self._timing, self._account = place, timing, account
        self._environment = environment
        self._group = RankGroup(place.nodes, limits)
        self._limits = limits
        self._lines: dict[int, wire.LauncherConnection] = {}
        self._hosts: dict[int, str] = {}
        self._begun, self._ended = asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._was_empty = False
        self._listener: wire.LauncherListener | None = None

    async def listen(self) -> None:
        """Take the first of the step's ports that is free. Raises HpctlError where none is."""
        place = self._place
        try:
            self._listener = wire.LauncherListener(
                place.run_id, place.secret, place.nodes, self._serve_controller_client
            )
        except OSError as error:
            raise HpctlError(str(error)) from error

    async def run(self) -> None:
        """Serve until the end is sent and every launcher has closed its connection, or 10 s."""
        assert self._listener is not None
        beat = asyncio.create_task(self._send_heartbeats())
        try:
            await wire.await_with_timeout(self._begun.wait(), self._timing.join_s)
            await self._ended.wait()
        except TimeoutError:
            missing = self._place.nodes - len(self._lines)
            self._execute_rank_group_order(
                self._group.handle_launcher_join_timeout(
                    f"{missing} of {self._place.nodes} launchers did not come within"
                    f" {self._timing.join_s:g} s"
                )
            )
        finally:
            beat.cancel()
        limit = time.monotonic() + 10.0
        while self._lines and time.monotonic() < limit:
            await asyncio.sleep(0.01)
        self._listener.close()

    def handle_local_launcher_exit(self) -> None:
        """Handle the end of this node's launcher: there is no launcher to serve any longer."""
        self._execute_rank_group_order(
            self._group.handle_step_end(f"the launcher on {self._place.host} has ended")
        )

    def handle_request(self, why: str) -> None:
        """Handle a request to restart the group."""
        self._execute_rank_group_order(self._group.request_rank_restart(why))

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(self._timing.beat_s)
            for line in self._lines.values():
                line.send({"beat": 1})

    async def _serve_controller_client(
        self, line: wire.LauncherConnection, hello: wire.Message
    ) -> None:
        try:
            if "tell" in hello:
                line.send({"answer": self._answer_control_request(str(hello["tell"]))})
            else:
                await self._serve_launcher(line, hello)
        finally:
            await line.close()

    def _answer_control_request(self, text: str) -> str:
        word, _, rest = text.partition(":")
        if word == "restart":
            if self._group.phase is not RankGroupPhase.RUNNING:
                return f"no: the group is {self._group.phase.value}"
            self.handle_request(rest.strip()[:500] or "no reason given")
            return "ok"
        if word == "status":
            return f"ok: generation {self._group.generation}, {self._group.phase.value}"
        return "no: say `restart: why` or `status`"

    async def _serve_launcher(self, line: wire.LauncherConnection, hello: wire.Message) -> None:
        node, ranks = hello.get("node"), hello.get("ranks")
        if not isinstance(node, int) or not isinstance(ranks, int) or ranks < 1:
            return
        if not 0 <= node < self._place.nodes or node in self._lines:
            line.send({"end": "lost", "code": 64, "why": f"node rank {node} is there already"})
            return
        self._lines[node] = line
        self._hosts[node] = str(hello.get("host", ""))[:256]
        self._execute_rank_group_order(self._group.add_launcher(node, ranks))
        why = "connection lost"
        try:
            while True:
                message = await line.receive_with_timeout(self._timing.silence_s)
                self._handle_launcher_message(node, message)
        except TimeoutError:
            why = f"silent for {self._timing.silence_s:g} s"
        except (wire.LauncherProtocolError, KeyError, TypeError, ValueError) as error:
            why = str(error)
        finally:
            del self._lines[node]
            text = f"the launcher on {self._hosts[node]} is gone ({why})"
            self._execute_rank_group_order(
                self._group.handle_lost_launcher(node, text, time.monotonic())
            )

    def _handle_launcher_message(self, node: int, message: wire.Message) -> None:
        """Handle a message. Raise KeyError, TypeError, ValueError for one that is not ours."""
        if "failed" in message:
            generation = int(message["generation"])
            self._execute_rank_group_order(
                self._group.handle_failed_rank(
                    generation, failure.parse_rank_failure(message["failed"])
                )
            )
        elif "finished" in message:
            self._execute_rank_group_order(
                self._group.handle_finished_rank(
                    int(message["generation"]), int(message["finished"])
                )
            )
        elif "stopped" in message:
            self._execute_rank_group_order(
                self._group.handle_stopped_ranks(node, int(message["stopped"]), time.monotonic())
            )
        elif "ask" in message:
            self.handle_request(str(message["ask"])[:500])
        elif "leaving" in message:
            self._execute_rank_group_order(
                self._group.handle_step_end(f"{message['leaving']} on {self._hosts[node]}")
            )

    def _execute_rank_group_order(self, order: Order | None) -> None:
        if isinstance(order, PrepareRankGenerationOrder):
            self._begun.set()
            task = asyncio.get_running_loop().create_task(
                self._prepare_rank_generation(order.generation)
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif isinstance(order, StopRankGenerationOrder):
            print_launcher_log_line(f"generation {order.generation} is over: {order.why}")
            for line in self._lines.values():
                line.send({"stop": order.generation})
        elif isinstance(order, EndRankGroupOrder):
            self._end_rank_group(order)

    async def _prepare_rank_generation(self, generation: int) -> None:
        try:
            await self._start_rank_generation_from_checkpoint(generation)
        except Exception as error:  # noqa: BLE001 -- else no rank is started, and nothing is reported
            self._execute_rank_group_order(
                self._group.reject_generation_start(
                    f"cannot start generation {generation}: {error!r}", 1
                )
            )

    async def _start_rank_generation_from_checkpoint(self, generation: int) -> None:
        self._account.record_generation_end(self._group.why, self._group.previous)
        try:
            point = await asyncio.to_thread(
                find_resume_point_of_rank_generation,
                self._environment,
                generation,
                was_empty=self._was_empty,
                nodes=self._place.nodes,
            )
        except HpctlError as error:
            self._execute_rank_group_order(
                self._group.reject_generation_start(str(error), STOP_EXIT_CODE)
            )
            return
        if self._group.phase is not RankGroupPhase.PREPARING:
            return
        if generation == 0:
            self._was_empty = point.judged and point.path is None
        self._start_rank_generation(generation, point.path or "")

    def _start_rank_generation(self, generation: int, path: str) -> None:
        group = self._group
        group.mark_generation_running()
        order: wire.Message = {
            "start": generation,
            "address": self._place.address,
            "port": _find_free_port(),
            "world": group.world,
            "nodes": len(group.members),
            "max_restarts": self._limits.max_restarts,
            "resume": path,
        }
        for node, line in self._lines.items():
            line.send({**order, "base": group.base(node)})
        hosts = [self._hosts[node] for node in sorted(group.members)]
        self._account.record_generation_start(generation, path, hosts)
        whence = f"from {path}" if path else "from the beginning"
        print_launcher_log_line(
            f"generation {generation}: {group.world} ranks on {len(group.members)} nodes, {whence}"
        )

    def _end_rank_group(self, end: EndRankGroupOrder) -> None:
        print_launcher_log_line(format_rank_group_end_line(end))
        self._account.record_group_end(end, self._group.failures)
        for line in self._lines.values():
            line.send({"end": end.verdict.value, "code": end.code, "why": end.why})
        self._begun.set()
        self._ended.set()


def print_launcher_log_line(text: str) -> None:
    """Print one line of the launchers' own in the job's output."""
    print(make_printable(f"hpctl elastic: {text}", lines=True), file=sys.stderr, flush=True)


def _find_free_port() -> int:
    """Return a port for rank 0's store. Another program may take it before rank 0 does, as with
    torchrun: that generation then fails and the next gets another."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])

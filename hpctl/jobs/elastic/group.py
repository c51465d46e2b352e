"""The group of all ranks as a value: what happened goes in, what to do next comes out.

No clock, and no I/O but the error file that torch's `@record` writes. One generation is one life of
all ranks together: none of generation g + 1 is started before every launcher has reported that
none of generation g is left.
"""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.trouble import UNSTARTED

_COMPLAINT = re.compile(
    r"connection (?:closed|reset|refused|was broken)|broken pipe|remote process exited"
    r"|socket timeout|timed out|DistNetworkError",
    re.IGNORECASE,
)
"""What gloo, NCCL and the store say of a peer that is gone (torch 2.13)."""

MAX_FILE = 1 << 20
MESSAGE_CHARS = 500
TRACE_CHARS = 4000


class RankFailure(Struct, frozen=True):
    """One rank's end that was not wanted.

    `code` is the shell's (128 + n for signal n). `at` is seconds since the epoch: when the error
    file was written, else when the process ended. `exception`, `message` and `trace` are empty
    where the rank left no error file.
    """

    rank: int
    node: str
    code: int
    at: float
    exception: str = ""
    message: str = ""
    trace: str = ""

    @property
    def why(self) -> str:
        """Return one sentence for a person."""
        error = f"{self.exception}: {self.message}" if self.exception else self.message
        return f"rank {self.rank} on {self.node} ended with {format_exit_code(self.code)}" + (
            f": {error}" if error else ""
        )


def format_exit_code(code: int) -> str:
    """Return `exit code 1`, or `signal 9 (SIGKILL)`."""
    if code in UNSTARTED:
        return f"exit code {code} ({UNSTARTED[code]})"
    if code <= 128:
        return f"exit code {code}"
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"exit code {code}"
    return f"signal {code - 128} ({name})"


def convert_to_shell_exit_code(status: int) -> int:
    """Return the shell's exit code of a status as Python's subprocess gives it (-n for signal
    n)."""
    return 128 - status if status < 0 else status


def read_rank_failure(rank: int, node: str, code: int, at: float, error_file: Path) -> RankFailure:
    """Return what is known about a rank that ended with `code` at `at`. Never raises: an error file
    that cannot be read is one that says nothing."""
    try:
        with error_file.open("rb") as file:
            written = os.fstat(file.fileno()).st_mtime
            text = file.read(MAX_FILE)
        document = json.loads(text)
    except (OSError, ValueError):
        return RankFailure(rank, node, code, at)
    exception, message, trace = _parse_torch_error_record(document)
    return RankFailure(rank, node, code, min(at, written), exception, message, trace)


def _parse_torch_error_record(document: Any) -> tuple[str, str, str]:
    """Parse exception, message and traceback of torch's format: `message` is a string or a mapping
    with `message` ("Type: text") and `extraInfo.py_callstack` (error_handler.py, torch 2.13)."""
    inner = document.get("message") if isinstance(document, dict) else None
    trace = ""
    if isinstance(inner, dict):
        extra = inner.get("extraInfo")
        trace = str(extra.get("py_callstack", "")) if isinstance(extra, dict) else ""
        inner = inner.get("message")
    if not isinstance(inner, str):
        return "", "", ""
    inner, trace = _replace_surrogate_characters(inner), _replace_surrogate_characters(trace)
    kind, colon, rest = inner.partition(": ")
    if not colon or not kind.replace(".", "_").isidentifier():
        kind, rest = "", inner
    return kind, rest.strip()[:MESSAGE_CHARS], _shorten_traceback(trace)


def _replace_surrogate_characters(text: str) -> str:
    """Return text that UTF-8 can hold: Python names a file whose name is no UTF-8 with lone
    surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _shorten_traceback(trace: str) -> str:
    """Return the end of a traceback, whole lines, still with the first line that marks it as
    one."""
    if len(trace) <= TRACE_CHARS:
        return trace
    head, _, _ = trace.partition("\n")
    room = max(0, TRACE_CHARS - len(head) - 1)
    return f"{head[:200]}\n{trace[-room:].partition(chr(10))[2]}"


def parse_rank_failure(document: object) -> RankFailure:
    """Return a failure as a launcher sent it, with lengths bounded. Raises ValueError."""
    failure = msgspec.convert(document, RankFailure)
    return replace(
        failure,
        node=failure.node[:256],
        exception=failure.exception[:256],
        message=failure.message[:MESSAGE_CHARS],
        trace=failure.trace[-TRACE_CHARS:],
    )


def find_root_cause_failure(failures: list[RankFailure]) -> RankFailure:
    """Return the first failure that is not a complaint of a dead rank's peers.

    The times are not enough: the kernel closes a killed process's connections before it frees its
    memory, so that a peer may write its error file before the death is seen.
    """
    return min(failures, key=lambda each: (_is_peer_loss_failure(each), each.at, each.rank))


def _is_peer_loss_failure(failure: RankFailure) -> bool:
    return bool(_COMPLAINT.search(f"{failure.exception} {failure.message}"))


LOST = 75
"""Exit code where a launcher or its node is gone (EX_TEMPFAIL): no means inside this step."""
STOPPED = 143
"""Exit code where the step itself was ended (128 + SIGTERM)."""


class RankGroupPhase(StrEnum):
    """The state of the group."""

    GATHERING = "gathering"
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class RankGroupResult(StrEnum):
    """How it ended."""

    DONE = "done"
    FINAL = "final"
    """A rank's exit code asks not to be run again, or the command is not there at all."""
    GAVE_UP = "gave_up"
    """The restarts of the window are used up."""
    LOST = "lost"
    STOPPED = "stopped"


class RankRestartLimits(Struct, frozen=True):
    """Policy, as the supervisor gave it. `window_s` 0 counts the restarts of the whole run."""

    max_restarts: int = 3
    window_s: float = 3600.0
    final_exit_codes: frozenset[int] = frozenset({93, 16, 17})


class RankGroupTimeouts(Struct, frozen=True):
    """Seconds. `join_s`: until every launcher is there. `silence_s`: a connection that says nothing
    for so long is a dead one (torchrun waits as long: keep-alives of 5 s, three missed)."""

    join_s: float = 600.0
    silence_s: float = 15.0

    @property
    def beat_s(self) -> float:
        """Return how often each side says that it is there."""
        return min(2.0, self.silence_s / 5)


class PrepareRankGenerationOrder(Struct, frozen=True):
    """Choose checkpoint and port for this generation, then call `started`."""

    generation: int


class StopRankGenerationOrder(Struct, frozen=True):
    """End every rank of this generation on every node."""

    generation: int
    why: str


class EndRankGroupOrder(Struct, frozen=True):
    """The group is over; every launcher exits with `code`."""

    verdict: RankGroupResult
    code: int
    why: str


Order = PrepareRankGenerationOrder | StopRankGenerationOrder | EndRankGroupOrder


class RankGroup(Struct):
    """The state of one group. Each method takes one fact and returns an order, or None."""

    nodes: int
    limits: RankRestartLimits
    phase: RankGroupPhase = RankGroupPhase.GATHERING
    generation: int = 0
    why: str = ""
    failures: list[RankFailure] = field(default_factory=list)
    previous: list[RankFailure] = field(default_factory=list)
    """The failures of the generation before."""
    members: dict[int, int] = field(default_factory=dict)
    """Ranks of each node, by group rank."""
    _done: set[int] = field(default_factory=set)
    _stopped: set[int] = field(default_factory=set)
    _restarts: list[float] = field(default_factory=list)
    _lost: str = ""

    @property
    def world(self) -> int:
        """Return how many ranks there are."""
        return sum(self.members.values())

    def base(self, node: int) -> int:
        """Return the first global rank of a node."""
        return sum(count for other, count in self.members.items() if other < node)

    def add_launcher(self, node: int, ranks: int) -> Order | None:
        """Handle a launcher that has come."""
        self.members[node] = ranks
        if self.phase is RankGroupPhase.GATHERING and len(self.members) == self.nodes:
            self.phase = RankGroupPhase.PREPARING
            return PrepareRankGenerationOrder(self.generation)
        return None

    def mark_generation_running(self) -> None:
        """Record that the prepared generation was handed to all launchers."""
        if self.phase is RankGroupPhase.PREPARING:
            self.phase = RankGroupPhase.RUNNING

    def handle_finished_rank(self, generation: int, rank: int) -> Order | None:
        """Handle a rank that ended with exit code 0."""
        if generation != self.generation or self.phase is not RankGroupPhase.RUNNING:
            return None
        self._done.add(rank)
        if len(self._done) < self.world:
            return None
        return self._end_rank_group(RankGroupResult.DONE, 0, "all ranks are done")

    def handle_failed_rank(self, generation: int, failure: RankFailure) -> Order | None:
        """Handle a rank that ended otherwise."""
        if generation != self.generation or self.phase not in (
            RankGroupPhase.RUNNING,
            RankGroupPhase.STOPPING,
        ):
            return None
        self.failures.append(failure)
        return self._stop_rank_generation(failure.why)

    def request_rank_restart(self, why: str) -> Order | None:
        """Handle a request from outside for a new generation: the ranks hang, say."""
        return self._stop_rank_generation(f"restart asked for: {why}")

    def handle_stopped_ranks(self, node: int, generation: int, now: float) -> Order | None:
        """Handle a launcher that has none of its ranks left."""
        if generation != self.generation or self.phase is not RankGroupPhase.STOPPING:
            return None
        self._stopped.add(node)
        return self._start_next_rank_generation(now)

    def handle_lost_launcher(self, node: int, why: str, now: float) -> Order | None:
        """Handle the loss of a launcher: its node is no longer watched."""
        if self.members.pop(node, None) is None or self.phase is RankGroupPhase.ENDED:
            return None
        if self.phase is RankGroupPhase.GATHERING:
            return None
        self._lost = self._lost or why
        if self.phase is RankGroupPhase.PREPARING:
            return self._end_rank_group(RankGroupResult.LOST, LOST, self._lost)
        return self._stop_rank_generation(why) or self._start_next_rank_generation(now)

    def handle_launcher_join_timeout(self, why: str) -> Order | None:
        """Handle that not every launcher came in time."""
        if self.phase is not RankGroupPhase.GATHERING:
            return None
        return self._end_rank_group(RankGroupResult.LOST, LOST, why)

    def reject_generation_start(self, why: str, code: int) -> Order | None:
        """Handle that there is no checkpoint that the prepared generation may start from."""
        if self.phase is not RankGroupPhase.PREPARING:
            return None
        return self._end_rank_group(RankGroupResult.FINAL, code, why)

    def handle_step_end(self, why: str) -> Order | None:
        """Handle the end of the step from outside; every launcher ends its own ranks."""
        if self.phase is RankGroupPhase.ENDED:
            return None
        return self._end_rank_group(RankGroupResult.STOPPED, STOPPED, why)

    def _stop_rank_generation(self, why: str) -> Order | None:
        if self.phase is not RankGroupPhase.RUNNING:
            return None
        self.phase, self.why = RankGroupPhase.STOPPING, why
        self._stopped.clear()
        return StopRankGenerationOrder(self.generation, why)

    def _start_next_rank_generation(self, now: float) -> Order | None:
        if self.phase is not RankGroupPhase.STOPPING or set(self.members) - self._stopped:
            return None
        if self.failures:
            self.why = find_root_cause_failure(self.failures).why
        never_ran = frozenset(UNSTARTED) if self.generation == 0 else frozenset()
        for failure in self.failures:
            if failure.code in self.limits.final_exit_codes | never_ran:
                return self._end_rank_group(RankGroupResult.FINAL, failure.code, failure.why)
        if self._lost:
            return self._end_rank_group(RankGroupResult.LOST, LOST, self._lost)
        window = self.limits.window_s
        recent = [each for each in self._restarts if not window or now - each < window]
        if len(recent) >= self.limits.max_restarts:
            return self._end_rank_group(
                RankGroupResult.GAVE_UP,
                self._find_root_cause_exit_code(),
                self._describe_exhausted_restart_limit(len(recent)),
            )
        self._restarts = [*recent, now]
        self.generation += 1
        self.phase = RankGroupPhase.PREPARING
        self.previous, self.failures = self.failures, []
        self._done.clear()
        return PrepareRankGenerationOrder(self.generation)

    def _find_root_cause_exit_code(self) -> int:
        return find_root_cause_failure(self.failures).code if self.failures else 1

    def _describe_exhausted_restart_limit(self, count: int) -> str:
        within = f" within {self.limits.window_s:g} s" if self.limits.window_s else ""
        return f"{self.why} (restarts used up: {count}{within})"

    def _end_rank_group(self, verdict: RankGroupResult, code: int, why: str) -> EndRankGroupOrder:
        self.phase, self.why = RankGroupPhase.ENDED, why
        return EndRankGroupOrder(verdict, code, why)


def format_rank_group_end_line(end: EndRankGroupOrder) -> str:
    """Return the last line of the log."""
    return f"{end.verdict.value}, {format_exit_code(end.code)}: {end.why}"

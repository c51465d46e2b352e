"""Ask NCCL's RAS service over TCP, and read its JSON as values.

Lines go both ways; the answer to STATUS ends with the connection. The protocol's number is 2 in
every release from 2.24.3 to 2.30.7, with and without JSON, so the client finds out by asking. The
job that is asked hangs, so every wait has an end and every read a bound. Any user of the node may
listen on the port before NCCL does, so only a service of the ranks' own user is believed.

JSON (NCCL 2.28.7 and later) has every rank's counts. Earlier releases answer a text that lists only
some ranks; it is not read. Facts of the protocol are NCCL's: src/ras of its source, and its user
guide's page on RAS.
"""

import os
import re
import socket
import time
from collections import defaultdict
from collections.abc import Mapping
from itertools import chain

import msgspec
from msgspec import Struct, field

from hpctl.toolkit.compat import StrEnum
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.socket_owner import find_local_peer_uid

RUNNING, FINALIZE, ABORT, INIT = "RUNNING", "FINALIZE", "ABORT", "INIT"
IN_PROGRESS, REMOTE_ERROR = 7, 6
"""ncclResult_t: ncclInProgress is no error, ncclRemoteError is another rank's."""


class RasCommunicatorRank(Struct, frozen=True, order=True):
    """A rank of one communicator: the number is the communicator's own, not the job's.

    `host` is the address that NCCL's bootstrap uses, as digits; empty where it is not given, as
    `pid` and the devices are None. `nvml_dev` is what nvidia-smi calls the GPU, `cuda_dev` what
    the process does.
    """

    rank: int
    host: str = ""
    pid: int | None = None
    cuda_dev: int | None = None
    nvml_dev: int | None = None

    @property
    def process(self) -> tuple[str, int | None, int | None] | None:
        """Return what is the same for this GPU's process in every communicator."""
        return (self.host, self.pid, self.cuda_dev) if self.pid is not None else None


class OperationCountGroup(Struct, frozen=True):
    """Ranks of a communicator that have launched the same number of one operation."""

    count: int
    members: tuple[RasCommunicatorRank, ...] = ()


class RankAbsenceReason(StrEnum):
    """Why a communicator's rank did not report it."""

    DEAD = "dead"
    """Its process could not be reached for 60 s: given up for good."""
    UNRESPONSIVE = "unresponsive"
    """Its process did not answer in time: stopped, gone a moment ago, or cut off."""
    ELSEWHERE = "no member"
    """Its process answered, and is not yet, or no longer, a member."""


class AbsentRank(Struct, frozen=True):
    """A rank that its communicator expects and no process reported."""

    member: RasCommunicatorRank
    absence: RankAbsenceReason


class NcclRankError(Struct, frozen=True):
    """A rank with an error: NCCL's word for it."""

    member: RasCommunicatorRank
    error: str
    remote: bool
    """The error is that another rank failed."""


class NcclCommunicator(Struct, frozen=True):
    """One communicator. `counts` maps an operation to its groups, lowest count first.

    Each rank that reported is in one group of each operation. `size` is 0 where it is not given.
    """

    name: str
    size: int = 0
    counts: Mapping[str, tuple[OperationCountGroup, ...]] = field(default_factory=dict)
    missing: tuple[AbsentRank, ...] = ()
    failures: tuple[NcclRankError, ...] = ()
    status: str = RUNNING


class RasReport(Struct, frozen=True):
    """One answer: what all ranks of the job reported within a few seconds."""

    nccl_version: str
    communicators: tuple[NcclCommunicator, ...]
    text: str = ""
    """The beginning of the answer as it came, for evidence."""


SHOWN = 4000
_ERRORS = {
    1: "unhandled CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    REMOTE_ERROR: "remote process error",
}


class RasQueryError(HpctlError):
    """The RAS service cannot be asked, or its answer cannot be read."""


class RasJsonUnsupportedError(RasQueryError):
    """The RAS service is of a release that answers no JSON."""

    def __init__(self) -> None:
        """Name the release that is needed."""
        super().__init__("RAS answers no JSON before NCCL 2.28", "use NCCL 2.28.7 or later")


class _RawRasRankStatus(msgspec.Struct, frozen=True):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class _RawRasProcess(msgspec.Struct, frozen=True):
    rank: int
    host: str = ""
    pid: int = -1
    cuda_dev: int = -1
    nvml_dev: int = -1


class _RawRasRank(_RawRasProcess, frozen=True):
    status: _RawRasRankStatus = _RawRasRankStatus()
    collective_counts: dict[str, int] = {}


class _RawRasMissingRankStatus(msgspec.Struct, frozen=True):
    unresponsive: bool = True
    considered_dead: bool = False


class _RawRasMissingRank(_RawRasProcess, frozen=True):
    status: _RawRasMissingRankStatus = _RawRasMissingRankStatus()


class _RawRasCommunicator(msgspec.Struct, frozen=True):
    hash: str
    secondary_hash: str = ""
    size: int = 0
    ranks: list[_RawRasRank] = []
    missing_ranks: list[_RawRasMissingRank] = []


class _RawRasReport(msgspec.Struct, frozen=True):
    nccl_version: str
    communicators: list[_RawRasCommunicator]


_NO_COMMA = re.compile(rb'("nvml_dev": -?\d+)(\s+"status":)')
"""NCCL 2.28.9 leaves out a comma in each rank that is missing, as recorded on an H200."""


def parse_ras_report(raw: bytes) -> RasReport:
    """Read a whole answer. Raises RasQueryError where it is torn, or no such document."""
    try:
        try:
            document = msgspec.json.decode(raw, type=_RawRasReport)
        except msgspec.DecodeError:
            document = msgspec.json.decode(_NO_COMMA.sub(rb"\1,\2", raw), type=_RawRasReport)
    # A deeply nested answer ends the decoder's recursion.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RasQueryError(
            f"NCCL's RAS service returned invalid JSON: {error}",
            "The job may be ending. If it still runs, run the command again.",
        ) from error
    return RasReport(
        nccl_version=document.nccl_version,
        communicators=tuple(_parse_nccl_communicator(one) for one in document.communicators),
        text=raw[:SHOWN].decode(errors="replace"),
    )


def _parse_nccl_communicator(raw: _RawRasCommunicator) -> NcclCommunicator:
    return NcclCommunicator(
        name=f"{raw.hash}:{raw.secondary_hash}" if raw.secondary_hash else raw.hash,
        size=raw.size,
        counts=_group_ranks_by_operation_count(raw.ranks),
        missing=tuple(_parse_missing_rank(one) for one in raw.missing_ranks),
        failures=tuple(failure for one in raw.ranks if (failure := _parse_rank_error(one))),
        status=_find_most_advanced_rank_status(raw.ranks),
    )


def _group_ranks_by_operation_count(
    ranks: list[_RawRasRank],
) -> Mapping[str, tuple[OperationCountGroup, ...]]:
    names = dict.fromkeys(chain.from_iterable(rank.collective_counts for rank in ranks))
    found = {}
    for name in names:
        by_count: dict[int, list[RasCommunicatorRank]] = defaultdict(list)
        for rank in ranks:
            by_count[rank.collective_counts.get(name, 0)].append(_parse_communicator_rank(rank))
        found[name] = tuple(
            OperationCountGroup(count, tuple(members))
            for count, members in sorted(by_count.items())
        )
    return found


def _parse_missing_rank(raw: _RawRasMissingRank) -> AbsentRank:
    absence = RankAbsenceReason.ELSEWHERE
    if raw.status.considered_dead:
        absence = RankAbsenceReason.DEAD
    elif raw.status.unresponsive:
        absence = RankAbsenceReason.UNRESPONSIVE
    return AbsentRank(_parse_communicator_rank(raw), absence)


def _parse_rank_error(raw: _RawRasRank) -> NcclRankError | None:
    for code in (raw.status.async_error, raw.status.init_state):
        if code not in (0, IN_PROGRESS):
            word = _ERRORS.get(code, f"error {code}")
            return NcclRankError(_parse_communicator_rank(raw), word, code == REMOTE_ERROR)
    return None


def _find_most_advanced_rank_status(ranks: list[_RawRasRank]) -> str:
    """Return the furthest that any rank is, in NCCL's own order."""
    statuses = [rank.status for rank in ranks]
    if any(status.abort_flag for status in statuses):
        return ABORT
    if any(status.finalize_called or status.destroy_flag for status in statuses):
        return FINALIZE
    if any(status.init_state == 0 for status in statuses):
        return RUNNING
    return INIT


def _parse_communicator_rank(raw: _RawRasProcess) -> RasCommunicatorRank:
    return RasCommunicatorRank(
        raw.rank,
        "" if raw.host == "unknown" else raw.host,
        raw.pid if raw.pid >= 0 else None,
        raw.cuda_dev if raw.cuda_dev >= 0 else None,
        raw.nvml_dev if raw.nvml_dev >= 0 else None,
    )


PORT = 28028
JOB_PORTS = range(30100, 32700)
PROTOCOL = 2
LEG_TIMEOUT_S = 5
"""How long the job's processes wait for each other's answers: NCCL's own default."""
DEADLINE_S = 20.0
"""A query takes two legs at most (10 s) and the transfer: the rest is generous."""
LONGEST_GREETING = 1024
LARGEST_ANSWER = 256 << 20
"""JSON takes some 600 bytes for each rank of each communicator: 4096 ranks in a hundred."""
_CHUNK = 1 << 20


class RasAddress(Struct, frozen=True):
    """Where a job's RAS service listens: on each node with a rank, as a rule on loopback only."""

    host: str = "localhost"
    port: int = PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_ras_address(text: str = "") -> RasAddress:
    """Read `HOST:PORT` as NCCL_RAS_ADDR has it; empty is NCCL's default. Raises RasQueryError."""
    if not text:
        return RasAddress()
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise RasQueryError(f"{text!r} is no HOST:PORT", "write NCCL_RAS_ADDR as localhost:28028")
    return RasAddress(host.strip("[]"), int(port))


def make_job_ras_address(job_id: int) -> RasAddress:
    """Return an address for one job's NCCL_RAS_ADDR, so that two jobs on a node do not share the
    port.

    NCCL binds it with SO_REUSEPORT: of jobs on one port, any may answer. Below the ephemeral
    ports (ip(7)), and the same wherever it is worked out.
    """
    return RasAddress("localhost", JOB_PORTS.start + job_id % len(JOB_PORTS))


def query_ras_service(
    where: RasAddress | None = None, deadline_s: float = DEADLINE_S, owner: int | None = None
) -> RasReport:
    """Ask what all ranks of the job report now, on this host.

    `owner`: the uid of the ranks, None for this process's own. Takes at most `deadline_s` seconds.
    Raises RasQueryError where no service of theirs listens, an answer is late or torn, and
    RasJsonUnsupportedError where the service knows no JSON.
    """
    where = where or RasAddress()
    line = _RasConnection(
        where, time.monotonic() + deadline_s, os.geteuid() if owner is None else owner
    )
    try:
        line.connect()
        line.send(f"CLIENT PROTOCOL {PROTOCOL}")
        reply = line.reply()
        line.check_service_owner()
        if not reply.upper().startswith("SERVER PROTOCOL "):
            raise RasQueryError(
                f"the service at {where} is not NCCL's RAS service: it answers {reply[:80]!r}",
                _HINT,
            )
        line.send_command_expecting_ok(f"TIMEOUT {LEG_TIMEOUT_S}")
        line.send("SET FORMAT json")
        # Releases before 2.28.7 answer "ERROR: Unknown command ...".
        if line.reply().upper() != "OK":
            raise RasJsonUnsupportedError
        line.send("VERBOSE STATUS")
        answer = line.rest()
    except OSError as error:
        reply = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or "?"
        raise RasQueryError(
            f"cannot query NCCL's RAS service at {where}: {reply}", _HINT
        ) from error
    finally:
        line.close()
    return parse_ras_report(answer)


_HINT = (
    "Check that this node runs a rank of the job, with NCCL 2.28.7 or later, that NCCL_RAS_ENABLE "
    "is not 0,"
    " and that NCCL_RAS_ADDR is the job's."
)


class _RasConnection:
    """One connection within this host, with one deadline for everything on it."""

    def __init__(self, where: RasAddress, deadline: float, owner: int) -> None:
        self._where, self._deadline, self._owner = where, deadline, owner
        self._socket: socket.socket | None = None
        self._left = b""

    def connect(self) -> None:
        # localhost may be ::1 and 127.0.0.1, and NCCL listens on one of them.
        self._socket = socket.create_connection(
            (self._where.host, self._where.port), timeout=self._compute_remaining_time()
        )
        # An agent that is root takes the address from a user's environment: nothing is sent to
        # another host.
        if find_local_peer_uid(self._socket) is None:
            raise RasQueryError(
                f"the address {self._where} of NCCL's RAS service is not an address of this node",
                _HINT,
            )

    def check_service_owner(self) -> None:
        """Raise RasQueryError where who has answered is not the ranks' user."""
        assert self._socket is not None
        uid = find_local_peer_uid(self._socket)
        if uid != self._owner:
            raise RasQueryError(
                f"the service at {self._where} runs as uid {uid}, not as the job's owner (uid "
                f"{self._owner})",
                _HINT,
            )

    def send(self, command: str) -> None:
        self._get_socket_with_timeout().sendall(command.encode() + b"\n")

    def reply(self) -> str:
        """Return one line."""
        while b"\n" not in self._left:
            if len(self._left) > LONGEST_GREETING:
                raise RasQueryError(
                    f"NCCL's RAS service at {self._where} sent an incomplete answer", _HINT
                )
            more = self._get_socket_with_timeout().recv(LONGEST_GREETING)
            if not more:
                raise RasQueryError(
                    f"NCCL's RAS service at {self._where} closed the connection", _HINT
                )
            self._left += more
        text, _, self._left = self._left.partition(b"\n")
        return text.decode(errors="replace").strip()

    def send_command_expecting_ok(self, command: str) -> None:
        self.send(command)
        reply = self.reply()
        if reply.upper() != "OK":
            raise RasQueryError(
                f"NCCL's RAS service at {self._where} answers {reply[:80]!r} to the command "
                f"{command}",
                _HINT,
            )

    def rest(self) -> bytes:
        """Return everything until the service closes."""
        chunks, size = [self._left], len(self._left)
        while more := self._get_socket_with_timeout().recv(_CHUNK):
            chunks.append(more)
            size += len(more)
            if size > LARGEST_ANSWER:
                raise RasQueryError(
                    f"the answer of NCCL's RAS service at {self._where} is longer than "
                    f"{LARGEST_ANSWER} bytes",
                    _HINT,
                )
        return b"".join(chunks)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _get_socket_with_timeout(self) -> socket.socket:
        assert self._socket is not None
        self._socket.settimeout(self._compute_remaining_time())
        return self._socket

    def _compute_remaining_time(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

"""NCCL's RAS service: how it is asked over TCP, and its answer as values, whichever its format.

Lines go both ways; the answer to STATUS ends with the connection. The protocol's number has been 2
in every release so far (2.24.3 to 2.30.7), also across the coming of JSON: what the service can do
is found out by asking for it. A hung job is the very thing that is asked, so that every wait has an
end and every read a bound.

JSON (NCCL 2.28.7 and later) has every rank's counts. The text of 2.24 to 2.28.3 groups ranks by
count and lists only the outliers: fewer than half of a communicator in its verbose form. Facts of
the protocol are NCCL's: src/ras of its source, and its user guide's page on RAS.
"""

import re
import socket
import time
from collections import defaultdict
from collections.abc import Mapping

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.toolkit.compat import StrEnum
from hpctl.toolkit.errors import HpctlError

RUNNING, FINALIZE, ABORT, INIT = "RUNNING", "FINALIZE", "ABORT", "INIT"
IN_PROGRESS, REMOTE_ERROR = 7, 6
"""ncclResult_t: ncclInProgress is no error, ncclRemoteError is another rank's."""


class RasMember(Struct, frozen=True, order=True):
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
        """What is the same for this GPU's process in every communicator."""
        return (self.host, self.pid, self.cuda_dev) if self.pid is not None else None


class CountGroup(Struct, frozen=True):
    """Ranks of a communicator that have launched the same number of one operation.

    `size` of them; `members` are those who are named, all or none or some.
    """

    count: int
    size: int
    members: tuple[RasMember, ...] = ()


class Absence(StrEnum):
    """Why a communicator's rank did not report it."""

    DEAD = "dead"
    """Its process could not be reached for 60 s: given up for good."""
    UNRESPONSIVE = "unresponsive"
    """Its process did not answer in time: stopped, gone a moment ago, or cut off."""
    ELSEWHERE = "no member"
    """Its process answered, and is not (yet, or any more) a member."""


class AbsentRank(Struct, frozen=True):
    """A rank that its communicator expects and nobody reported."""

    member: RasMember
    absence: Absence


class RankError(Struct, frozen=True):
    """A rank with an error: NCCL's word for it."""

    member: RasMember
    error: str
    remote: bool
    """The error is that another rank failed."""


class Communicator(Struct, frozen=True):
    """One communicator. `counts` maps an operation to its groups, lowest count first.

    `whole`: each rank's counts are known, also where all are equal (JSON). In the text, equal
    counts are not given: `counts` holds only operations whose counts differ.
    """

    name: str
    size: int | None = None
    counts: Mapping[str, tuple[CountGroup, ...]] = field(default_factory=dict)
    missing: tuple[AbsentRank, ...] = ()
    failures: tuple[RankError, ...] = ()
    status: str = RUNNING
    whole: bool = False


class RasReport(Struct, frozen=True):
    """One answer: what all ranks of the job reported within a few seconds."""

    nccl_version: str
    communicators: tuple[Communicator, ...]
    dead: tuple[RasMember, ...] = ()
    """Processes that are given up for dead (text only; their rank is not given: -1)."""
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


class RasError(HpctlError):
    """The RAS service cannot be asked, or its answer cannot be read."""


class _Status(msgspec.Struct, frozen=True):
    init_state: int = 0
    async_error: int = 0
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False


class _Process(msgspec.Struct, frozen=True):
    rank: int
    host: str = ""
    pid: int = -1
    cuda_dev: int = -1
    nvml_dev: int = -1


class _Rank(_Process, frozen=True):
    status: _Status = _Status()
    collective_counts: dict[str, int] = {}


class _Absent(msgspec.Struct, frozen=True):
    unresponsive: bool = True
    considered_dead: bool = False


class _MissingRank(_Process, frozen=True):
    status: _Absent = _Absent()


class _Communicator(msgspec.Struct, frozen=True):
    hash: str
    secondary_hash: str = ""
    size: int = 0
    ranks: list[_Rank] = []
    missing_ranks: list[_MissingRank] = []


class _Document(msgspec.Struct, frozen=True):
    nccl_version: str
    communicators: list[_Communicator]


_NO_COMMA = re.compile(rb'("nvml_dev": -?\d+)(\s+"status":)')
"""NCCL 2.28.9 leaves out a comma in each rank that is missing, as recorded on an H200."""


def read_json(raw: bytes) -> RasReport:
    """Read a whole answer. Raises RasError where it is torn, or no such document."""
    try:
        try:
            document = msgspec.json.decode(raw, type=_Document)
        except msgspec.DecodeError:
            document = msgspec.json.decode(_NO_COMMA.sub(rb"\1,\2", raw), type=_Document)
    # A deeply nested answer ends the decoder's recursion.
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RasError(
            f"the RAS service's JSON cannot be read: {error}",
            "was the job ending just then? ask again",
        ) from error
    return RasReport(
        nccl_version=document.nccl_version,
        communicators=tuple(_communicator(one) for one in document.communicators),
        text=raw[:SHOWN].decode(errors="replace"),
    )


def _communicator(raw: _Communicator) -> Communicator:
    return Communicator(
        name=f"{raw.hash}:{raw.secondary_hash}" if raw.secondary_hash else raw.hash,
        size=raw.size,
        counts=_counts(raw.ranks),
        missing=tuple(_missing(one) for one in raw.missing_ranks),
        failures=tuple(failure for one in raw.ranks if (failure := _failure(one))),
        status=_status(raw.ranks),
        whole=True,
    )


def _counts(ranks: list[_Rank]) -> Mapping[str, tuple[CountGroup, ...]]:
    names = dict.fromkeys(name for rank in ranks for name in rank.collective_counts)
    found = {}
    for name in names:
        by_count: dict[int, list[RasMember]] = defaultdict(list)
        for rank in ranks:
            by_count[rank.collective_counts.get(name, 0)].append(_member(rank))
        found[name] = tuple(
            CountGroup(count, len(members), tuple(members))
            for count, members in sorted(by_count.items())
        )
    return found


def _missing(raw: _MissingRank) -> AbsentRank:
    absence = Absence.ELSEWHERE
    if raw.status.considered_dead:
        absence = Absence.DEAD
    elif raw.status.unresponsive:
        absence = Absence.UNRESPONSIVE
    return AbsentRank(_member(raw), absence)


def _failure(raw: _Rank) -> RankError | None:
    for code in (raw.status.async_error, raw.status.init_state):
        if code not in (0, IN_PROGRESS):
            word = _ERRORS.get(code, f"error {code}")
            return RankError(_member(raw), word, code == REMOTE_ERROR)
    return None


def _status(ranks: list[_Rank]) -> str:
    """The furthest that any rank is, in NCCL's own order."""
    statuses = [rank.status for rank in ranks]
    if any(status.abort_flag for status in statuses):
        return ABORT
    if any(status.finalize_called or status.destroy_flag for status in statuses):
        return FINALIZE
    if any(status.init_state == 0 for status in statuses):
        return RUNNING
    return INIT


def _member(raw: _Process) -> RasMember:
    return RasMember(
        raw.rank,
        "" if raw.host == "unknown" else raw.host,
        raw.pid if raw.pid >= 0 else None,
        raw.cuda_dev if raw.cuda_dev >= 0 else None,
        raw.nvml_dev if raw.nvml_dev >= 0 else None,
    )


_VERSION = re.compile(r"NCCL version (\S+)")
_ROW = re.compile(
    r" *(?P<group>\d+) +(?P<comms>\d+) +\d+ +\S+ +(?P<size>\d+) +\d+ +(?P<status>[A-Z]+) +\S+ *\Z"
)
_SECTION = re.compile(r"#(?P<group>\d+)-(?P<one>\d+) \((?P<hash>[0-9a-f]+)\) (?P<what>[A-Z]+)\Z")
_COUNTS = re.compile(r"  Communicator ranks have different (?P<operation>\w+) operation counts\Z")
_OF_SEVERAL = re.compile(
    r"  (?P<size>\d+) ranks have (?:launched up to operation (?P<count>\d+)|not launched any)"
)
_OF_ONE = re.compile(
    r"  Rank \d+ has (?:launched up to operation (?P<count>\d+)|not launched any operations) -- "
)
_RANK = re.compile(r"  Rank (?P<rank>\d+)\b")
_MANAGED = re.compile(
    r"GPU (?P<cuda>\d+)(?: \(NVML (?P<nvml>\d+)\))? managed by process (?P<pid>\d+)"
    r" on node (?P<host>\S+)"
)
_PROCESS = re.compile(r"  Process (?P<pid>\d+) on node (?P<host>\S+) managing GPUs? (?P<cuda>\d+)")
_BARE = re.compile(r"  The missing ranks?: (?P<ranks>[\d,]+)")
_ERROR = re.compile(r"  (?:Rank \d+|\d+ ranks) reported (?P<error>[A-Za-z ]+?)(?: --|\Z)")
LONGEST_LINE = 4096


class _Draft(Struct):
    """A communicator as its sections describe it, one after the other."""

    name: str
    size: int | None
    status: str
    counts: dict[str, list[CountGroup]] = field(default_factory=dict)
    missing: list[AbsentRank] = field(default_factory=list)
    failures: list[RankError] = field(default_factory=list)

    def finished(self) -> Communicator:
        counts = {
            operation: tuple(sorted(groups, key=lambda group: group.count))
            for operation, groups in self.counts.items()
        }
        missing, failures = tuple(self.missing), tuple(self.failures)
        return Communicator(self.name, self.size, counts, missing, failures, self.status)


class _Reader:
    """Takes line by line; remembers whose lines they are."""

    def __init__(self) -> None:
        self.version = ""
        self.rows: dict[int, tuple[int, int, str]] = {}
        self.drafts: dict[tuple[int, int], _Draft] = {}
        self.dead: list[RasMember] = []
        self._draft: _Draft | None = None
        self._section = ""
        self._operation = ""
        self._error = ""

    def line(self, line: str) -> None:
        if not line.startswith("  "):
            self._header(line)
        elif self._section == "MISMATCH" and self._draft is not None:
            self._mismatch(self._draft, line)
        elif self._section == "INCOMPLETE" and self._draft is not None:
            self._incomplete(self._draft, line)
        elif self._section == "ERROR" and self._draft is not None:
            self._failed(self._draft, line)
        elif self._section == "DEAD" and (found := _PROCESS.match(line)):
            gpu = int(found["cuda"])
            self.dead.append(RasMember(-1, found["host"], int(found["pid"]), gpu))
        elif found := _ROW.match(line):
            self._row(found)

    def _row(self, found: re.Match[str]) -> None:
        row = (int(found["comms"]), int(found["size"]), found["status"])
        self.rows[int(found["group"])] = row

    def _header(self, line: str) -> None:
        if found := _ROW.match(line):
            self._row(found)
        elif found := _VERSION.match(line):
            self.version = found[1]
        elif found := _SECTION.match(line):
            key = (int(found["group"]), int(found["one"]))
            _, size, status = self.rows.get(key[0], (0, None, RUNNING))
            self._draft = self.drafts.setdefault(key, _Draft(f"0x{found['hash']}", size, status))
            self._section, self._operation = found["what"], ""
        elif line.strip():
            self._draft, self._section = None, line.strip()

    def _mismatch(self, draft: _Draft, line: str) -> None:
        if found := _COUNTS.match(line):
            self._operation = found["operation"]
        elif line.startswith("  Communicator ranks have different status"):
            self._operation = ""
        elif self._operation:
            groups = draft.counts.setdefault(self._operation, [])
            if found := _OF_SEVERAL.match(line):
                groups.append(CountGroup(int(found["count"] or 0), int(found["size"])))
            elif found := _OF_ONE.match(line):
                groups.append(CountGroup(int(found["count"] or 0), 1, _members(line)))
            elif groups and (members := _members(line)):
                last = groups[-1]
                groups[-1] = CountGroup(last.count, last.size, (*last.members, *members))

    def _incomplete(self, draft: _Draft, line: str) -> None:
        if found := _BARE.match(line):
            numbers = [int(text) for text in found["ranks"].split(",") if text]
            draft.missing += [AbsentRank(RasMember(n), Absence.UNRESPONSIVE) for n in numbers]
        else:
            draft.missing += [AbsentRank(m, Absence.UNRESPONSIVE) for m in _members(line)]

    def _failed(self, draft: _Draft, line: str) -> None:
        if found := _ERROR.match(line):
            self._error = found["error"].lower()
        remote = self._error == "remote process error"
        draft.failures += [RankError(m, self._error, remote) for m in _members(line) if self._error]


def _members(line: str) -> tuple[RasMember, ...]:
    """The rank that a line names, with its process where it is given."""
    found = _RANK.match(line)
    if not found:
        return ()
    rank, managed = int(found["rank"]), _MANAGED.search(line)
    if not managed:
        return (RasMember(rank),)
    cuda = int(managed["cuda"])
    nvml = int(managed["nvml"]) if managed["nvml"] else cuda
    return (RasMember(rank, managed["host"], int(managed["pid"]), cuda, nvml),)


def read_text(raw: bytes) -> RasReport:
    """Read a whole answer. Raises RasError where it is torn, or not such a text."""
    text = raw.decode(errors="replace")
    lines = text.splitlines()
    reader = _Reader()
    for line in lines:
        if len(line) <= LONGEST_LINE:
            reader.line(line.rstrip())
    # The last section's heading is always there, whether or not it has anything in it.
    if not reader.version or "Warnings" not in lines or "Errors" not in lines:
        raise RasError(
            "the RAS service's text is not whole", "was the job ending just then? ask again"
        )
    for draft in reader.drafts.values():
        _join(draft, reader.dead)
    reported = [draft.finished() for _, draft in sorted(reader.drafts.items())]
    return RasReport(
        nccl_version=reader.version,
        communicators=(*reported, *_unreported(reader)),
        dead=tuple(reader.dead),
        text=text[:SHOWN],
    )


def _join(draft: _Draft, dead: list[RasMember]) -> None:
    """2.24 and 2.25 list a missing rank and a dead process apart; one of each is the same."""
    if len(dead) == len(draft.missing) == 1 and draft.missing[0].member.pid is None:
        member = replace(dead[0], rank=draft.missing[0].member.rank)
        draft.missing = [AbsentRank(member, Absence.DEAD)]


def _unreported(reader: _Reader) -> list[Communicator]:
    """Communicators about which there is nothing to say: a row counts them, no section does."""
    found = []
    for group, (comms, size, status) in sorted(reader.rows.items()):
        reported = sum(key[0] == group for key in reader.drafts)
        names = (f"group {group}, number {n}" for n in range(min(comms - reported, 1)))
        found += [Communicator(name, size, status=status) for name in names]
    return found


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


class Address(Struct, frozen=True):
    """Where a job's RAS service listens: on each node with a rank, as a rule on loopback only."""

    host: str = "localhost"
    port: int = PORT

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str = "") -> Address:
    """Read `HOST:PORT` as NCCL_RAS_ADDR has it; empty is NCCL's default. Raises RasError."""
    if not text:
        return Address()
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise RasError(f"{text!r} is no HOST:PORT", "write NCCL_RAS_ADDR as localhost:28028")
    return Address(host.strip("[]"), int(port))


def address_of_job(job_id: int) -> Address:
    """An address for one job's NCCL_RAS_ADDR, so that two jobs on a node do not share the port.

    NCCL binds it with SO_REUSEPORT: of jobs on one port, any may answer. Below the ephemeral
    ports (ip(7)), and the same wherever it is worked out.
    """
    return Address("localhost", JOB_PORTS.start + job_id % len(JOB_PORTS))


def query(where: Address | None = None, deadline_s: float = DEADLINE_S) -> RasReport:
    """What all ranks of the job say now: JSON where the service knows it, its text elsewhere.

    Takes at most `deadline_s`. Raises RasError: nobody there, no answer in time, a torn one.
    """
    where = where or Address()
    line = _Connection(where, time.monotonic() + deadline_s)
    try:
        line.connect()
        line.send(f"CLIENT PROTOCOL {PROTOCOL}")
        reply = line.reply()
        if not reply.upper().startswith("SERVER PROTOCOL "):
            raise RasError(f"{where} is no RAS service: it says {reply[:80]!r}", _HINT)
        line.expect_ok(f"TIMEOUT {LEG_TIMEOUT_S}")
        line.send("SET FORMAT json")
        # Releases before 2.28.7 answer "ERROR: Unknown command ...", and go on.
        json = line.reply().upper() == "OK"
        line.send("VERBOSE STATUS")
        answer = line.rest()
    except OSError as error:
        reply = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or "?"
        raise RasError(f"cannot ask the RAS service at {where}: {reply}", _HINT) from error
    finally:
        line.close()
    return read_json(answer) if json else read_text(answer)


_HINT = (
    "does this node run a rank of the job, with NCCL 2.24 or later, NCCL_RAS_ENABLE not 0,"
    " and is NCCL_RAS_ADDR the job's own?"
)


class _Connection:
    """One connection with one deadline for everything on it."""

    def __init__(self, where: Address, deadline: float) -> None:
        self._where, self._deadline = where, deadline
        self._socket: socket.socket | None = None
        self._left = b""

    def connect(self) -> None:
        # localhost may be ::1 and 127.0.0.1, and NCCL listens on one of them.
        self._socket = socket.create_connection(
            (self._where.host, self._where.port), timeout=self._remaining()
        )

    def send(self, command: str) -> None:
        self._timed().sendall(command.encode() + b"\n")

    def reply(self) -> str:
        """One line."""
        while b"\n" not in self._left:
            if len(self._left) > LONGEST_GREETING:
                raise RasError(f"{self._where} answers without an end of line", _HINT)
            more = self._timed().recv(LONGEST_GREETING)
            if not more:
                raise RasError(f"{self._where} closed the connection", _HINT)
            self._left += more
        text, _, self._left = self._left.partition(b"\n")
        return text.decode(errors="replace").strip()

    def expect_ok(self, command: str) -> None:
        self.send(command)
        reply = self.reply()
        if reply.upper() != "OK":
            raise RasError(f"{self._where} answers {reply[:80]!r} to {command}", _HINT)

    def rest(self) -> bytes:
        """Everything until the service closes."""
        chunks, size = [self._left], len(self._left)
        while more := self._timed().recv(_CHUNK):
            chunks.append(more)
            size += len(more)
            if size > LARGEST_ANSWER:
                raise RasError(f"{self._where} answers more than {LARGEST_ANSWER} bytes", _HINT)
        return b"".join(chunks)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _timed(self) -> socket.socket:
        assert self._socket is not None
        self._socket.settimeout(self._remaining())
        return self._socket

    def _remaining(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

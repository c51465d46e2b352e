"""The text answer (all that NCCL 2.24 to 2.28.3 give) to values.

NCCL promises no stable text. Lines that are not known are passed over; an answer without its last
section is torn. 2.24 and 2.25 count all operations together and give missing ranks as bare
numbers; 2.26 counts each operation and says which process and GPU is missing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from hpctl.jobs.ras.document import SHOWN, RasError
from hpctl.jobs.ras.values import (
    RUNNING,
    Absence,
    Communicator,
    Failure,
    Group,
    Member,
    Missing,
    Report,
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
_TIMEOUTS = re.compile(r"  Encountered (?P<times>\d+) communication timeout")
LONGEST_LINE = 4096


@dataclass(slots=True)
class _Draft:
    """A communicator as its sections tell of it, one after the other."""

    name: str
    size: int | None
    status: str
    counts: dict[str, list[Group]] = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

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
        self.dead: list[Member] = []
        self.timeouts = 0
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
            self.dead.append(Member(-1, found["host"], int(found["pid"]), gpu))
        elif self._section == "TIMEOUT" and (found := _TIMEOUTS.match(line)):
            self.timeouts = int(found["times"])
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
                groups.append(Group(int(found["count"] or 0), int(found["size"])))
            elif found := _OF_ONE.match(line):
                groups.append(Group(int(found["count"] or 0), 1, _members(line)))
            elif groups and (members := _members(line)):
                last = groups[-1]
                groups[-1] = Group(last.count, last.size, (*last.members, *members))

    def _incomplete(self, draft: _Draft, line: str) -> None:
        if found := _BARE.match(line):
            numbers = [int(text) for text in found["ranks"].split(",") if text]
            draft.missing += [Missing(Member(n), Absence.UNRESPONSIVE) for n in numbers]
        else:
            draft.missing += [Missing(m, Absence.UNRESPONSIVE) for m in _members(line)]

    def _failed(self, draft: _Draft, line: str) -> None:
        if found := _ERROR.match(line):
            self._error = found["error"].lower()
        remote = self._error == "remote process error"
        draft.failures += [Failure(m, self._error, remote) for m in _members(line) if self._error]


def _members(line: str) -> tuple[Member, ...]:
    """The rank that a line tells of, with its process where it is told."""
    found = _RANK.match(line)
    if not found:
        return ()
    rank, managed = int(found["rank"]), _MANAGED.search(line)
    if not managed:
        return (Member(rank),)
    cuda = int(managed["cuda"])
    nvml = int(managed["nvml"]) if managed["nvml"] else cuda
    return (Member(rank, managed["host"], int(managed["pid"]), cuda, nvml),)


def read(raw: bytes) -> Report:
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
    told = [draft.finished() for _, draft in sorted(reader.drafts.items())]
    return Report(
        nccl_version=reader.version,
        communicators=(*told, *_untold(reader)),
        dead=tuple(reader.dead),
        timeouts=reader.timeouts,
        text=text[:SHOWN],
    )


def _join(draft: _Draft, dead: list[Member]) -> None:
    """2.24 and 2.25 tell a missing rank and a dead process apart; one of each is the same."""
    if len(dead) == len(draft.missing) == 1 and draft.missing[0].member.pid is None:
        member = replace(dead[0], rank=draft.missing[0].member.rank)
        draft.missing = [Missing(member, Absence.DEAD)]


def _untold(reader: _Reader) -> list[Communicator]:
    """Communicators about which there is nothing to say: a row counts them, no section does."""
    found = []
    for group, (comms, size, status) in sorted(reader.rows.items()):
        told = sum(key[0] == group for key in reader.drafts)
        names = (f"group {group}, number {n}" for n in range(min(comms - told, 1)))
        found += [Communicator(name, size, status=status) for name in names]
    return found

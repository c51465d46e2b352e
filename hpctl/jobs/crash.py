"""Python tracebacks in a log that many ranks write to, and text without what changes every run.

The regular expressions here are anchored, without nested repeats, on lines of bounded length.
"""

import re
import signal
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import IntEnum
from functools import cache
from importlib.resources import files
from typing import Any, Final

import yaml
from msgspec import Struct
from msgspec.structs import replace

from hpctl.core.model import NodeName
from hpctl.core.run_policy import RunPolicy
from hpctl.core.trouble import EVIDENCE_CHARS, UNSTARTED, Kind, Trouble, unstarted
from hpctl.jobs.logs.patterns import Pattern

SIGNATURE_CHARS: Final = 200
MESSAGE_CHARS: Final = 120

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# `srun --label` writes "3: ", torch "[rank3]: ", torchrun's tee "[default3]:".
_STREAM: Final = re.compile(r"(?: *\d+: )?(?:\[(?:rank|default|trainer)\d+\]:? ?)?")
_RANK: Final = re.compile(r"\[rank(\d+)\]|\bRank (\d+)\b|\bon rank (\d+)\b|^ *(\d+): ")
_FRAME: Final = re.compile(r'  File "([^"]*)", line \d+, in (.+)')
_NAME: Final = re.compile(r"([A-Za-z_][\w.]*)(?::\s?(.*))?$")
_ERROR: Final = re.compile(r"[\w.]*(?:Error|Exception|Interrupt|Exit|Timeout|Failure)\b")
_LIBRARY: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<frozen ")
_ECHOES: Final = frozenset(
    {"ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "CalledProcessError"}
    | {"KeyboardInterrupt", "SignalException", "SystemExit"}
)

_VARIES: Final = (
    (re.compile(r"^\S*[EWIF]\d{4} [\d:. ]+"), ""),
    (re.compile(r"(?:/tmp|/var/tmp|/dev/shm|/run)/[^\s'\",;:)\]]*"), "<tmp>"),
    (re.compile(r"\b(?:[\w-]+\.){2,}[\w-]+(?::\d+)?\b"), "<host>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "#"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b"), "#"),
    (re.compile(r"\d[\d.,_]*(?:e[+-]?\d+)?"), "#"),
    (re.compile(r"#(?:[-:x., ]{1,3}#)+"), "#"),
)


class Raised(Struct, frozen=True):
    """An uncaught exception as a log shows it. `where` is `function (file)` of the user's code."""

    begin: int
    line: int
    name: str
    message: str
    where: str

    @property
    def echoes(self) -> bool:
        """Whether it only says that another process failed, or that a signal came."""
        return self.name.rpartition(".")[2] in _ECHOES

    @property
    def why(self) -> str:
        """For a person."""
        message = f": {self.message[:MESSAGE_CHARS]}" if self.message else ""
        return f"{self.name} in {self.where}{message}"

    @property
    def signature(self) -> str:
        """The same for the same error in another run."""
        return f"{self.name} in {self.where}: {stable(self.message)}"[:SIGNATURE_CHARS]


def tracebacks(lines: Sequence[str]) -> Iterator[Raised]:
    """Every traceback that ends in an exception, each rank's lines read apart by their prefix."""
    begun: dict[str, int] = {}
    frames: dict[str, list[tuple[str, str]]] = {}
    indented: dict[str, bool] = {}
    for number, line in enumerate(lines):
        prefix = _STREAM.match(line)
        stream = prefix[0] if prefix else ""
        text = line[len(stream) :]
        if text.startswith("Traceback (most recent call last)"):
            begun[stream], frames[stream], indented[stream] = number, [], False
        elif stream not in begun:
            continue
        elif found := _FRAME.match(text):
            frames[stream].append((found[1], found[2]))
            indented[stream] = True
        elif text.startswith(" ") or not text.strip():
            indented[stream] = indented[stream] and bool(text.strip())
        else:
            found = _NAME.match(text)
            # Between the ranks of a log without prefixes, a line of another may come first.
            if found and (indented[stream] or _ERROR.match(found[1])):
                where = _where(frames.pop(stream))
                yield Raised(begun.pop(stream), number, found[1], (found[2] or "").strip(), where)


def _where(frames: Sequence[tuple[str, str]]) -> str:
    """The innermost frame of the user's own code, or else the innermost of all."""
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    for path, function in reversed(own or frames):
        return f"{function} ({path.rpartition('/')[2]})"
    return "unknown place"


def stable(text: str) -> str:
    """A text without addresses, numbers, temporary paths and host addresses."""
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    return " ".join(text.split())[:SIGNATURE_CHARS]


def plain(text: str) -> str:
    """One line without colours and control characters."""
    bare = _COLOUR.sub("", text)
    return "".join(c if c.isprintable() else " " for c in bare.rstrip())


def rank_of(line: str) -> int | None:
    """The rank that a line says it is from."""
    found = _RANK.search(line)
    return int(next(filter(None, found.groups()))) if found else None


TAIL_LINES: Final = 500
TAIL_BYTES: Final = 64 * 1024
LINE_CHARS: Final = 2000
SURVIVED_LINES: Final = 40
"""A run that printed so many ordinary lines after an error has survived it."""

_DIED: Final = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGTRAP", "SIGSYS"})
_SAVES: Final = frozenset({"SIGUSR1", "SIGUSR2"})
_SRUN_CODE: Final = re.compile(r"srun: error: (\S+): tasks? \S+: Exited with exit code (\d+)")
_NOT_STARTED: Final = re.compile(
    r"slurmstepd: error: (execve\(\): .+: (?:No such file or directory|Permission denied"
    r"|Exec format error))|^(?:\d+: )?(\S*python\S*: can't open file .+: \[Errno 2\] .+)"
)
_SRUN_NODE: Final = re.compile(r"srun: error: (\S+): tasks? ")
_TIMED_OUT: Final = re.compile(
    r"Rank (\d+)\] Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(\d+)"
)
_NODE: Final = re.compile(
    r"Node failure on (\S+)|, node: ([\w.-]+)|^(?:\S+ )?([\w.-]+):\d+:\d+ \[\d+\] NCCL "
)
_DEVICE: Final = re.compile(
    r"\bGPU (\d+) has|cuda:(\d+)|Device: (\d+)|Xid \(([^)]+)\)"
    r"|:\d+:\d+ \[(\d+)\] NCCL |\b(nd\d+ nc\d+)"
)


class PatternTier(IntEnum):
    """How much a line explains. The lowest tier wins, and within it the first line."""

    ORDER = 0
    """Slurm says that it ended the run, and why."""
    CAUSE = 1
    """A rank says what broke in it."""
    ECHO = 2
    """A rank says that it lost others: the first of these when nobody says what broke."""
    WRAPPER = 3
    """A launcher says that one of its processes ended, and of what signal or exit code."""


class CrashPattern(Struct, frozen=True):
    """One wording of crash_patterns.yaml, which says what each field means."""

    kind: Kind
    pattern: str
    says: str
    sample: str
    source: str
    tier: PatternTier = PatternTier.CAUSE
    named: bool = False
    names_node: bool = True


class _Hit(Struct, frozen=True):
    """A line that explains something."""

    line: int
    tier: PatternTier
    kind: Kind
    why: str
    signature: str
    names_node: bool = True
    begin: int = 0
    """The first line that belongs to it."""


class _Root(Struct, frozen=True):
    """What torchrun calls the first observed failure."""

    host: str = ""
    rank: int | None = None
    code: int | None = None


def classify(
    exit_code: int,
    tail: Sequence[str],
    *,
    at: datetime,
    node: NodeName | None = None,
    rank: int | None = None,
    policy: RunPolicy,
    again: bool = False,
) -> Trouble:
    """What the end of a run amounts to.

    `exit_code` is the shell's (128 + n for signal n; Python's -n is understood). `tail` are the
    log's last lines; the last 500 and 64 KiB count. `node` and `rank` are where the first task
    ended, used where the log names none. `again`: another run or rank of this job was able to start
    its command. Never raises for odd text.
    """
    lines = _bounded(tail)
    root = _first_observed(lines)
    code = _shell_code(exit_code)
    trouble = Trouble(Kind.CRASH, at, "", exit_code=code, node=node, rank=rank)
    hit = _best(lines)
    if contract := _contract(policy, [code, root.code, *_srun_codes(lines)]):
        kind, why, code = contract
        return replace(trouble, kind=kind, why=why, signature=why, exit_code=code)
    if code == 0 and not (hit and hit.tier is PatternTier.ORDER):
        why = "it ended with exit code 0 before its end"
        return replace(trouble, kind=Kind.NO_PROGRESS, why=why, signature="exit 0")
    if hit is None or hit.tier > PatternTier.CAUSE:
        why = _unstarted([code, root.code], lines)
        if why:
            kind, reason = unstarted(why, again)
            return replace(trouble, kind=kind, why=reason, signature=why)
    if hit is None or hit.tier is PatternTier.WRAPPER:
        code = root.code if root.code is not None else code
        # A launcher's exit code says no more than its own text; a signal does.
        hit = _of_code(code) if hit is None or _signal(code) else hit
    return _located(trouble, hit, lines, root, code)


def _located(trouble: Trouble, hit: _Hit, lines: Sequence[str], root: _Root, code: int) -> Trouble:
    """The trouble with place and evidence."""
    line = lines[hit.line] if 0 <= hit.line < len(lines) else ""
    evidence = "\n".join(lines[hit.begin : hit.line + 3])[-EVIDENCE_CHARS:] if line else ""
    located = replace(
        trouble, kind=hit.kind, signature=hit.signature, exit_code=code, evidence=evidence
    )
    if not hit.names_node:
        # Who complains of the others is not who is broken, except where one is behind them all.
        behind = _behind(lines) if hit.kind is Kind.NETWORK else None
        why = hit.why if behind is None else f"{hit.why}: rank {behind} is behind the others"
        return replace(located, why=why, node=None, rank=behind)
    rank = rank_of(line)
    if rank is None:
        rank = root.rank if root.rank is not None else trouble.rank
    same_place = trouble.rank in (None, rank)
    named = _first(_NODE, [line]) or (root.host if rank == root.rank else "")
    if not named and not trouble.node:
        named = _first(_SRUN_NODE, lines)
    node = _name(named) or (trouble.node if same_place else None)
    why = hit.why if rank is None else f"rank {rank}: {hit.why}"
    return replace(located, why=why, node=node, rank=rank, device=_first(_DEVICE, [line]))


def _behind(lines: Sequence[str]) -> int | None:
    """The one rank whose timed-out collective is older than everybody else's, if there is one."""
    oldest: dict[int, int] = {}
    for line in lines:
        if found := _TIMED_OUT.search(line):
            rank, number = int(found[1]), int(found[2])
            oldest[rank] = min(number, oldest.get(rank, number))
    if len(oldest) < 2:
        return None
    last, other = sorted(oldest, key=oldest.__getitem__)[:2]
    return last if oldest[last] < oldest[other] else None


def _bounded(tail: Sequence[str]) -> list[str]:
    """The last lines that count, one line each, without colours."""
    kept: list[str] = []
    left = TAIL_BYTES
    for text in reversed(tail[-TAIL_LINES:]):
        line = plain(text[:LINE_CHARS])
        left -= len(line) + 1
        if left < 0:
            break
        kept.append(line)
    return kept[::-1]


def _best(lines: Sequence[str]) -> _Hit | None:
    """The hit of the lowest tier, and of those the first, among what the run did not survive."""
    hits = [*_lines_that_explain(lines)]
    lived_to = _survived(lines, {n for hit in hits for n in range(hit.begin, hit.line + 1)})
    fatal = [hit for hit in hits if hit.tier is PatternTier.ORDER or hit.line >= lived_to]
    return min(fatal, key=lambda hit: (hit.tier, hit.line), default=None)


def _lines_that_explain(lines: Sequence[str]) -> Iterator[_Hit]:
    rows = _rows_by_line(lines)
    raised = {one.line: one for one in tracebacks(lines)}
    for number in sorted(rows.keys() | raised.keys()):
        row, error = rows.get(number), raised.get(number)
        begin = error.begin if error else number
        if row is not None and not (row.named and error):
            text = stable(lines[number])
            why = f"{row.says}: {lines[number].strip()[:120]}" if row.named else row.says
            signature = f"{row.says}: {text}" if row.named else row.says
            yield _Hit(number, row.tier, row.kind, why, signature, row.names_node, begin)
        elif error is not None and not error.echoes:
            yield _Hit(
                number, PatternTier.CAUSE, Kind.CRASH, error.why, error.signature, True, begin
            )


def crash_patterns() -> tuple[CrashPattern, ...]:
    """The rows of crash_patterns.yaml, in their order."""
    text = files(__package__).joinpath("crash_patterns.yaml").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = yaml.safe_load(text)
    return tuple(
        CrashPattern(Kind(row.pop("kind")), tier=PatternTier[row.pop("tier", "CAUSE")], **row)
        for row in rows
    )


@cache
def _patterns() -> tuple[tuple[CrashPattern, Pattern], ...]:
    # Named rows say least of a line: any other row that matches it goes before.
    order = sorted(crash_patterns(), key=lambda row: (row.named, row.tier))
    return tuple((row, Pattern(row.pattern)) for row in order)


def _rows_by_line(lines: Sequence[str]) -> dict[int, CrashPattern]:
    """For each line that a row matches, the row that says most of it."""
    block, starts = bytearray(), []
    for line in lines:
        starts.append(len(block))
        block += line.encode() + b"\n"
    found: dict[int, CrashPattern] = {}
    whole = bytes(block)
    for row, pattern in _patterns():
        for match in pattern.matches(whole):
            found.setdefault(bisect_right(starts, match.at) - 1, row)
    return found


_NOISE: Final = re.compile(
    r"\s(?!\s*\d+%\|)|$|srun: |slurmstepd: |wandb: |frame #|[WEIF]\d{4} |\[\d+\]:$|[=*-]{8}"
    r"|\S* ?NCCL |Failures:|Traceback |Exception raised from|terminate called|During handling"
    r"|The above exception|\[rank\d+\]:"
)


def _survived(lines: Sequence[str], trouble: set[int]) -> int:
    """The line up to which the run got over its errors: the last one of them, or 0."""
    ordinary, before, lived_to = 0, -1, 0
    for number, line in enumerate(lines):
        if number in trouble:
            ordinary, before = 0, number
        elif not _NOISE.match(line):
            ordinary += 1
        if ordinary >= SURVIVED_LINES and before >= lived_to:
            lived_to = before + 1
    return lived_to


def _first_observed(lines: Sequence[str]) -> _Root:
    """The block that torchrun prints below `Root Cause (first observed failure):`."""
    values: dict[str, str] = {}
    inside = False
    for line in lines:
        if "Root Cause (first observed failure):" in line:
            inside, values = True, {}
        elif inside and ":" in line:
            key, _, value = line.partition(":")
            values.setdefault(key.split()[-1] if key.split() else "", value.strip())
            inside = not line.lstrip().startswith("traceback")
    rank, code = (re.match(r"-?\d+", values.get(key, "")) for key in ("rank", "exitcode"))
    host = values.get("host", "")
    return _Root(
        "" if host.startswith(("localhost", "127.")) else host,
        int(rank[0]) if rank else None,
        _shell_code(int(code[0])) if code else None,
    )


def _contract(policy: RunPolicy, codes: Sequence[int | None]) -> tuple[Kind, str, int] | None:
    """What one of the exit codes that mean something asks for."""
    for code in codes:
        if code is not None and code in policy.final_exit_codes:
            return Kind.FINAL, f"exit code {code} asks not to be run again", code
    for code in codes:
        if code is not None and code in policy.corruption_exit_codes:
            return Kind.CORRUPTION, f"exit code {code}: results could not be reproduced", code
    return None


def _unstarted(codes: Sequence[int | None], lines: Sequence[str]) -> str:
    """Why the command could not be started; empty where it could."""
    for code in codes:
        if code is not None and code in UNSTARTED:
            return f"{UNSTARTED[code]} (exit code {code})"
    error = _first(_NOT_STARTED, lines)
    return f"its command cannot be started: {error[:120]}" if error else ""


def _of_code(code: int) -> _Hit:
    name, kind = _signal(code), Kind.CRASH
    if not name:
        why, signature = f"it ended with exit code {code}", f"exit {code}"
    elif name in _DIED:
        why, signature = f"it died of {name}", name
    else:
        extra = ": no handler saved on it" if name in _SAVES else ""
        why, signature, kind = f"it was killed by {name}{extra}", name, Kind.KILLED
    return _Hit(-1, PatternTier.WRAPPER, kind, why, signature)


def _signal(code: int) -> str:
    """The name of the signal that an exit code stands for; empty for none."""
    try:
        return signal.Signals(code - 128).name if code > 128 else ""
    except ValueError:
        return ""


def _shell_code(status: int) -> int:
    """The shell's exit code of a status as Python has it (-n for signal n)."""
    return 128 - status if status < 0 else status


def _srun_codes(lines: Sequence[str]) -> Iterator[int]:
    for line in lines:
        if found := _SRUN_CODE.search(line):
            yield int(found[2])


def _first(pattern: re.Pattern[str], lines: Sequence[str]) -> str:
    """What the first line that matches captures."""
    for line in lines:
        if found := pattern.search(line):
            return next(filter(None, found.groups()), "")
    return ""


def _name(host: str) -> NodeName | None:
    """A host's short name, as Slurm calls nodes; None for an address."""
    if not host or re.fullmatch(r"[\d.:]+", host):
        return None
    return NodeName(host.partition(".")[0])

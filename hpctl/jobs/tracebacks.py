"""Python tracebacks in a log that many ranks write to.

The beginning of a line shows which process wrote it: the label of a launcher, torch's `[rank3]: `,
a time. The prefixes of some launchers are listed here. Any other one is learned where a traceback
begins, as the text that its first line and the next one share. So the margin of an exception group
is a prefix, and a line that a progress bar has begun is no obstacle.

The regular expressions are anchored, without nested repeats, on lines of bounded length.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct, field

SIGNATURE_CHARS: Final = 200
MESSAGE_CHARS: Final = 120
_MOST_LEARNED: Final = 64
"""Prefixes of unknown launchers that are looked for at once."""
_PREFIX_CHARS: Final = 96

_LABEL: Final = r" {0,8}\d{1,7}: "
"""`srun --label` names the task: a rank, or the launcher of several."""
_STREAM: Final = re.compile(
    rf"(?:{_LABEL})?(?:\[[\w.@-]{{1,64}},\d{{1,7}}\]<std(?:err|out)>:)?"
    r"(?:\[(?:default|trainer)\d{1,7}\]:)?(?:\[rank\d{1,7}\]:(?: |$))?"
)
"""`srun --label` writes "3: ", Open MPI "[1,3]<stderr>:", torchrun's tee "[default3]:", torch
"[rank3]: "."""
_TIME: Final = re.compile(
    rf"(?P<label>{_LABEL})?\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,\d]{{0,10}}"
    r"(?:Z|[+-]\d\d:?\d\d)? "
)
_OPEN_MPI: Final = re.compile(r"(?: {0,8}\d{1,7}: )?\[[\w.@-]{1,64},(\d{1,7})\]<std(?:err|out)>:")
_HYDRA: Final = re.compile(r"\[(\d{1,7})\] \Z")
"""The label of Hydra's `-prepend-rank`, as a learned prefix."""
_RAISED_BY_HOOK: Final = re.compile(r"\[rank\d{1,7}\]: ")
_HEADER: Final = "Traceback (most recent call last)"
_FRAME: Final = re.compile(r'  File "([^"]*)", line \d+, in (.+)')
_BOX_FRAME: Final = re.compile(r"│ (\S{1,200}):\d{1,7} in (\S{1,100})")
"""A frame as the library `rich` draws it."""
_BOX: Final = ("╭", "│", "╰")
_SLURM: Final = re.compile(r"srun: |slurmstepd(?:-[\w.-]+)?: ")
_UNPARSED: Final = re.compile(r'  File "([^"]*)", line (\d+)$')
_SYNTAX: Final = re.compile(r"(SyntaxError|IndentationError|TabError): (.*)")
_NAME: Final = re.compile(r"([A-Za-z_][\w.]*)(?::\s?(.*))?$")
_ERROR: Final = re.compile(r"[\w.]*(?:Error|Exception|Interrupt|Exit|Timeout|Failure)\b")
_LIBRARY: Final = re.compile(r"/(?:site|dist)-packages/|/lib/python3|^<frozen |\.pyx$")
_ECHOES: Final = frozenset(
    {"ChildFailedError", "ProcessRaisedException", "ProcessExitedException", "CalledProcessError"}
    | {"KeyboardInterrupt", "SignalException", "SystemExit", "CheckpointException"}
    | {"ExceptionGroup", "BaseExceptionGroup"}
)
_LOST_PEERS: Final = frozenset(
    {"ConnectionError", "ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError"}
    | {"ConnectionAbortedError", "IncompleteReadError"}
)
"""Exceptions of a process whose other side has closed the connection, or does not listen: Python's
own, with the codes of connect(2), recv(2) and send(2)."""
_LOST_WHERE_EMPTY: Final = frozenset({"EOFError", "Empty"})
"""Those that mean this where they have no text: of multiprocessing.connection and queue."""
_CHAINED: Final = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
"""What Python prints between the tracebacks of one failure (Lib/traceback.py)."""
_OTHER_RANK: Final = re.compile(r"Traceback \(most recent call last\): \(RANK (\d{1,7})\)")
"""How each rank of a torch.distributed.checkpoint prints the traceback of the ranks that failed
(CheckpointException in torch/distributed/checkpoint/api.py)."""
_UNCAUGHT: Final = re.compile(
    r"Exception in thread |Process \S{1,80}:$|-- Process \d{1,7} terminated"
)
"""What Python and torch.multiprocessing print before the traceback that ends a thread or a child
(Lib/threading.py, Lib/multiprocessing/process.py)."""

_VARIES: Final = (
    (re.compile(r"^\S*[EWIF]\d{4} [\d:. ]+"), ""),
    (re.compile(r"(?:/tmp|/var/tmp|/dev/shm|/run)/[^\s'\",;:)\]]*"), "<tmp>"),
    (re.compile(r"\b(?:[\w-]+\.){2,}[\w-]+(?::\d+)?\b"), "<host>"),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "#"),
    (re.compile(r"\b(?=[a-f]*\d)[0-9a-f]{8,}\b"), "#"),
    (re.compile(r"\d[\d.,_]*(?:e[+-]?\d+)?"), "#"),
    (re.compile(r"#(?:[-:x., ]{1,3}#)+"), "#"),
)


class ParsedException(Struct, frozen=True):
    """An exception as a log shows it. `where` is `function (file)`: of the user's code where `own`,
    else of the library that raised. `after` is the line of the exception in whose handling it was
    raised, `rank` the rank that raised it where its traceback says so, `writer` the rank or process
    that its line's prefix names. `hooked`: torch's hook for uncaught exceptions printed it.
    `ended_thread`: it ended a thread or a child process."""

    begin: int
    line: int
    name: str
    message: str
    where: str
    own: bool = False
    after: int | None = None
    rank: int | None = None
    writer: int | None = None
    hooked: bool = False
    ended_thread: bool = False

    @property
    def short_name(self) -> str:
        """Return the name of the class without its module."""
        return self.name.rpartition(".")[2]

    @property
    def echoes(self) -> bool:
        """Return whether it only says that another process failed, or that a signal came."""
        # A launcher in a library runs the ranks; a program runs what it needs.
        return self.short_name in _ECHOES and not (
            self.own and self.short_name == "CalledProcessError"
        )

    @property
    def has_lost_peer(self) -> bool:
        """Return whether it says that the other side of a connection has gone."""
        name = self.short_name
        return name in _LOST_PEERS or (name in _LOST_WHERE_EMPTY and not self.message)

    @property
    def why(self) -> str:
        """Return the cause in words for a person."""
        message = f": {self.message[:MESSAGE_CHARS]}" if self.message else ""
        return f"{self.name} in {self.where}{message}"

    @property
    def signature(self) -> str:
        """Return a text that is the same for the same error in another run."""
        return f"{self.name} in {self.where}: {mask_addresses_and_numbers(self.message)}"[
            :SIGNATURE_CHARS
        ]


class _UnfinishedTraceback(Struct):
    """A traceback whose end has not come."""

    line: int
    ended_thread: bool = False
    frames: list[tuple[str, str]] = field(default_factory=list)
    indented: bool = False


class _TracebackReader(Struct):
    """The tracebacks that have begun and the last that ended, by the prefix of their lines."""

    begun: dict[str, _UnfinishedTraceback] = field(default_factory=dict)
    unparsed: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    after: dict[str, int | None] = field(default_factory=dict)
    learned: list[str] = field(default_factory=list)
    announced: dict[str, int] = field(default_factory=dict)
    """The lines after which an uncaught exception of a thread or child comes."""

    def split(self, line: str) -> tuple[str, str]:
        """Return the prefix of a line and the text after it."""
        known = split_launcher_prefix(line)
        for prefix in self.learned:
            if len(prefix) > len(known[0]) and line.startswith(prefix):
                return prefix, line[len(prefix) :]
        return known

    def learn(self, prefix: str) -> None:
        """Look for one more prefix; the longest is looked for first."""
        if prefix not in self.learned and len(self.learned) < _MOST_LEARNED:
            self.learned.append(prefix)
            self.learned.sort(key=len, reverse=True)


def split_launcher_prefix(line: str) -> tuple[str, str]:
    """Return the prefix that a known launcher gives a line, and the text after it."""
    found = _STREAM.match(line)
    prefix = found[0] if found else ""
    return prefix, line[len(prefix) :]


def parse_mpi_rank(prefix: str) -> int | None:
    """Return the rank that the prefix of an `mpirun` names; None where it is of none."""
    found = _OPEN_MPI.match(prefix) or _HYDRA.match(prefix)
    return int(found[1]) if found else None


def find_traceback_exceptions(lines: Sequence[str]) -> Iterator[ParsedException]:
    """Yield every traceback that ends in an exception, each rank's lines read apart by their
    prefix."""
    reader = _TracebackReader()
    bare = [_strip_timestamp(line) for line in lines]
    for number, line in enumerate(bare):
        if _SLURM.match(line):
            continue  # of srun or slurmstepd, which write between the lines of the ranks
        stream, text = _split_detected_stream_prefix(reader, bare, number)
        if _is_traceback_header(text):
            announced = reader.announced.pop(stream, None)
            reader.begun[stream] = _UnfinishedTraceback(
                number, ended_thread=announced == number - 1
            )
        elif _UNCAUGHT.match(text):
            reader.announced[stream] = number
        elif text.startswith(_CHAINED):
            reader.after[stream] = reader.ended.get(stream)
        elif stream not in reader.begun:
            yield from _find_syntax_error(reader, stream, number, text)
        else:
            yield from _parse_traceback_line(reader, stream, number, text, lines)


def _parse_traceback_line(
    reader: _TracebackReader, stream: str, number: int, text: str, lines: Sequence[str]
) -> Iterator[ParsedException]:
    """Yield the exception that a line of a traceback ends with."""
    begun = reader.begun[stream]
    found = _FRAME.match(text) or _BOX_FRAME.match(text)
    if found:
        begun.frames.append((found[1], found[2]))
        begun.indented = True
        return
    if text.startswith((" ", *_BOX)) or not text.strip():
        begun.indented = begun.indented and bool(text.strip())
        return
    found = _NAME.match(text)
    # Between the ranks of a log without prefixes, a line of another may come first.
    if not found or not (begun.indented or _ERROR.match(found[1])):
        return
    where, own = _find_innermost_frame(begun.frames)
    del reader.begun[stream]
    reader.ended[stream] = number
    header = _OTHER_RANK.search(lines[begun.line])
    yield ParsedException(
        begun.line,
        number,
        found[1],
        (found[2] or "").strip(),
        where,
        own,
        reader.after.pop(stream, None),
        int(header[1]) if header else None,
        parse_mpi_rank(stream),
        bool(_RAISED_BY_HOOK.search(stream)),
        begun.ended_thread,
    )


def _strip_timestamp(line: str) -> str:
    """Return a line without the time before its text, which differs by line."""
    found = _TIME.match(line)
    return f"{found['label'] or ''}{line[found.end() :]}" if found else line


def _is_traceback_header(text: str) -> bool:
    return text.startswith((_HEADER, "╭")) and _HEADER in text


def _split_detected_stream_prefix(
    reader: _TracebackReader, lines: Sequence[str], number: int
) -> tuple[str, str]:
    """Return the prefix of a line and the text after it. Where a traceback begins after a text of
    unknown form, its next lines show how much of that is a prefix."""
    line = lines[number]
    stream, text = reader.split(line)
    at = text.find(_HEADER)
    if at <= 0 or _is_traceback_header(text):
        return stream, text
    before = line[: len(stream) + at]
    for follower in lines[number + 1 : number + 3]:
        prefix, frame, _ = _strip_timestamp(follower).partition('  File "')
        if frame and len(prefix) <= _PREFIX_CHARS and before.endswith(prefix):
            reader.learn(prefix)
            return prefix, line[len(before) :]
    return stream, text


def _find_syntax_error(
    reader: _TracebackReader, stream: str, number: int, text: str
) -> Iterator[ParsedException]:
    """Yield the error of a program that Python cannot parse: it has no traceback, only its file,
    whose line the reader keeps for each prefix."""
    found = _UNPARSED.match(text)
    if found:
        reader.unparsed[stream] = (number, found[1], found[2])
        return
    found = _SYNTAX.match(text)
    if found and stream in reader.unparsed:
        first, path, at = reader.unparsed.pop(stream)
        where = f"line {at} ({path.rpartition('/')[2]})"
        own = not _LIBRARY.search(path)
        yield ParsedException(first, number, found[1], found[2].strip(), where, own)


def _find_innermost_frame(frames: Sequence[tuple[str, str]]) -> tuple[str, bool]:
    """Return the innermost frame of the user's own code, or else the innermost of all; and which it
    is."""
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])]
    for path, function in reversed(own or frames):
        return f"{function} ({path.rpartition('/')[2]})", bool(own)
    return "unknown place", False


def mask_addresses_and_numbers(text: str) -> str:
    """Return a text without addresses, numbers, temporary paths and host addresses."""
    for pattern, instead in _VARIES:
        text = pattern.sub(instead, text)
    return " ".join(text.split())[:SIGNATURE_CHARS]

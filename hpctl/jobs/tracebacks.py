"""Python tracebacks in a log that many ranks write to, and text without what changes every run.

The regular expressions here are anchored, without nested repeats, on lines of bounded length.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

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


@dataclass(frozen=True, slots=True)
class Raised:
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

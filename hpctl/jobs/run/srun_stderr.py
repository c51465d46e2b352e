"""What srun says of its tasks on stderr, as values.

srun's exit code is the highest of all tasks' and its own: with one rank that asks with 93 not to
be run again and the others ended for it, it is 143. The lines show which task ended how, in the
order in which srun heard of it. They are hints of the job's own about itself: a rank that prints
such a line harms its own job only. Node losses are asked of the controller, never read here.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpctl.core.model import NodeName

_TASKS = re.compile(rb"^srun: error: (\S+): tasks? ([\d,\[\]-]+): (.+)$", re.MULTILINE)
_LAUNCH = re.compile(
    rb"^srun: error: Task launch for (?:StepId=)?\S+ failed on node (\S+): (.+)$", re.MULTILINE
)
_CREATE = re.compile(rb"^srun: error: Unable to create step for job \S+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"Exited with exit code (\d+)")
# strsignal(3) in the C locale, and what srun says of a task that the memory limit ended.
_SIGNALS = {signal.strsignal(number): 128 + number for number in signal.valid_signals()}


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """Tasks of one node that ended badly. `code` is the shell's; `rank` the lowest of them."""

    node: NodeName
    rank: int
    code: int
    text: str


@dataclass(frozen=True, slots=True)
class NotLaunched:
    """srun could not start tasks on a node (`node`), or the step at all (None)."""

    node: NodeName | None
    text: str


SrunLine = TaskEnd | NotLaunched


def lines(block: bytes) -> Iterator[SrunLine]:
    """srun's lines among whole lines of output, in their order."""
    found: list[tuple[int, SrunLine]] = []
    for match in _TASKS.finditer(block):
        text = match[3].decode("utf-8", "replace").strip()
        first = re.search(rb"\d+", match[2])
        end = TaskEnd(_name(match[1]), int(first[0]) if first else 0, _code(text), text)
        found.append((match.start(), end))
    for match in _LAUNCH.finditer(block):
        text = match[2].decode("utf-8", "replace").strip()
        found.append((match.start(), NotLaunched(_name(match[1]), text)))
    for match in _CREATE.finditer(block):
        text = match[1].decode("utf-8", "replace").strip()
        found.append((match.start(), NotLaunched(None, text)))
    return iter([line for _, line in sorted(found, key=lambda each: each[0])])


def root_end(
    ends: Sequence[TaskEnd], final: Sequence[int], corruption: Sequence[int]
) -> TaskEnd | None:
    """The end that explains the others: one with a code that says something, else the first.

    Two ranks may end within a millisecond: the one that asks not to be run again, or saw wrong
    data, knows more than the one that lost its peer.
    """
    for codes in (final, corruption):
        for end in ends:
            if end.code in codes:
                return end
    return ends[0] if ends else None


def _code(text: str) -> int:
    if match := _CODE.search(text):
        return int(match[1])
    plain = text.removesuffix(" (core dumped)")
    if "Out Of Memory" in text:
        return 128 + signal.SIGKILL
    return _SIGNALS.get(plain, 1)


def _name(raw: bytes) -> NodeName:
    return NodeName(raw.decode("utf-8", "replace"))

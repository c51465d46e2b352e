"""One line of a rank's progress, as a value. Bytes come from anywhere: what is no note is None.

Three forms of a line, all of them read everywhere: `step=12 loss=0.3 rank=0` (what `hpctl.progress`
sends), one JSON object with the same keys, and the bare `12 0.3`. In a job's log, where other
lines stand between them, `hpctl-progress ` goes before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import unquote

import msgspec

from hpctl.core.model import NodeName

PREFIX = b"hpctl-progress "
LONGEST = 4096
"""Bytes of a line that are read; a longer one is no note."""
MOST_NUMBERS = 16
HIGHEST_RANK = 1 << 20
HIGHEST_STEP = 1 << 53
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}\Z")
_BARE = re.compile(r"[0-9]+(?:\s+\S+)?\s*\Z")
_LABEL = re.compile(rb"\s*(?:\[[^\]]*\])?\s*([0-9]{1,7}): *\Z")
_TRUE = ("1", "true", "on", "yes")
_FALSE = ("0", "false", "off", "no")
_WORDS = (
    "step|loss|tokens|seconds|rank|pid|lost|node|gpu|phase|checkpoint|saving|done|restart|token"
)
_KNOWN = frozenset(_WORDS.split("|"))


_NO_NUMBERS: Mapping[str, float] = MappingProxyType({})


class Note(msgspec.Struct, frozen=True):
    """What one line says. None and empty: it does not say.

    With `checkpoint`, `step` is the checkpoint's and `seconds` what the save took. `lost` counts
    the sender's lines that did not go out just before this one.
    """

    step: int | None = None
    loss: float | None = None
    tokens: float | None = None
    seconds: float | None = None
    rank: int | None = None
    node: NodeName | None = None
    pid: int | None = None
    gpu: str = ""
    phase: str = ""
    checkpoint: str = ""
    saving: bool | None = None
    done: bool = False
    restart: bool = False
    """A launcher starts all ranks anew, inside the same step."""
    lost: int = 0
    numbers: Mapping[str, float] = _NO_NUMBERS


def parse(raw: bytes) -> Note | None:
    """Read one line. None where it is no note: torn, too long, not text, or saying nothing."""
    if len(raw) > LONGEST:
        return None
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError:
        return None
    fields = _fields(text)
    return None if fields is None else _note(fields)


def token_of(raw: bytes) -> bytes:
    """The secret that a datagram begins with, empty where there is none."""
    first, _, _ = raw.partition(b" ")
    return first.removeprefix(b"token=") if first.startswith(b"token=") else b""


def in_log(block: bytes) -> list[Note]:
    """The notes among whole lines of a log. `srun --label` names the rank where they do not."""
    found = []
    at = block.find(PREFIX)
    while at >= 0:
        begin, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
        end = len(block) if end < 0 else end
        note = parse(block[at + len(PREFIX) : end])
        if note is not None:
            label = _LABEL.match(block[begin:at])
            if note.rank is None and label:
                note = _ranked(note, int(label[1]))
            found.append(note)
        at = block.find(PREFIX, end)
    return found


def _ranked(note: Note, rank: int) -> Note:
    return msgspec.structs.replace(note, rank=rank) if rank < HIGHEST_RANK else note


def _fields(text: str) -> dict[str, str] | None:
    """Keys and values, still as text."""
    if text.startswith("{"):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return None
        return {k: _shown(v) for k, v in document.items() if isinstance(v, str | int | float)}
    if "=" not in text and _BARE.match(text):
        step, *loss = text.split()
        return {"step": step, "loss": loss[0]} if loss else {"step": step}
    pairs = [word.partition("=") for word in text.split()]
    if "%" in text:
        return {name: unquote(value) for name, equals, value in pairs if equals}
    return {name: value for name, equals, value in pairs if equals}


def _shown(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _note(fields: dict[str, str]) -> Note | None:
    step = _whole(fields, "step", HIGHEST_STEP)
    keys = fields.keys()
    phase = _text(fields, "phase", 64) if "phase" in keys else ""
    checkpoint = _text(fields, "checkpoint", 1024) if "checkpoint" in keys else ""
    saving = _switch(fields["saving"]) if "saving" in keys else None
    done = "done" in keys and _switch(fields["done"]) is True
    restart = "restart" in keys and _switch(fields["restart"]) is True
    if step is None and not (phase or checkpoint or done or restart) and saving is None:
        return None
    node = fields.get("node", "")
    return Note(
        step=step,
        loss=_number(fields.get("loss")),
        tokens=_number(fields.get("tokens")),
        seconds=_number(fields.get("seconds")),
        rank=_whole(fields, "rank", HIGHEST_RANK),
        node=NodeName(node) if _NODE.match(node) else None,
        pid=_whole(fields, "pid", 1 << 22),
        gpu=_text(fields, "gpu", 64) if "gpu" in keys else "",
        phase=phase,
        checkpoint=checkpoint,
        saving=saving,
        done=done,
        restart=restart,
        lost=_whole(fields, "lost", HIGHEST_STEP) or 0,
        numbers=_NO_NUMBERS if keys <= _KNOWN else _numbers(fields),
    )


def _switch(text: str) -> bool | None:
    lower = text.lower()
    return True if lower in _TRUE else False if lower in _FALSE else None


def _numbers(fields: dict[str, str]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for name, text in fields.items():
        if name in _KNOWN or not _NAME.match(name):
            continue
        value = _number(text)
        if value is not None:
            found[name] = value
        if len(found) == MOST_NUMBERS:
            break
    return MappingProxyType(found)


def _whole(fields: dict[str, str], name: str, bound: int) -> int | None:
    text = fields.get(name)
    if text is None:
        return None
    # Only ASCII digits: int() also takes other scripts', signs and underscores.
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        return None
    value = int(text)
    return value if value < bound else None


def _number(text: str | None) -> float | None:
    if text is None or len(text) > 64 or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _text(fields: dict[str, str], name: str, longest: int) -> str:
    text = fields.get(name, "")
    return text if len(text) <= longest and text.isprintable() else ""

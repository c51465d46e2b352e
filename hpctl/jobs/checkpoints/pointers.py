"""The `latest` pointers that frameworks resume by, and how a broken one is mended.

Megatron-LM resumes from the iteration in `latest_checkpointed_iteration.txt`, DeepSpeed from the
directory that `latest` names. Both are overwritten in place, and neither framework looks further:
an empty or garbled pointer, or one to a checkpoint that is not whole, ends the run (with exit code
0 in Megatron), a missing one starts it from nothing.

A pointer that names a whole checkpoint is not broken, even where a newer one is whole: somebody
may have gone back on purpose. Mending is atomic and keeps what was there beside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hpctl.core.compat import UTC
from hpctl.jobs.checkpoints.files import content
from hpctl.jobs.checkpoints.last import every, judge
from hpctl.jobs.checkpoints.manifest import sync_directory
from hpctl.jobs.checkpoints.reasons import Missing, NotWhole
from hpctl.jobs.checkpoints.survey import Checkpoint, PassedOver

MEGATRON = "latest_checkpointed_iteration.txt"
DEEPSPEED = "latest"
BACKUP = ".hpctl-backup-"
VARIABLE = "HPCTL_REPAIR_LATEST"
"""Set by `hpctl sbatch --repair-latest`, for every start of the job, of a step and of ranks."""
_FORMATS = {
    MEGATRON: ("megatron-torch-dist", "megatron-legacy"),
    DEEPSPEED: ("deepspeed",),
}
_MAX_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Repair:
    """What is so with one pointer, and what mends it.

    `content` is what it should say, None where it is left alone: it is right (`right`), or nothing
    whole is there that it could name, or nobody can tell (`unreadable`). `why` is one line.
    """

    path: Path
    why: str
    content: str | None = None
    right: bool = False
    unreadable: bool = False
    said: bytes | None = None
    """What it says now; None where there is none."""


def repairs(directory: Path, *, newest: bool = False) -> list[Repair]:
    """One for each pointer that is there, or that the checkpoints here would be resumed by.

    With `newest` a pointer to a whole checkpoint is moved, too, where a newer one is whole.
    Raises OSError where the directory cannot be read.
    """
    rows = every(directory)
    found = []
    for name, formats in _FORMATS.items():
        mine = [row for row in rows if row.format in formats]
        try:
            said = content(directory, name, _MAX_BYTES)
        except Missing:
            said = None
        except NotWhole as defect:
            found.append(Repair(directory / name, f"left alone: {defect}", unreadable=True))
            continue
        if said is not None or mine:
            there = {row.path.name for row in rows}
            found.append(_judge(directory / name, said, mine, there, newest=newest))
    return found


def mend_where_asked(directory: Path, environment: Mapping[str, str]) -> list[str]:
    """Mend every broken pointer where HPCTL_REPAIR_LATEST is set; a line about each.

    Never raises: a pointer that cannot be mended is a line, too, and what resumes by it says more.
    """
    if not environment.get(VARIABLE):
        return []
    told = []
    try:
        for repair in repairs(directory):
            if repair.content is not None:
                backup = mend(repair)
                kept = f"; what it said is in {backup.name}" if backup else ""
                told.append(f"{repair.path} now says {repair.content}: {repair.why}{kept}")
    except OSError as error:
        told.append(f"the pointers in {directory} were not all mended: {error}")
    return told


def mend(repair: Repair, now: datetime | None = None) -> Path | None:
    """Write what a pointer should say: all at once, synced. The backup's path, None without one.

    Raises FileExistsError where somebody wrote the pointer since it was read, OSError.
    """
    if repair.content is None:
        raise ValueError(f"there is nothing to mend: {repair.why}")
    path = repair.path
    try:
        present: bytes | None = content(path.parent, path.name, _MAX_BYTES)
    except Missing:
        present = None
    if present != repair.said:
        raise FileExistsError(f"{path} was written by somebody else just now: look again")
    when = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    backup = None
    if present is not None:
        backup = path.with_name(f"{path.name}{BACKUP}{when}-{os.getpid()}")
        _write(backup, present)
    temporary = path.with_name(f".{path.name}.hpctl.tmp-{os.getpid()}")
    _write(temporary, repair.content.encode())
    temporary.rename(path)
    sync_directory(path.parent)
    return backup


def _judge(
    path: Path,
    said: bytes | None,
    rows: list[Checkpoint | PassedOver],
    there: set[str],
    *,
    newest: bool,
) -> Repair:
    whole = [row for row in rows if isinstance(row, Checkpoint) and _names(path, row)]
    text = None if said is None else said.decode("utf-8", "replace").strip()
    named, why = _named(path, text)
    if path.name == MEGATRON and text == "release":
        return Repair(path, "names a converted release: left alone", right=True, said=said)
    if named is not None and named.name not in there:
        why = f"names {named.name}, which is not there"
    elif named is not None:
        row = judge(named)
        if isinstance(row, PassedOver) and row.unreadable:
            why = f"names {named.name}, which cannot be judged: {row.why}"
            return Repair(path, why, unreadable=True, said=said)
        if isinstance(row, Checkpoint):
            newer = whole[0] if whole and _after(whole[0], row) else None
            if newer is None or not newest:
                more = f"; {newer.path.name} is newer and whole, too" if newer else ""
                return Repair(path, f"names {named.name}, which is whole{more}", right=True)
            why = f"names {named.name}, and {newer.path.name} is newer"
        else:
            why = f"names {named.name}, which is not whole: {row.why}"
    if not whole:
        unreadable = any(isinstance(row, PassedOver) and row.unreadable for row in rows)
        more = "some checkpoints cannot be read" if unreadable else "nothing here is whole"
        return Repair(path, f"{why}; {more}", unreadable=unreadable, said=said)
    return Repair(path, why, _names(path, whole[0]), said=said)


def _named(path: Path, text: str | None) -> tuple[Path | None, str]:
    """The directory that a pointer names, and what to say of it where there is none."""
    if text is None:
        return None, "there is none"
    if not text:
        return None, "is empty"
    if path.name == MEGATRON:
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            return None, f"says {text[:40]!r}, which is no iteration"
        return path.with_name(f"iter_{int(text):07d}"), ""
    if "/" in text or not text.isprintable() or text in (".", ".."):
        return None, f"says {text[:40]!r}, which is no name of a directory here"
    return path.with_name(text), ""


def _names(path: Path, row: Checkpoint) -> str | None:
    """What the pointer says to name a checkpoint; None where it cannot."""
    if path.name == DEEPSPEED:
        return row.path.name
    fits = row.step is not None and row.path.name == f"iter_{row.step:07d}"
    return str(row.step) if fits else None


def _after(one: Checkpoint, other: Checkpoint) -> bool:
    return (-1 if one.step is None else one.step) > (-1 if other.step is None else other.step)


def _write(path: Path, raw: bytes) -> None:
    with path.open("wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())

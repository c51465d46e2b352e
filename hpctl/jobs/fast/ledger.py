"""Which steps are whole, of what files, and who wrote them: kept on every node and in the shared
directory, so that the loss of any one of them loses nothing."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Struct

_MOST = 64 << 20


class SavedFile(Struct, frozen=True):
    """One file of a step. `origin` is the node whose rank wrote it.

    `mtime_ns` is its time on that node, by which it is known again; `written_ns` the same by the
    clock of the node that judged the step, so that files of several nodes can be compared.
    """

    path: str
    size: int
    mtime_ns: int
    written_ns: int
    origin: str

    def same(self, size: int, mtime_ns: int) -> bool:
        """Whether a file of that size and time is this one, or one that hpctl restored from it."""
        return size == self.size and mtime_ns in (self.mtime_ns, self.written_ns)


class SavedStep(Struct, frozen=True):
    """A step that was proved whole over the files of all nodes. `hosts`: the nodes of that start,
    in order. `seen_s`: when it was proved."""

    name: str
    step: int | None
    format: str
    hosts: tuple[str, ...]
    files: tuple[SavedFile, ...]
    seen_s: float

    @property
    def order(self) -> tuple[int, float]:
        """Newer is larger."""
        return (-1 if self.step is None else self.step, self.seen_s)

    def of(self, origin: str) -> tuple[SavedFile, ...]:
        """What one node's ranks wrote of it."""
        return tuple(f for f in self.files if f.origin == origin)

    def origins(self) -> tuple[str, ...]:
        """The nodes whose ranks wrote any of it, in order."""
        wrote = {f.origin for f in self.files}
        return tuple(host for host in self.hosts if host in wrote)


def load(path: Path) -> dict[str, SavedStep]:
    """The rows by name. A ledger that is not there, or is damaged, is empty: others have it too."""
    try:
        with open(path, "rb") as file:
            rows = msgspec.json.decode(file.read(_MOST), type=list[SavedStep])
    except (OSError, msgspec.MsgspecError):
        return {}
    return {row.name: row for row in rows}


def store(rows: dict[str, SavedStep], path: Path) -> None:
    """Whole or not at all. Raises OSError."""
    made = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    with open(made, "wb") as file:
        file.write(msgspec.json.encode(list(rows.values())))
        file.flush()
        os.fsync(file.fileno())
    made.rename(path)

"""The data files that a torch DCP `.metadata` names, read as it comes, in bounded memory.

`.metadata` is a pickle of one big object, of which only `storage_data` matters here: for each
stored item the file, offset and length.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from hpctl.jobs.checkpoints.files import File
from hpctl.jobs.checkpoints.reasons import CannotTell, NotWhole
from hpctl.jobs.checkpoints.skim import RECALLED, Machine, Sink

_KEY = "storage_data"
_FIELDS = frozenset({_KEY, "relative_path", "offset", "length", "transform_descriptors"})


@dataclass(slots=True)
class Held:
    """What one data file holds: its last item, and how many; of all of them the place, if kept."""

    offset: int
    length: int
    plain: bool
    """Whether the item is stored as it is: torch's archives are, unless they are compressed."""
    count: int = 0
    places: array[int] = field(default_factory=lambda: array("q"))
    transformed: bool = False

    @property
    def end(self) -> int:
        """How long the file must be."""
        return self.offset + self.length

    def items(self) -> Iterator[tuple[int, int]]:
        """Offset and length of each item, in the metadata's order."""
        pairs = iter(self.places)
        return zip(pairs, pairs, strict=True)


class _Files(Sink):
    """`storage_data` while it is filled."""

    def __init__(self, name: str, keep: bool) -> None:
        self.name, self.keep = name, keep
        self.held: dict[str, Held] = {}

    def add(self, values: list[object]) -> None:
        """Take the values of some entries. Raises NotWhole, CannotTell."""
        name, files = self.name, self.held
        for state in values:
            if not isinstance(state, dict):
                if state is RECALLED:
                    raise CannotTell(f"{name} mentions an entry twice: hpctl cannot follow it")
                raise NotWhole(f"{name} has an entry that names no file")
            path, offset = state.get("relative_path"), state.get("offset")
            length = state.get("length")
            if type(path) is not str or type(offset) is not int or type(length) is not int:
                raise NotWhole(f"{name} has an entry without file, offset and length")
            if offset < 0 or length < 0:
                raise NotWhole(f"{name}: negative size for {path}")
            plain = state.get("transform_descriptors") is None
            held = files.get(path)
            if held is None:
                _inside(path, name)
                files[path] = held = Held(offset, length, plain)
            elif offset + length > held.offset + held.length:
                held.offset, held.length, held.plain = offset, length, plain
            held.count += 1
            held.transformed = held.transformed or not plain
            if self.keep:
                held.places.extend((offset, length))


def read(file: File, *, keep: bool = False) -> dict[str, Held]:
    """The data files by name; with `keep` the place of each item in them. Raises NotWhole, OSError.

    Never executes anything. Raises CannotTell for what torch does not write.
    """
    top = Machine(file, _FIELDS, _KEY, lambda: _Files(file.name, keep)).top()
    found = top.get(_KEY) if isinstance(top, dict) else None
    if found is RECALLED:
        raise CannotTell(f"{file.name} has its entries elsewhere: hpctl cannot follow it")
    if not isinstance(found, _Files) or not found.held:
        raise NotWhole(f"{file.name} names no data files")
    return found.held


def _inside(path: str, name: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise NotWhole(f"{name}: {path[:80]!r} does not lie inside the checkpoint")

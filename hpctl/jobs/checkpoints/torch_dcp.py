"""torch.distributed.checkpoint (torchtitan's and Megatron's torch_dist lie on it).

`.metadata` is written last, to a temporary name, synced and renamed. It is a pickle of one big
object, of which only `storage_data` matters: for every item which `__R_S.distcp` holds it, from
which byte, how many. It is read as it comes, in bounded memory. So: each of those files is there
and long enough, and where its last item is one of torch.save's archives, that archive's end record
is in its place. A save over an old checkpoint leaves the old `.metadata` in place until it ends,
and may have the same sizes; only the time of the files tells. Source: torch 2.13,
torch/distributed/checkpoint/filesystem.py.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from pathlib import PurePosixPath

from msgspec import Struct, field

from hpctl.jobs.checkpoints import archives
from hpctl.jobs.checkpoints.files import (
    Claim,
    Listing,
    NotWhole,
    OpenFile,
    Place,
    Unfinished,
    Unprovable,
    exists,
    for_each,
    opened,
    step_in,
)
from hpctl.jobs.checkpoints.pickle_reader import RECALLED, PickleReader, Sink

_KEY = "storage_data"
_FIELDS = frozenset({_KEY, "relative_path", "offset", "length", "transform_descriptors"})


class Held(Struct):
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
                    raise Unprovable(f"{name} mentions an entry twice: hpctl cannot follow it")
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


def data_files(file: OpenFile, *, keep: bool = False) -> dict[str, Held]:
    """The data files by name; with `keep` the place of each item in them. Raises NotWhole, OSError.

    Never executes anything. Raises CannotTell for what torch does not write.
    """
    top = PickleReader(file, _FIELDS, _KEY, lambda: _Files(file.name, keep)).top()
    found = top.get(_KEY) if isinstance(top, dict) else None
    if found is RECALLED:
        raise Unprovable(f"{file.name} has its entries elsewhere: hpctl cannot follow it")
    if not isinstance(found, _Files) or not found.held:
        raise NotWhole(f"{file.name} names no data files")
    return found.held


def _inside(path: str, name: str) -> None:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise NotWhole(f"{name}: {path[:80]!r} does not lie inside the checkpoint")


METADATA = ".metadata"
_DATA = re.compile(r"__\d+_\d+\.distcp")


def claim(layout: Listing) -> Claim | None:
    """A directory with `.metadata` or data files. The step is the name's: no file has it."""
    if layout.names is None or not looks_so(layout.names):
        return None
    path = layout.path
    return Claim(step_in(path.name), None, lambda deep: prove(path, deep=deep))


def looks_so(names: frozenset[str]) -> bool:
    """Whether a listing looks like one of these, finished or not."""
    return METADATA in names or any(_DATA.fullmatch(name) for name in names)


def prove(directory: Place, *, deep: bool = False) -> None:
    """Raise NotWhole for the first thing that is wrong, OSError where the storage fails.

    I/O: `.metadata` once, then one open and one read of 22 bytes a data file; `deep` reads all.
    """
    if not exists(directory, METADATA):
        raise Unfinished(f"{METADATA} is missing: it is written last")
    with opened(directory, METADATA) as metadata:
        files = data_files(metadata, keep=deep)
        written_ns = metadata.modified_ns

    def one(name: str) -> None:
        with opened(directory, name) as file:
            _fits(file, files[name], written_ns)
            if deep:
                _compare(file, files[name])

    for_each(directory, sorted(files), one)


def _fits(file: OpenFile, held: Held, written_ns: int) -> None:
    needed = held.end
    if file.size < needed:
        raise NotWhole(f"{file.name} has {file.size} of {needed} bytes")
    # torch.save's archives all have two members or more; a raw object may be of any size.
    archive = held.plain and held.length >= archives.END_BYTES
    if archive:
        file.ahead(needed - archives.END_BYTES, archives.END_BYTES)
    # No tolerance for clocks that differ: a save that begins a moment after the last one ended is
    # the same sight, and to call a mixture of two saves whole is the one thing not allowed.
    if file.modified_ns > written_ns:
        raise NotWhole(
            f"{file.name} is newer than {METADATA}: saved over, or copied without its times"
        )
    if not archive:
        return
    tail = file.read(needed - archives.END_BYTES, archives.END_BYTES)
    if archives.has_end(tail):
        return
    if not any(tail):
        raise NotWhole(f"{file.name} ends in zeros: its last bytes were never stored")
    if file.read(held.offset, 4) == b"PK\3\4":
        raise NotWhole(f"{file.name} has no zip end record where its last item ends")


def _compare(file: OpenFile, held: Held) -> None:
    for offset, length in held.items():
        if held.transformed or file.read(offset, min(4, length)) != b"PK\3\4":
            raise NotWhole(f"{file.name} holds an item without a digest to compare with")
        archives.read(file, offset, length).compare()

"""Orbax's checkpoints (JAX): a step with one or more items, each a tree of arrays or JSON.

A save goes to `NAME.orbax-checkpoint-tmp` and is renamed, or lies under its own name from the
first (object stores). `commit_success.txt` ends either since Orbax 0.12, before only the second: so
a step without it, of which `_CHECKPOINT_METADATA` has the time of the commit, is not proved. With
it neither: Orbax removes its oldest steps file by file, so that one killed at it leaves a committed
step with half of its data. So every array that an item's
`_METADATA` names must have its description and each of its chunks, in the OCDBT database or as
zarr's files. tensorstore syncs each file before it renames it, and Orbax commits after the last.
Chunks have no digests; with `deep` those that zstd compressed are decompressed, and the index of
zarr 3's is compared with its checksum. Of an item in another library's format only its directories'
times tell that nothing was removed. Source: orbax-checkpoint 0.12, orbax/checkpoint/_src
(path/atomicity.py, metadata/tree.py, serialization/tensorstore_utils.py); zarr's specifications.
"""

from __future__ import annotations

import collections
import itertools
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpctl.jobs.checkpoints import ocdbt
from hpctl.jobs.checkpoints.files import (
    Claim,
    FileMissing,
    Listing,
    NotWhole,
    Place,
    TooLarge,
    Unfinished,
    Unprovable,
    content,
    directory_names,
    json_object,
    modified_ns,
    opened,
    size_of,
    step_in,
)

TEMPORARY = ".orbax-checkpoint-tmp"
_STEP, _TREE, _MARK = "_CHECKPOINT_METADATA", "_METADATA", "commit_success.txt"
_STRINGS = "_strings.json"
_JSON = ("JsonCheckpointHandler", "JsonHandler")
_MAX_JSON = 64 << 20
_MAX_CHUNKS = 4_000_000
_PART = 8 << 20
_TYPE = re.compile(r"[<>|][biufc](\d{1,3})|bfloat16")
_SLASHES = {"name": "default", "configuration": {"separator": "/"}}


class _Array(Struct, frozen=True):
    """How an array is cut into chunks, and what each of them is."""

    name: str
    grid: tuple[int, ...]
    beginning: str
    separator: str
    plain_bytes: int | None = None
    """How long each is, where they are not compressed."""
    zstd: bool = False
    inner: int = 0
    """How many parts each has, with an index behind them; 0: it has none."""

    def places(self) -> Iterator[str]:
        """Each chunk's. Of an array without dimensions there is one."""
        for place in itertools.product(*map(range, self.grid)):
            parts = [self.beginning, self.separator.join(map(str, place))]
            yield f"{self.name}/" + self.separator.join(part for part in parts if part)


class _Values(Struct, frozen=True):
    """Descriptions and chunks by their keys: in the database, or (without one) a file for each."""

    directory: Place
    database: dict[str, ocdbt.Stored] | None

    def find(self, key: str) -> ocdbt.Stored:
        """Where a value lies. Raises FileMissing, NotWhole, OSError."""
        if self.database is None:
            return ocdbt.Stored(size_of(self.directory, key), key)
        if key not in self.database:
            raise FileMissing(f"{key[:120]} is missing in {ocdbt.MANIFEST}")
        return self.database[key]

    def read(self, stored: ocdbt.Stored, begin: int, length: int) -> bytes:
        """A stretch of a value. Raises NotWhole, OSError."""
        if not stored.path:
            return stored.held[begin : begin + length]
        with opened(self.directory, stored.path) as file:
            return file.read(stored.offset + begin, length)


def claim(layout: Listing) -> Claim | None:
    """A directory that Orbax's checkpointers made: the step is the name's."""
    if layout.names is None:
        return None
    path = layout.path
    if not layout.has(_STEP):
        if layout.has(_TREE) and (layout.has(ocdbt.MANIFEST) or layout.has(_MARK)):
            raise Unprovable(f"no {_STEP}: Orbax before 0.6 saved it, or it is being removed")
        return None
    document = json_object(content(path, _STEP, _MAX_JSON), _STEP)
    if not layout.has(_MARK):
        if type(document.get("commit_timestamp_nsecs")) is not int:
            raise Unfinished(f"{_MARK} is missing: it is written last")
        raise Unprovable(f"no {_MARK}: an older Orbax saved it, or one that was killed at the end")
    handlers = document.get("item_handlers")
    items = {"": handlers} if isinstance(handlers, str) else handlers
    if not isinstance(items, dict) or not items:
        raise Unprovable(f"{_STEP} does not say what was saved")

    def prove(deep: bool) -> None:
        for name, handler in sorted(items.items()):
            if "/" in name or name in (".", "..") or not name.isprintable():
                raise NotWhole(f"{_STEP}: {name[:80]!r} does not lie inside the checkpoint")
            names = directory_names(path, name) if name else layout.names
            _item(path, name, names, str(handler), deep)

    return Claim(step_in(path.name), None, prove, digests=False)


def _item(step: Place, name: str, names: frozenset[str] | None, handler: str, deep: bool) -> None:
    place = step / name if name else step
    if names is None:
        raise NotWhole(f"{name}/ is missing, which {_STEP} names")
    try:
        if names & {_TREE, ocdbt.MANIFEST} or "PyTree" in handler or "StandardCheck" in handler:
            _tree(place, names, deep)
        elif handler.endswith(_JSON):
            _json(place, names - {_MARK, _STEP})
        else:
            _untouched(place, modified_ns(step, _MARK))
    except NotWhole as defect:
        if not name:
            raise
        raise type(defect)(f"{name}: {defect}") from None


def _json(place: Place, names: frozenset[str]) -> None:
    if not names:
        raise NotWhole("has no file")
    for name in sorted(names):
        json_object(content(place, name, _MAX_JSON), name)


def _untouched(place: Place, committed_ns: int) -> None:
    """Raise NotWhole where something was added or removed since the commit, OSError."""
    if not isinstance(place, Path):
        raise Unprovable("is in a format that hpctl does not know")
    for directory, _, _ in os.walk(place):
        if os.stat(directory).st_mtime_ns > committed_ns:
            raise NotWhole("was changed since it was committed, or copied without its times")


def _tree(place: Place, names: frozenset[str], deep: bool) -> None:
    """Raise NotWhole where an array, or a part of one, is missing; OSError."""
    tree = json_object(content(place, _TREE, _MAX_JSON), _TREE)
    entries = tree.get("tree_metadata")
    if not isinstance(entries, dict) or not entries:
        raise NotWhole(f"{_TREE} names no arrays")
    in_database = ocdbt.MANIFEST in names or tree.get("use_ocdbt") is True
    values = _Values(place, ocdbt.values(place) if in_database else None)
    third = tree.get("use_zarr3") is True
    complete = tree.get("store_array_data_equal_to_fill_value") is True
    chunks = 0
    for entry in entries.values():
        name, kind = _stored(entry)
        if kind == "string":
            json_object(content(place, _STRINGS, _MAX_JSON), _STRINGS)
        elif kind:
            array = _array(values, name, third)
            chunks += math.prod(array.grid)
            if chunks > _MAX_CHUNKS:
                raise TooLarge(f"{_TREE} names more than {_MAX_CHUNKS} chunks")
            _chunks(values, array, complete, deep)


def _stored(entry: object) -> tuple[str, str]:
    """An array's name and kind; no kind where nothing is stored (None, an empty list)."""
    try:
        about, keys = entry["value_metadata"], entry["key_metadata"]  # type: ignore[index]
        if about.get("skip_deserialize") is True:
            return "", ""
        name, kind = ".".join(str(key["key"]) for key in keys), str(about["value_type"])
    except (AttributeError, KeyError, TypeError):
        raise NotWhole(f"{_TREE} has an entry that names no array") from None
    if ".." in name.split("/") or name.startswith("/") or not name.isprintable():
        raise NotWhole(f"{_TREE}: {name[:80]!r} does not lie inside the checkpoint")
    return name, kind


def _array(values: _Values, name: str, third: bool) -> _Array:
    """What the array's description says. Raises NotWhole, OSError."""
    key = f"{name}/zarr.json" if third else f"{name}/.zarray"
    stored = values.find(key)
    if stored.size > _MAX_JSON:
        raise TooLarge(f"{key[:120]} has {stored.size} bytes: too many")
    found = json_object(values.read(stored, 0, stored.size), key[:120])
    try:
        return (_third if third else _second)(name, found)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise NotWhole(f"{key[:120]} does not describe an array") from None


def _second(name: str, found: dict[str, Any]) -> _Array:
    grid = _grid(found["shape"], found["chunks"])
    compressor, width = found["compressor"], _TYPE.fullmatch(found["dtype"])
    plain = None
    if compressor is None and width is not None:
        plain = math.prod(found["chunks"]) * (int(width[1]) if width[1] else 2)
    separator = str(found.get("dimension_separator", "."))
    zstd = compressor is not None and compressor["id"] == "zstd"
    return _Array(name, grid, "" if grid else "0", separator, plain, zstd)


def _third(name: str, found: dict[str, Any]) -> _Array:
    shape = found["chunk_grid"]["configuration"]["chunk_shape"]
    first, inner = found["codecs"][0], 0
    if first["name"] == "sharding_indexed":
        inner = math.prod(_grid(shape, first["configuration"]["chunk_shape"]))
    if found["chunk_key_encoding"] not in ({"name": "default"}, _SLASHES):
        raise Unprovable(f"{name[:80]} has chunks with names that hpctl does not know")
    zstd = not inner and found["codecs"][-1]["name"] == "zstd"
    return _Array(name, _grid(found["shape"], shape), "c", "/", None, zstd, inner)


def _grid(shape: list[int], chunk: list[int]) -> tuple[int, ...]:
    """How many chunks there are in each direction."""
    if not all(type(n) is int and n >= 0 for n in (*shape, *chunk)):
        raise ValueError(shape)
    return tuple(-(-n // max(c, 1)) for n, c in zip(shape, chunk, strict=True))


def _chunks(values: _Values, array: _Array, complete: bool, deep: bool) -> None:
    for key in array.places():
        try:
            stored = values.find(key)
        except FileMissing:
            if complete:
                raise
            raise Unprovable(f"{key[:120]} is missing: all zeros, or lost") from None
        if array.plain_bytes not in (None, stored.size) or not stored.size:
            raise NotWhole(f"{key[:120]} has {stored.size} of {array.plain_bytes or 'its'} bytes")
        if deep and array.inner:
            _index(values, stored, array.inner, key[:120])
        elif deep and array.zstd:
            spans = range(0, stored.size, _PART)
            parts = (values.read(stored, at, min(_PART, stored.size - at)) for at in spans)
            collections.deque(ocdbt.unpacked(parts, key[:120]), maxlen=0)


def _index(values: _Values, stored: ocdbt.Stored, parts: int, name: str) -> None:
    """Compare the checksum of the index that zarr's shards end with. Raises NotWhole, OSError."""
    length = 16 * parts + 4
    if length > min(stored.size, _MAX_JSON):
        raise NotWhole(f"{name} has {stored.size} bytes, less than its index: cut")
    index = values.read(stored, stored.size - length, length)
    if ocdbt.crc32c(index[:-4]) != int.from_bytes(index[-4:], "little"):
        raise NotWhole(f"{name}: its index does not match its CRC-32C")

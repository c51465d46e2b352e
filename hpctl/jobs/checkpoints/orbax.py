"""Orbax's checkpoints (JAX): a step with one or more items, each a tree of arrays or JSON.

A save goes to `NAME.orbax-checkpoint-tmp` and is renamed, or lies under its own name from the
first (object stores) until `commit_success.txt` is there; the time of the commit stands in
`_CHECKPOINT_METADATA`, too. Neither is enough: Orbax removes its oldest steps file by file, so that
one killed at it leaves a committed step with half of its data. So every array that an item's
`_METADATA` names must have its description and each of its chunks, in the OCDBT database or as
zarr's files. tensorstore syncs each file before it renames it, and Orbax commits after the last.
Chunks have no digests: with `deep` those compressed with zstd are decompressed and their lengths
compared. Of an item in another library's format only its directories' times tell that nothing was
removed. Source: orbax-checkpoint 0.12, orbax/checkpoint/_src/path/atomicity.py,
metadata/tree.py, serialization/tensorstore_utils.py; the zarr specifications 2 and 3.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from hpctl.jobs.checkpoints import ocdbt
from hpctl.jobs.checkpoints.files import (
    Claim,
    FileMissing,
    Listing,
    NotWhole,
    OpenFile,
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
_ARRAYS = ("jax.Array", "np.ndarray", "scalar")
_MAX_JSON = 64 << 20
_MAX_CHUNKS = 4_000_000
_PART = 8 << 20
_TYPE = re.compile(r"[<>|][biufc](\d{1,3})|(?:u?int|b?float|complex)(\d{1,3})")
_NOT_STORED = (1 << 64) - 1


class _Values(Protocol):
    """What holds descriptions and chunks, by their keys."""

    def size(self, key: str) -> int: ...

    def opened(self, key: str) -> AbstractContextManager[OpenFile]: ...


class _Files(Struct, frozen=True):
    """zarr's own way: a file for each."""

    directory: Place

    def size(self, key: str) -> int:
        return size_of(self.directory, key)

    def opened(self, key: str) -> AbstractContextManager[OpenFile]:
        return opened(self.directory, key)


class _Array(Struct, frozen=True):
    """How an array is cut into chunks, and what each of them is."""

    name: str
    grid: tuple[int, ...]
    beginning: str
    separator: str
    chunk_bytes: int | None
    """Decompressed; None where the type's size is not known."""
    compression: str
    """`zstd`, `` for none, or another's name, of which nothing can be said."""
    inner: int = 0
    """How many chunks lie in each, with an index behind them; 0 where it is one by itself."""

    def places(self) -> Iterator[str]:
        """Each chunk's key. Of an array without dimensions there is one."""
        for place in itertools.product(*(range(count) for count in self.grid)):
            parts = [self.beginning, self.separator.join(map(str, place))]
            yield f"{self.name}/" + self.separator.join(part for part in parts if part)


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
    if not layout.has(_MARK) and type(document.get("commit_timestamp_nsecs")) is not int:
        raise Unfinished(f"{_MARK} is missing: it is written last")
    handlers = document.get("item_handlers")
    items = {"": handlers} if isinstance(handlers, str) else handlers
    if not isinstance(items, dict) or not items:
        raise Unprovable(f"{_STEP} does not say what was saved")
    mark = _MARK if layout.has(_MARK) else _STEP
    named = {str(name): str(handler) for name, handler in items.items()}

    def prove(deep: bool) -> None:
        for name, handler in sorted(named.items()):
            _item(path, name, handler, mark, deep)

    return Claim(step_in(path.name), None, prove, digests=False)


def _item(step: Place, name: str, handler: str, mark: str, deep: bool) -> None:
    if "/" in name or "\0" in name or name in (".", ".."):
        raise NotWhole(f"{_STEP}: {name[:80]!r} does not lie inside the checkpoint")
    place = step / name if name else step
    names = directory_names(step, name)
    if names is None:
        raise NotWhole(f"{name}/ is missing, which {_STEP} names")
    try:
        if names & {_TREE, ocdbt.MANIFEST} or "PyTree" in handler or "StandardCheck" in handler:
            _tree(place, names, deep)
        elif handler.endswith(_JSON):
            _json(place, names - {_MARK, _STEP})
        else:
            _untouched(place, modified_ns(step, mark))
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
    entries = 0
    for directory, subdirectories, files in os.walk(place):
        entries += len(subdirectories) + len(files)
        if entries > _MAX_CHUNKS:
            raise TooLarge(f"has more than {_MAX_CHUNKS} entries")
        if os.stat(directory).st_mtime_ns > committed_ns:
            raise NotWhole("was changed since it was committed, or copied without its times")
    if not entries:
        raise NotWhole("is empty")


def _tree(place: Place, names: frozenset[str], deep: bool) -> None:
    """Raise NotWhole where an array, or a part of one, is missing; OSError."""
    tree = json_object(content(place, _TREE, _MAX_JSON), _TREE)
    entries = tree.get("tree_metadata")
    if not isinstance(entries, dict) or not entries:
        raise NotWhole(f"{_TREE} names no arrays")
    in_database = ocdbt.MANIFEST in names or tree.get("use_ocdbt") is True
    values: _Values = ocdbt.read(place) if in_database else _Files(place)
    third = tree.get("use_zarr3") is True
    complete = tree.get("store_array_data_equal_to_fill_value") is True
    chunks = 0
    for entry in entries.values():
        name, kind = _entry(entry)
        if kind == "string":
            json_object(content(place, _STRINGS, _MAX_JSON), _STRINGS)
        elif kind:
            array = _array(values, name, kind, third)
            chunks += math.prod(array.grid)
            if chunks > _MAX_CHUNKS:
                raise TooLarge(f"{_TREE} names more than {_MAX_CHUNKS} chunks")
            _chunks(values, array, complete, deep)


def _entry(entry: object) -> tuple[str, str]:
    """An array's name and kind; the kind is empty where nothing is stored (None, an empty list)."""
    about = entry.get("value_metadata") if isinstance(entry, dict) else None
    keys = entry.get("key_metadata") if isinstance(entry, dict) else None
    if not isinstance(about, dict) or not isinstance(keys, list):
        raise NotWhole(f"{_TREE} has an entry that names no array")
    if about.get("skip_deserialize") is True:
        return "", ""
    name = ".".join(str(key.get("key")) if isinstance(key, dict) else "" for key in keys)
    if ".." in name.split("/") or name.startswith("/") or "\0" in name:
        raise NotWhole(f"{_TREE}: {name[:80]!r} does not lie inside the checkpoint")
    return name, str(about.get("value_type")) or "?"


def _array(values: _Values, name: str, kind: str, third: bool) -> _Array:
    """What the array's description says. Raises NotWhole, OSError."""
    key = f"{name}/zarr.json" if third else f"{name}/.zarray"
    try:
        with values.opened(key) as file:
            if file.size > _MAX_JSON:
                raise TooLarge(f"{key[:120]} has {file.size} bytes: too many")
            found = json_object(file.read(0, file.size), key[:120])
    except FileMissing:
        if kind in _ARRAYS:
            raise
        raise Unprovable(
            f"{name[:80]} is of a kind that hpctl does not know: {kind[:40]}"
        ) from None
    try:
        return _third(name, found) if third else _second(name, found)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        raise NotWhole(f"{key[:120]} does not describe an array") from None


def _second(name: str, found: dict) -> _Array:  # type: ignore[type-arg]
    grid, size = _grid(found["shape"], found["chunks"])
    compressor = found["compressor"]
    separator = str(found.get("dimension_separator", "."))
    if separator not in (".", "/"):
        raise ValueError(separator)
    width = _width(found["dtype"])
    return _Array(
        name, grid, "" if grid else "0", separator, width and width * size,
        str(compressor["id"]) if compressor else "",
    )  # fmt: skip


def _third(name: str, found: dict) -> _Array:  # type: ignore[type-arg]
    shape = found["chunk_grid"]["configuration"]["chunk_shape"]
    grid, size = _grid(found["shape"], shape)
    encoding = found["chunk_key_encoding"]
    first = encoding["name"] == "default"
    separator = str(encoding.get("configuration", {}).get("separator", "/" if first else "."))
    if encoding["name"] not in ("default", "v2") or separator not in (".", "/"):
        raise Unprovable(f"{name[:80]} has chunks with names that hpctl does not know")
    codecs, inner = found["codecs"], 0
    if codecs[0]["name"] == "sharding_indexed":
        counts, size = _grid(shape, codecs[0]["configuration"]["chunk_shape"])
        inner, codecs = math.prod(counts), codecs[0]["configuration"]["codecs"]
    names = [str(codec["name"]) for codec in codecs if codec["name"] not in ("bytes", "transpose")]
    width = _width(found["data_type"])
    return _Array(
        name, grid, "c" if first else "" if grid else "0", separator, width and width * size,
        "+".join(names), inner,
    )  # fmt: skip


def _grid(shape: list[int], chunk: list[int]) -> tuple[tuple[int, ...], int]:
    """How many chunks there are in each direction, and of how many numbers each is."""
    if len(shape) != len(chunk) or not all(type(n) is int and n >= 0 for n in (*shape, *chunk)):
        raise ValueError(shape)
    return tuple(-(-n // max(c, 1)) for n, c in zip(shape, chunk, strict=True)), math.prod(chunk)


def _width(kind: str) -> int | None:
    """Bytes of one number: `<f4` counts them, `bfloat16` and zarr 3 count bits."""
    match = _TYPE.fullmatch(kind)
    if match is None:
        return None
    return int(match[1]) if match[1] else int(match[2]) // 8 or None


def _chunks(values: _Values, array: _Array, complete: bool, deep: bool) -> None:
    for key in array.places():
        try:
            size = values.size(key)
        except FileMissing:
            if complete:
                raise
            raise Unprovable(f"{key[:120]} is missing: all zeros, or lost") from None
        if size == 0:
            raise NotWhole(f"{key[:120]} is empty: never stored")
        plain = not array.compression and not array.inner
        if plain and array.chunk_bytes is not None and size != array.chunk_bytes:
            raise NotWhole(f"{key[:120]} has {size} of {array.chunk_bytes} bytes")
        if deep:
            with values.opened(key) as file:
                for start, length in _parts(file, array):
                    if array.compression == "zstd":
                        _decompress(file, start, length, array.chunk_bytes)


def _parts(file: OpenFile, array: _Array) -> list[tuple[int, int]]:
    """Where each compressed piece of a chunk lies: by the index at its end, where it has one."""
    if not array.inner:
        return [(0, file.size)]
    length = 16 * array.inner + 4
    if length > min(file.size, _MAX_JSON):
        raise NotWhole(f"{file.name} is shorter than its index: cut")
    index = file.read(file.size - length, length)
    if ocdbt.crc32c(index[:-4]) != int.from_bytes(index[-4:], "little"):
        raise NotWhole(f"{file.name}: its index does not match its CRC-32C")
    words = [int.from_bytes(index[at : at + 8], "little") for at in range(0, length - 4, 8)]
    pairs = [p for p in zip(words[::2], words[1::2], strict=True) if _NOT_STORED not in p]
    if any(start + size > file.size - length for start, size in pairs):
        raise NotWhole(f"{file.name} lacks a part that its index names")
    return pairs


def _decompress(file: OpenFile, start: int, length: int, expected: int | None) -> None:
    """Raise NotWhole where a zstd frame does not fill its place, or is not as long as expected."""
    made, got, end = ocdbt.decompressor(), 0, start + length
    try:
        while not made.eof and (start < end or not made.needs_input):
            part = b""
            if made.needs_input:
                part = file.read(start, min(_PART, end - start))
                start += len(part)
            got += len(made.decompress(part, _PART))
            if expected is not None and got > expected:
                break
    except (NotWhole, OSError):
        raise
    except Exception as error:  # noqa: BLE001 -- ZstdError, which is another class in each release
        raise NotWhole(f"{file.name} does not decompress ({str(error)[:80]}): damaged") from None
    if not made.eof or made.unused_data or start < end or expected not in (None, got):
        raise NotWhole(f"{file.name} is cut or damaged: {got} of {expected} bytes in it")

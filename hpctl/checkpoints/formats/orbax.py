"""Orbax's checkpoints (JAX): a step with one or more items, each a tree of arrays or JSON.

A save goes to `NAME.orbax-checkpoint-tmp` and is renamed, or lies under its own name from the first
(object stores). `commit_success.txt` ends either since Orbax 0.12, before only the second: so a
step without it, of which `_CHECKPOINT_METADATA` has the time of the commit, is not proved. Nor does
the file prove a step: Orbax removes its oldest steps file by file, so that a killed removal leaves
a committed step with half of its data. So every array that an item's `_METADATA` names must have
its description and each of its chunks, in the OCDBT database or as zarr's files. tensorstore syncs
each file before it renames it, and Orbax commits after the last. Chunks have no digests. Of a chunk
that is a file of a file system, the blocks of its zstd frame are followed to its end, and the index
of a zarr 3 shard is compared with its checksum, so that a truncation is detected. Objects of a
store are not read for it, because they appear completely or not at all. With `deep` all chunks that
zstd compressed are decompressed. A load reads further JSON files that may be absent, and fails
where one is damaged: `_sharding`, which records on which devices the arrays lay, and
`array_metadatas/process_N`. Of an item in another library's format only the times of its
directories and files show that nothing was changed since. Source: orbax-checkpoint 0.12,
orbax/checkpoint/_src (path/atomicity.py, metadata/tree.py, metadata/sharding.py,
metadata/array_metadata_store.py, handlers/random_key_checkpoint_handler.py,
serialization/tensorstore_utils.py); zarr's specifications.
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

from hpctl.checkpoints.files import (
    MAX_ENTRIES,
    CheckpointCandidateListing,
    CheckpointClaim,
    FileMissingError,
    FileTooLargeError,
    IncompleteCheckpointError,
    Place,
    UnfinishedCheckpointSaveError,
    UnverifiableCheckpointError,
    list_directory_names,
    open_file,
    parse_json_object,
    parse_step_from_name,
    read_file_mtime_ns,
    read_file_size,
    read_small_file,
    run_work_for_each_item,
)
from hpctl.checkpoints.formats import ocdbt, zstd_frame

TEMPORARY = ".orbax-checkpoint-tmp"
_STEP, _TREE, _MARK = "_CHECKPOINT_METADATA", "_METADATA", "commit_success.txt"
_STRINGS = "_strings.json"
_SHARDINGS = "_sharding"
_ARRAYS = "array_metadatas"
_JAX_ARRAY = "jax.Array"
_PROCESS = re.compile(r"process_\d+")
_JSON = ("JsonCheckpointHandler", "JsonHandler")
_RANDOM_KEY = "RandomKeyCheckpointHandler"
_JAX_RANDOM_KEY = "JaxRandomKeyCheckpointHandler"
_KEY_METADATA = "_metadata"
_MAX_JSON = 64 << 20
_MAX_CHUNKS = 4_000_000
MAX_BLOCKS = 20_000
"""Blocks of zstd that are followed in one checkpoint: 2.5 GB. Of a shared file system each costs a
separate read, and a job waits for them."""
_PART = 8 << 20
_TYPE = re.compile(r"[<>|][biufc](\d{1,3})|bfloat16")
_SLASHES = {"name": "default", "configuration": {"separator": "/"}}


class _ArrayChunkLayout(Struct, frozen=True):
    """The division of an array into chunks, and the kind of each."""

    name: str
    grid: tuple[int, ...]
    beginning: str
    separator: str
    plain_bytes: int | None = None
    """The length of each chunk, where they are not compressed."""
    zstd: bool = False
    inner: int = 0
    """The number of parts of each chunk, with an index behind them; 0: none."""

    def places(self) -> Iterator[str]:
        """Yield the place of each chunk. An array without dimensions has one."""
        for place in itertools.product(*map(range, self.grid)):
            parts = [self.beginning, self.separator.join(map(str, place))]
            yield f"{self.name}/" + self.separator.join(part for part in parts if part)


class _OrbaxValueStore(Struct, frozen=True):
    """Descriptions and chunks by their keys: in the database, or (without one) a file for each."""

    directory: Place
    database: dict[str, ocdbt.StoredValueLocation] | None

    @property
    def has_values_as_local_files(self) -> bool:
        """Return whether each value is a file of a file system, which may be cut."""
        return self.database is None and isinstance(self.directory, Path)

    def find(self, key: str) -> ocdbt.StoredValueLocation:
        """Return where a value lies. Raises FileMissingError, IncompleteCheckpointError,
        OSError."""
        if self.database is None:
            return ocdbt.StoredValueLocation(read_file_size(self.directory, key), key)
        if key not in self.database:
            raise FileMissingError(f"{key[:120]} is missing in {ocdbt.MANIFEST}")
        return self.database[key]

    def read(self, stored: ocdbt.StoredValueLocation, begin: int, length: int) -> bytes:
        """Return a stretch of a value. Raises IncompleteCheckpointError, OSError."""
        if not stored.path:
            return stored.held[begin : begin + length]
        with open_file(self.directory, stored.path) as file:
            return file.read(stored.offset + begin, length)


def detect_orbax_checkpoint(layout: CheckpointCandidateListing) -> CheckpointClaim | None:
    """Claim a directory that Orbax's checkpointers made: the step is the name's."""
    if layout.names is None:
        return None
    path = layout.path
    if not layout.has(_STEP):
        if layout.has(_TREE) and (layout.has(ocdbt.MANIFEST) or layout.has(_MARK)):
            raise UnverifiableCheckpointError(
                f"{_STEP} is missing: Orbax before 0.6 saved this checkpoint, or it is being "
                "deleted"
            )
        return None
    document = parse_json_object(read_small_file(path, _STEP, _MAX_JSON), _STEP)
    if not layout.has(_MARK):
        if type(document.get("commit_timestamp_nsecs")) is not int:
            raise UnfinishedCheckpointSaveError(
                f"{_MARK} is missing: the save writes this file last, so it has not finished"
            )
        raise UnverifiableCheckpointError(
            f"{_MARK} is missing: an older Orbax saved this checkpoint, or the save was killed "
            "just before its end"
        )
    handlers = document.get("item_handlers")
    items = {"": handlers} if isinstance(handlers, str) else handlers
    if not isinstance(items, dict) or not items:
        raise UnverifiableCheckpointError(f"{_STEP} does not list the checkpoint's parts")

    def verify_checkpoint_items(deep: bool) -> None:
        for name, handler in sorted(items.items()):
            if "/" in name or name in (".", "..") or not name.isprintable():
                raise IncompleteCheckpointError(
                    f"{_STEP}: the name {name[:80]!r} in it leads outside the checkpoint"
                )
            names = list_directory_names(path, name) if name else layout.names
            _verify_checkpoint_item(path, name, names, str(handler), deep)

    return CheckpointClaim(
        parse_step_from_name(path.name), None, verify_checkpoint_items, digests=False
    )


def _verify_checkpoint_item(
    step: Place, name: str, names: frozenset[str] | None, handler: str, deep: bool
) -> None:
    place = step / name if name else step
    if names is None:
        raise IncompleteCheckpointError(f"{name}/ is missing, although {_STEP} lists it")
    try:
        if names & {_TREE, ocdbt.MANIFEST} or "PyTree" in handler or "StandardCheck" in handler:
            _verify_array_tree(step, place, names, deep)
        elif handler.endswith(_JSON):
            _verify_json_item_files(place, names - {_MARK, _STEP})
        elif handler.endswith(_RANDOM_KEY):
            in_jax = handler.endswith(_JAX_RANDOM_KEY)
            _verify_prng_key_item(step, place, names - {_MARK, _STEP}, in_jax, deep)
        else:
            check_unchanged_since_commit(place, read_file_mtime_ns(step, _MARK))
    except IncompleteCheckpointError as defect:
        if not name:
            raise
        raise type(defect)(f"{name}: {defect}") from None


def _verify_json_item_files(place: Place, names: frozenset[str]) -> None:
    if not names:
        raise IncompleteCheckpointError("a JSON part of the checkpoint has no file")
    for name in sorted(names):
        parse_json_object(read_small_file(place, name, _MAX_JSON), name)


def _verify_prng_key_item(
    step: Place, place: Place, names: frozenset[str], in_jax: bool, deep: bool
) -> None:
    """Prove a random key: an array, or JSON, and next to it a directory with JSON about it.

    Raises IncompleteCheckpointError, OSError.
    """
    keys = {name.removesuffix(_KEY_METADATA) for name in names}
    if not keys:
        raise IncompleteCheckpointError("a part of the checkpoint for random keys has no key")
    for key in sorted(keys):
        for name in (key, key + _KEY_METADATA):
            inner = list_directory_names(place, name)
            if inner is None:
                raise IncompleteCheckpointError(f"{name[:80]}/ is missing")
            if not inner & {_TREE, ocdbt.MANIFEST}:
                _verify_json_item_files(place / name, inner - {_MARK})
                continue
            _verify_array_tree(step, place / name, inner, deep)
            if in_jax and _SHARDINGS not in inner:
                # No other file records the device of the key: its load has no target.
                raise IncompleteCheckpointError(f"{name}/{_SHARDINGS} is missing")


def check_unchanged_since_commit(place: Place, committed_ns: int) -> None:
    """Raise IncompleteCheckpointError where something was changed since the commit, OSError."""
    if not isinstance(place, Path):
        raise UnverifiableCheckpointError(
            "the checkpoint, or a part of it, is in a format that hpctl does not know"
        )
    changed = IncompleteCheckpointError(
        "a file was changed after the save finished, or was copied without its modification times"
    )
    waiting, left = [place], MAX_ENTRIES
    while waiting:
        directory = waiting.pop()
        if directory.lstat().st_mtime_ns > committed_ns:
            raise changed
        with os.scandir(directory) as entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    raise FileTooLargeError(f"has more than {MAX_ENTRIES} entries")
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(directory / entry.name)
                elif entry.stat(follow_symlinks=False).st_mtime_ns > committed_ns:
                    raise changed


def _verify_array_tree(step: Place, place: Place, names: frozenset[str], deep: bool) -> None:
    """Raise IncompleteCheckpointError where an array, or a part of one, is missing; OSError."""
    tree = parse_json_object(read_small_file(place, _TREE, _MAX_JSON), _TREE)
    entries = tree.get("tree_metadata")
    if not isinstance(entries, dict) or not entries:
        raise IncompleteCheckpointError(f"{_TREE} names no arrays")
    if _SHARDINGS in names:
        _verify_sharding_file(place)
    _verify_array_metadata_files(place, names)
    in_database = ocdbt.MANIFEST in names or tree.get("use_ocdbt") is True
    values = _OrbaxValueStore(place, ocdbt.read_value_locations(place) if in_database else None)
    third = tree.get("use_zarr3") is True
    complete = tree.get("store_array_data_equal_to_fill_value") is True
    chunks, blocks_left = 0, MAX_BLOCKS
    strings, in_jax = [], False
    for entry in entries.values():
        name, kind = _parse_tree_entry(entry)
        if kind == "string":
            strings.append(name)
        elif kind:
            in_jax = in_jax or kind == _JAX_ARRAY
            array = _read_array_chunk_layout(values, name, third)
            chunks += math.prod(array.grid)
            if chunks > _MAX_CHUNKS:
                raise FileTooLargeError(f"{_TREE} names more than {_MAX_CHUNKS} chunks")
            blocks_left -= _verify_array_chunks(values, array, complete, deep, blocks_left)
    if strings:
        _verify_string_values(place, strings)
    if in_jax and _SHARDINGS not in names and isinstance(step, Path) and isinstance(place, Path):
        _check_sharding_file_present(step, place)


def _verify_string_values(place: Place, names: list[str]) -> None:
    """Raise IncompleteCheckpointError where the file that holds the strings of a tree lacks one,
    OSError."""
    found = parse_json_object(read_small_file(place, _STRINGS, _MAX_JSON), _STRINGS)
    for name in names:
        # A name is a JSON pointer, in which these two characters have another meaning.
        if not {"/", "~"} & {*name} and not isinstance(found.get(name), str):
            raise IncompleteCheckpointError(f"{_STRINGS} does not have the text of {name[:80]!r}")


def _verify_sharding_file(place: Place) -> None:
    """Raise IncompleteCheckpointError where the file that records on which devices the arrays lay
    is damaged: a load without a target then fails. An empty text is no sharding. Raises OSError."""
    for text in parse_json_object(
        read_small_file(place, _SHARDINGS, _MAX_JSON), _SHARDINGS
    ).values():
        if not isinstance(text, str):
            raise IncompleteCheckpointError(
                f"{_SHARDINGS} has an entry that does not name the array's devices"
            )
        if text:
            parse_json_object(text.encode(), f"an entry of {_SHARDINGS}")


def _check_sharding_file_present(step: Path, place: Path) -> None:
    """Raise IncompleteCheckpointError where that file was removed: the directory was changed since
    the commit, and a directory in it was not. In a copy without times all are newer, and it cannot
    be known: a program may save without the file, and then loads with a target. Raises OSError."""
    committed_ns = read_file_mtime_ns(step, _MARK)
    if place.stat().st_mtime_ns <= committed_ns:
        return
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir() and entry.stat().st_mtime_ns <= committed_ns:
                raise IncompleteCheckpointError(
                    f"{_SHARDINGS} is missing: it was deleted after the save finished"
                )


def _verify_array_metadata_files(place: Place, names: frozenset[str]) -> None:
    """Raise IncompleteCheckpointError where a process's description of its arrays is there and
    damaged: a load in that process fails. Raises OSError."""
    if _ARRAYS not in names:
        return
    inner = list_directory_names(place, _ARRAYS) or frozenset()

    def check_metadata_file(name: str) -> None:
        shown = f"{_ARRAYS}/{name}"
        rows = parse_json_object(read_small_file(place, shown, _MAX_JSON), shown).get(
            "array_metadatas", []
        )
        if not isinstance(rows, list) or not all(map(_is_array_metadata_row, rows)):
            raise IncompleteCheckpointError(f"{shown} has no valid descriptions of arrays")

    run_work_for_each_item(place, sorted(filter(_PROCESS.fullmatch, inner)), check_metadata_file)


def _is_array_metadata_row(row: object) -> bool:
    found = row.get("array_metadata") if isinstance(row, dict) else None
    return isinstance(found, dict) and {"param_name", "write_shape", "chunk_shape"} <= found.keys()


def _parse_tree_entry(entry: object) -> tuple[str, str]:
    """Return an array's name and kind; no kind where nothing is stored (None, an empty list)."""
    try:
        about, keys = entry["value_metadata"], entry["key_metadata"]  # type: ignore[index]
        if about.get("skip_deserialize") is True:
            return "", ""
        name, kind = ".".join(str(key["key"]) for key in keys), str(about["value_type"])
    except (AttributeError, KeyError, TypeError):
        raise IncompleteCheckpointError(
            f"{_TREE} has an entry that does not name an array"
        ) from None
    if ".." in name.split("/") or name.startswith("/") or not name.isprintable():
        raise IncompleteCheckpointError(
            f"{_TREE}: the name {name[:80]!r} in it leads outside the checkpoint"
        )
    return name, kind


def _read_array_chunk_layout(values: _OrbaxValueStore, name: str, third: bool) -> _ArrayChunkLayout:
    """Return the fields of an array's description. Raises IncompleteCheckpointError, OSError."""
    key = f"{name}/zarr.json" if third else f"{name}/.zarray"
    stored = values.find(key)
    if stored.size > _MAX_JSON:
        raise FileTooLargeError(f"{key[:120]} has {stored.size} bytes: too many")
    found = parse_json_object(values.read(stored, 0, stored.size), key[:120])
    try:
        return (_parse_zarr3_array_metadata if third else _parse_zarr2_array_metadata)(name, found)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        raise IncompleteCheckpointError(
            f"{key[:120]} has no valid description of an array"
        ) from None


def _parse_zarr2_array_metadata(name: str, found: dict[str, Any]) -> _ArrayChunkLayout:
    grid = _count_chunks(found["shape"], found["chunks"])
    compressor, width = found["compressor"], _TYPE.fullmatch(found["dtype"])
    plain = None
    if compressor is None and width is not None:
        plain = math.prod(found["chunks"]) * (int(width[1]) if width[1] else 2)
    separator = str(found.get("dimension_separator", "."))
    zstd = compressor is not None and compressor["id"] == "zstd"
    return _ArrayChunkLayout(name, grid, "" if grid else "0", separator, plain, zstd)


def _parse_zarr3_array_metadata(name: str, found: dict[str, Any]) -> _ArrayChunkLayout:
    shape = found["chunk_grid"]["configuration"]["chunk_shape"]
    first, inner = found["codecs"][0], 0
    if first["name"] == "sharding_indexed":
        inner = math.prod(_count_chunks(shape, first["configuration"]["chunk_shape"]))
        if first["configuration"].get("index_location", "end") != "end":
            raise UnverifiableCheckpointError(
                f"{name[:80]} has shards in a format that hpctl does not know"
            )
    if found["chunk_key_encoding"] not in ({"name": "default"}, _SLASHES):
        raise UnverifiableCheckpointError(
            f"{name[:80]} names its chunks in a way that hpctl does not know"
        )
    zstd = not inner and found["codecs"][-1]["name"] == "zstd"
    return _ArrayChunkLayout(
        name, _count_chunks(found["shape"], shape), "c", "/", None, zstd, inner
    )


def _count_chunks(shape: list[int], chunk: list[int]) -> tuple[int, ...]:
    """Return how many chunks there are in each direction."""
    if not all(type(n) is int and n >= 0 for n in (*shape, *chunk)):
        raise ValueError(shape)
    return tuple(-(-n // max(c, 1)) for n, c in zip(shape, chunk, strict=True))


def _verify_array_chunks(
    values: _OrbaxValueStore, array: _ArrayChunkLayout, complete: bool, deep: bool, blocks_left: int
) -> int:
    """Prove an array's chunks; return how many blocks of zstd were followed, at most `blocks_left`.

    Raises IncompleteCheckpointError, OSError.
    """
    followed = 0
    for key in array.places():
        try:
            stored = values.find(key)
        except FileMissingError:
            if complete:
                raise
            raise UnverifiableCheckpointError(
                f"{key[:120]} is missing: its data are all zeros, or the file was lost"
            ) from None
        if array.plain_bytes not in (None, stored.size) or not stored.size:
            raise IncompleteCheckpointError(
                f"{key[:120]} is cut off: it has {stored.size} of {array.plain_bytes or 'its'} "
                "bytes"
            )
        if array.inner and (deep or values.has_values_as_local_files):
            _verify_shard_index(values, stored, array.inner, key[:120])
        elif deep and array.zstd:
            _verify_zstd_frame(values, stored, key[:120])
        elif array.zstd and values.has_values_as_local_files and followed < blocks_left:
            with open_file(values.directory, key) as file:
                followed += zstd_frame.validate_zstd_blocks(file, blocks_left - followed)
    return followed


def _verify_zstd_frame(
    values: _OrbaxValueStore, stored: ocdbt.StoredValueLocation, name: str
) -> None:
    """Follow the zstd frame of a value. Raises IncompleteCheckpointError where it is not a complete
    one, OSError."""
    spans = range(0, stored.size, _PART)
    parts = (values.read(stored, at, min(_PART, stored.size - at)) for at in spans)
    collections.deque(ocdbt.decompress_zstd_frame(parts, name), maxlen=0)


def _verify_shard_index(
    values: _OrbaxValueStore, stored: ocdbt.StoredValueLocation, parts: int, name: str
) -> None:
    """Compare the checksum of the index that zarr's shards end with. Raises
    IncompleteCheckpointError, OSError."""
    length = 16 * parts + 4
    if length > min(stored.size, _MAX_JSON):
        raise IncompleteCheckpointError(
            f"{name} is cut off: it has {stored.size} bytes, fewer than its index needs"
        )
    index = values.read(stored, stored.size - length, length)
    if ocdbt.compute_crc32c(index[:-4]) != int.from_bytes(index[-4:], "little"):
        raise IncompleteCheckpointError(
            f"{name}: its index differs from its checksum (CRC-32C): the file is damaged"
        )

"""tensorstore's OCDBT: a manifest, and a B+tree whose leaves hold values or their places.

Manifest and nodes have a CRC-32C, which is compared; values have none, so that of those the tree
proves only that their files are there and long enough. The data files of several processes lie in
separate directories, `ocdbt.process_N/`, which the nodes name. A node is mostly compressed with
zstd. Source: google/tensorstore, tensorstore/kvstore/ocdbt/index.rst.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from hpctl.checkpoints.files import (
    FileTooLargeError,
    IncompleteCheckpointError,
    Place,
    UnverifiableCheckpointError,
    open_file,
    read_file_size,
    read_small_file,
    run_work_for_each_item,
)

MANIFEST = "manifest.ocdbt"
_MANIFEST_MAGIC, _NODE_MAGIC = 0x0CDB3A2A, 0x0CDB20DE
_MAX_NODE = 128 << 20
"""Bytes of one node, decompressed: Orbax allows 100 MB."""
_MAX_READ = 256 << 20
"""Bytes of all nodes as stored. Half a million arrays' chunks have some 20 MB."""
_MAX_NAMES = 512 << 20
"""Bytes of all keys and paths, whose common beginnings are stored once."""
_MAX_KEYS = 2_000_000
_PART = 8 << 20


class StoredValueLocation(Struct, frozen=True):
    """The place of one value: in a file, from `offset` on, or (without a path) in the tree
    itself."""

    size: int
    path: str = ""
    offset: int = 0
    held: bytes = b""


class _BTreeNodeLocation(Struct, frozen=True):
    """The place of a node, what paths in it are relative to, and the common prefix of its keys."""

    path: str
    base: bytes
    offset: int
    length: int
    height: int
    prefix: bytes = b""


class _DecompressedNodeReader(Struct):
    """A decompressed manifest or node, which is read from its beginning to its end.

    Raises IndexError where it names more than it holds, UnicodeDecodeError.
    """

    raw: bytes
    at: int = 0

    def take(self, count: int) -> bytes:
        self.at += count
        if self.at > len(self.raw):
            raise IndexError(count)
        return self.raw[self.at - count : self.at]

    def number(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise IndexError(value)

    def numbers(self, count: int) -> list[int]:
        return [self.number() for _ in range(count)]


class _OcdbtBTreeReader(Struct):
    """The walk from the manifest to the leaves, in bounded memory and time."""

    directory: Place
    values: dict[str, StoredValueLocation] = field(default_factory=dict)
    seen: set[tuple[str, int]] = field(default_factory=set)
    bytes_read: int = 0
    bytes_named: int = 0

    def root(self) -> _BTreeNodeLocation:
        """Return the root of the newest version. Raises IncompleteCheckpointError, OSError, and as
        _DecompressedNodeReader."""
        body = _decode_ocdbt_node_body(
            read_small_file(self.directory, MANIFEST, _MAX_READ), _MANIFEST_MAGIC, MANIFEST
        )
        body.take(16)  # its unique name
        kind = body.number()
        body.numbers(2)  # the largest value within a node, and the largest node
        body.take(1)
        if kind or (method := body.number()) > 1:
            raise UnverifiableCheckpointError(f"{MANIFEST} is in a format that hpctl does not know")
        body.take(4 * method)
        files = self._read_data_file_paths(body, b"")
        versions = body.number()
        body.numbers(versions)
        heights = body.take(versions)
        ids, offsets, lengths = (body.numbers(versions) for _ in range(3))
        return _BTreeNodeLocation(*files[ids[-1]], offsets[-1], lengths[-1], heights[-1])

    def read_node_and_list_children(self, node: _BTreeNodeLocation) -> list[_BTreeNodeLocation]:
        """Read a node and return its children; none where it has values. Raises as root."""
        shown = f"a node in {node.path}"
        self.bytes_read += node.length
        if (node.path, node.offset) in self.seen or self.bytes_read > _MAX_READ:
            raise FileTooLargeError(f"{MANIFEST} has too many nodes, or {shown} twice")
        self.seen.add((node.path, node.offset))
        with open_file(self.directory, node.path) as file:
            if node.offset + node.length > file.size:
                raise IncompleteCheckpointError(
                    f"{file.name} is cut off: it has {file.size} of {node.offset + node.length} "
                    "bytes"
                )
            body = _decode_ocdbt_node_body(file.read(node.offset, node.length), _NODE_MAGIC, shown)
        if body.take(1)[0] != node.height:
            raise IncompleteCheckpointError(
                f"{shown} does not match the index above it: the checkpoint is damaged"
            )
        files = self._read_data_file_paths(body, node.base)
        keys, shared = self._read_prefix_compressed_keys(body, body.number(), more=node.height > 0)
        if not node.height:
            self._read_leaf(body, [node.prefix + key for key in keys], files)
            return []
        ids, offsets, lengths = (body.numbers(len(keys)) for _ in range(3))
        return [
            _BTreeNodeLocation(
                *files[ids[n]], offsets[n], lengths[n], node.height - 1, node.prefix + key[:own]
            )
            for n, (key, own) in enumerate(zip(keys, shared, strict=True))
        ]

    def _read_leaf(
        self, body: _DecompressedNodeReader, keys: list[bytes], files: list[tuple[str, bytes]]
    ) -> None:
        lengths, kinds = body.numbers(len(keys)), body.numbers(len(keys))
        if len(self.values) + len(keys) > _MAX_KEYS:
            raise FileTooLargeError(f"{MANIFEST} has more than {_MAX_KEYS} keys")
        ids, offsets = iter(body.numbers(sum(kinds))), iter(body.numbers(sum(kinds)))
        for key, length, kind in zip(keys, lengths, kinds, strict=True):
            if kind:
                stored = StoredValueLocation(length, files[next(ids)][0], next(offsets))
            else:
                stored = StoredValueLocation(length, held=body.take(length))
            self.values[key.decode()] = stored

    def _read_data_file_paths(
        self, body: _DecompressedNodeReader, base: bytes
    ) -> list[tuple[str, bytes]]:
        """Return each data file's path, and what the paths within its own nodes begin with."""
        names, bases = self._read_prefix_compressed_keys(body, body.number())
        found = [((base + n).decode(), base + n[:own]) for n, own in zip(names, bases, strict=True)]
        for path, _ in found:
            if path.startswith("/") or ".." in path.split("/") or "\0" in path:
                raise IncompleteCheckpointError(
                    f"{MANIFEST} names {path[:80]!r}, which is outside the checkpoint"
                )
        return found

    def _read_prefix_compressed_keys(
        self, body: _DecompressedNodeReader, count: int, *, more: bool = True
    ) -> tuple[list[bytes], list[int]]:
        """Read keys, each stored without what it has in common with the one before; with `more`,
        numbers."""
        before = [0, *body.numbers(count - 1)] if count else []
        lengths = body.numbers(count)
        numbers = body.numbers(count) if more else []
        self.bytes_named += sum(before) + sum(lengths)
        if self.bytes_named > _MAX_NAMES:
            raise FileTooLargeError(f"{MANIFEST} has names of more than {_MAX_NAMES >> 20} MiB")
        found: list[bytes] = []
        for shared, length in zip(before, lengths, strict=True):
            found.append((found[-1][:shared] if found else b"") + body.take(length))
        return found, numbers


def read_value_locations(directory: Place) -> dict[str, StoredValueLocation]:
    """Return all values of the newest version, by their keys, after the proof of the tree and the
    files.

    I/O: the manifest, one open and one read a node, one stat a data file. Raises
    IncompleteCheckpointError, OSError.
    """
    reader = _OcdbtBTreeReader(directory)
    try:
        nodes = [reader.root()]
        while nodes:
            nodes += reader.read_node_and_list_children(nodes.pop())
    except (IndexError, StopIteration, UnicodeDecodeError):
        raise IncompleteCheckpointError(
            f"{MANIFEST}, or an index that it names, is damaged: it lists more data than it has"
        ) from None
    needed: dict[str, int] = {}
    for value in reader.values.values():
        if value.path:
            needed[value.path] = max(needed.get(value.path, 0), value.offset + value.size)

    def check_file_size(path: str) -> None:
        size = read_file_size(directory, path)
        if size < needed[path]:
            raise IncompleteCheckpointError(
                f"{path} is cut off: it has {size} of {needed[path]} bytes"
            )

    run_work_for_each_item(directory, sorted(needed), check_file_size)
    return reader.values


def _decode_ocdbt_node_body(raw: bytes, magic: int, name: str) -> _DecompressedNodeReader:
    """Return the body of a manifest or a node, whose checksum is right. Raises
    IncompleteCheckpointError."""
    head = magic.to_bytes(4, "big") + len(raw).to_bytes(8, "little")
    if raw[:12] != head or compute_crc32c(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise IncompleteCheckpointError(
            f"{name} differs from its recorded length or checksum: it is cut off or damaged"
        )
    if raw[12] or raw[13] > 1:
        raise UnverifiableCheckpointError(
            f"{name} has a version or compression that hpctl does not know"
        )
    found = bytearray()
    for part in decompress_zstd_frame([raw[14:-4]], name) if raw[13] else [raw[14:-4]]:
        found += part
        if len(found) > _MAX_NODE:
            raise FileTooLargeError(f"{name} has more than {_MAX_NODE >> 20} MiB")
    return _DecompressedNodeReader(bytes(found))


def decompress_zstd_frame(parts: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Yield one zstd frame decompressed, part by part. Raises IncompleteCheckpointError where it
    does not end with the last part, Unprovable where this Python has no zstd."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise UnverifiableCheckpointError(
            "its data is compressed with zstd: install the Python package backports.zstd"
        ) from None
    made = zstd.ZstdDecompressor()
    try:
        for part in parts:
            yield made.decompress(part, _PART)
            while not made.needs_input and not made.eof:
                yield made.decompress(b"", _PART)
    except (zstd.ZstdError, EOFError) as error:
        raise IncompleteCheckpointError(
            f"{name} cannot be decompressed ({str(error)[:80]}): it is damaged"
        ) from None
    if not made.eof or made.unused_data:
        raise IncompleteCheckpointError(
            f"{name} does not end where its compressed data ends: it is cut off or damaged"
        )


def _make_crc_table_row(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = tuple(map(_make_crc_table_row, range(256)))


def compute_crc32c(raw: bytes) -> int:
    """Return the CRC-32C (Castagnoli). Takes a second for each 15 MB."""
    crc = 0xFFFFFFFF
    for byte in raw:
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF

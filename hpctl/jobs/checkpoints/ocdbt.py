"""tensorstore's OCDBT: a manifest, and a B+tree whose leaves hold values or say where they lie.

Manifest and nodes have a CRC-32C, which is compared; values have none, so that of those the tree
proves only that their files are there and long enough. The data files of several processes lie in
directories of their own, `ocdbt.process_N/`, which the nodes name. A node is mostly compressed
with zstd. Source: google/tensorstore, tensorstore/kvstore/ocdbt/index.rst.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from hpctl.jobs.checkpoints.files import (
    NotWhole,
    Place,
    TooLarge,
    Unprovable,
    content,
    for_each,
    opened,
    size_of,
)

MANIFEST = "manifest.ocdbt"
_MANIFEST_MAGIC, _NODE_MAGIC = 0x0CDB3A2A, 0x0CDB20DE
_MAX_NODE = 128 << 20
"""Bytes of one node, decompressed: Orbax allows 100 MB."""
_MAX_READ = 256 << 20
"""Bytes of all nodes as they lie there. Half a million arrays' chunks have some 20 MB."""
_MAX_NAMES = 512 << 20
"""Bytes of all keys and paths, whose common beginnings are stored once."""
_MAX_KEYS = 2_000_000
_PART = 8 << 20


class Stored(Struct, frozen=True):
    """Where one value lies: in a file, from `offset` on, or (without a path) in the tree itself."""

    size: int
    path: str = ""
    offset: int = 0
    held: bytes = b""


class _Node(Struct, frozen=True):
    """Where a node lies, what paths in it are relative to, and the beginning of all its keys."""

    path: str
    base: bytes
    offset: int
    length: int
    height: int
    prefix: bytes = b""


class _Body(Struct):
    """A decompressed manifest or node, which is read from its beginning to its end."""

    name: str
    raw: bytes
    at: int = 0

    def take(self, count: int) -> bytes:
        found = self.raw[self.at : self.at + count]
        if len(found) != count:
            raise NotWhole(f"{self.name} ends too early: damaged")
        self.at += count
        return found

    def number(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise NotWhole(f"{self.name} has a number that is too long: damaged")

    def numbers(self, count: int) -> list[int]:
        if count > len(self.raw) - self.at:
            raise NotWhole(f"{self.name} names more than it holds: damaged")
        return [self.number() for _ in range(count)]


class _Reader(Struct):
    """The walk from the manifest to the leaves, in bounded memory and time."""

    directory: Place
    values: dict[str, Stored] = field(default_factory=dict)
    seen: set[tuple[str, int]] = field(default_factory=set)
    bytes_read: int = 0
    bytes_named: int = 0

    def root(self) -> _Node:
        """The newest version's. Raises NotWhole, OSError."""
        body = _decoded(content(self.directory, MANIFEST, _MAX_READ), _MANIFEST_MAGIC, MANIFEST)
        body.take(16)  # its unique name
        if body.number():
            raise Unprovable(f"{MANIFEST} has its versions in other files: hpctl cannot follow it")
        body.numbers(2)  # the largest value within a node, and the largest node
        body.take(1)
        if (method := body.number()) > 1:
            raise Unprovable(f"{MANIFEST} has compression {method}, which hpctl does not know")
        body.take(4 * method)
        files = self._files(body, b"")
        versions = body.number()
        body.numbers(versions)
        heights = body.take(versions)
        ids, offsets, lengths = (body.numbers(versions) for _ in range(3))
        if not versions or not lengths[-1]:
            raise NotWhole(f"{MANIFEST} holds nothing")
        return _Node(*_named(files, ids[-1], body), offsets[-1], lengths[-1], heights[-1])

    def visit(self, node: _Node) -> list[_Node]:
        """Read a node: its children, or none where it has values. Raises NotWhole, OSError."""
        shown = f"a node in {node.path}"
        self.bytes_read += node.length
        if self.bytes_read > _MAX_READ:
            raise TooLarge(f"{MANIFEST} has nodes of more than {_MAX_READ >> 20} MiB")
        if (node.path, node.offset) in self.seen:
            raise Unprovable(f"{MANIFEST} names {shown} twice: hpctl cannot follow it")
        self.seen.add((node.path, node.offset))
        with opened(self.directory, node.path) as file:
            if node.offset + node.length > file.size:
                raise NotWhole(f"{file.name} has {file.size} of {node.offset + node.length} bytes")
            body = _decoded(file.read(node.offset, node.length), _NODE_MAGIC, shown)
        if body.take(1)[0] != node.height:
            raise NotWhole(f"{shown} has another height than its parent says: damaged")
        files = self._files(body, node.base)
        count = body.number()
        if len(self.values) + count > _MAX_KEYS:
            raise TooLarge(f"{MANIFEST} has more than {_MAX_KEYS} keys")
        if node.height:
            return self._children(body, node, files, count)
        self._leaf(body, node.prefix, files, count)
        return []

    def _children(
        self, body: _Body, node: _Node, files: list[tuple[str, bytes]], count: int
    ) -> list[_Node]:
        keys, shared = self._keys(body, count, more=True)
        ids, offsets, lengths = (body.numbers(count) for _ in range(3))
        return [
            _Node(
                *_named(files, ids[n], body), offsets[n], lengths[n],
                node.height - 1, node.prefix + keys[n][: shared[n]],
            )
            for n in range(count)
        ]  # fmt: skip

    def _leaf(self, body: _Body, prefix: bytes, files: list[tuple[str, bytes]], count: int) -> None:
        keys, _ = self._keys(body, count)
        lengths, kinds = body.numbers(count), body.numbers(count)
        elsewhere = sum(kind != 0 for kind in kinds)
        ids, offsets = iter(body.numbers(elsewhere)), iter(body.numbers(elsewhere))
        for key, length, kind in zip(keys, lengths, kinds, strict=True):
            name = _text(prefix + key, body)
            if kind > 1:
                raise Unprovable(f"{body.name} holds {name[:80]} in a way that hpctl does not know")
            if kind:
                path = _named(files, next(ids), body)[0]
                self.values[name] = Stored(length, path, next(offsets))
            else:
                self.values[name] = Stored(length, held=body.take(length))

    def _files(self, body: _Body, base: bytes) -> list[tuple[str, bytes]]:
        """Each data file's path, and what the paths within its own nodes begin with."""
        names, bases = self._keys(body, body.number(), more=True)
        found = [
            (_text(base + n, body), base + n[:own]) for n, own in zip(names, bases, strict=True)
        ]
        if any(
            path.startswith("/") or ".." in path.split("/") or "\0" in path for path, _ in found
        ):
            raise NotWhole(f"{body.name} names a file that does not lie inside the checkpoint")
        return found

    def _keys(
        self, body: _Body, count: int, *, more: bool = False
    ) -> tuple[list[bytes], list[int]]:
        """Names without what each has in common with the one before, and a number for each."""
        before = [0, *body.numbers(max(0, count - 1))]
        lengths = body.numbers(count)
        numbers = body.numbers(count) if more else []
        found: list[bytes] = []
        last = b""
        for shared, length in zip(before, lengths, strict=False):
            self.bytes_named += shared + length
            if self.bytes_named > _MAX_NAMES:
                raise TooLarge(f"{MANIFEST} has names of more than {_MAX_NAMES >> 20} MiB")
            last = last[:shared] + body.take(length)
            found.append(last)
        return found, numbers


def values(directory: Place) -> dict[str, Stored]:
    """All values of the newest version, by their keys, after the proof of the tree and the files.

    I/O: the manifest, one open and one read a node, one stat a data file. Raises NotWhole, OSError.
    """
    reader = _Reader(directory)
    nodes = [reader.root()]
    while nodes:
        nodes += reader.visit(nodes.pop())
    needed: dict[str, int] = {}
    for value in reader.values.values():
        if value.path:
            needed[value.path] = max(needed.get(value.path, 0), value.offset + value.size)

    def long_enough(path: str) -> None:
        size = size_of(directory, path)
        if size < needed[path]:
            raise NotWhole(f"{path} has {size} of {needed[path]} bytes")

    for_each(directory, sorted(needed), long_enough)
    return reader.values


def _decoded(raw: bytes, magic: int, name: str) -> _Body:
    """The body of a manifest or a node, whose checksum is right. Raises NotWhole."""
    if len(raw) < 18 or int.from_bytes(raw[:4], "big") != magic:
        raise NotWhole(f"{name} is cut or damaged")
    if int.from_bytes(raw[4:12], "little") != len(raw):
        raise NotWhole(f"{name} does not have the length that it says: cut or damaged")
    if crc32c(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        raise NotWhole(f"{name} does not match its CRC-32C")
    version, method = raw[12], raw[13]
    if version or method > 1:
        raise Unprovable(f"{name} is of a version or compression that hpctl does not know")
    packed = raw[14:-4]
    if not method:
        return _Body(name, packed)
    found = bytearray()
    for part in unpacked([packed], name):
        found += part
        if len(found) > _MAX_NODE:
            raise TooLarge(f"{name} has more than {_MAX_NODE >> 20} MiB")
    return _Body(name, bytes(found))


def unpacked(parts: Iterable[bytes], name: str) -> Iterator[bytes]:
    """Decompress one zstd frame as it comes. Raises NotWhole where it does not end with the last
    part, Unprovable where this Python has no zstd."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise Unprovable("it needs zstd: install the Python package backports.zstd") from None
    made = zstd.ZstdDecompressor()
    try:
        for part in parts:
            yield made.decompress(part, _PART)
            while not made.needs_input and not made.eof:
                yield made.decompress(b"", _PART)
    except (zstd.ZstdError, EOFError) as error:
        raise NotWhole(f"{name} does not decompress ({str(error)[:80]}): damaged") from None
    if not made.eof or made.unused_data:
        raise NotWhole(f"{name} does not end where its compressed data does: cut or damaged")


def _named(files: list[tuple[str, bytes]], number: int, body: _Body) -> tuple[str, bytes]:
    if number >= len(files):
        raise NotWhole(f"{body.name} names a file that it does not list: damaged")
    return files[number]


def _text(raw: bytes, body: _Body) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise NotWhole(f"{body.name} has a name that is not UTF-8") from None


def _row(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = tuple(map(_row, range(256)))


def crc32c(raw: bytes) -> int:
    """The CRC-32C (Castagnoli): a second for each 15 MB."""
    crc = 0xFFFFFFFF
    for byte in raw:
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF

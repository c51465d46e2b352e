"""Zip archives as `torch.save` writes them: whole when the end record and the directory fit.

The directory and the end record are written last, so that they vouch for all bytes before
them: every member must lie within the file, in front of the directory, without overlap. That
says nothing of a byte that the storage lost; with `deep` each member's CRC-32 is compared.
Format: PKWARE's APPNOTE.TXT, 4.3.
"""

import struct
import zlib

from msgspec import Struct

from hpctl.jobs.checkpoints.files import NotWhole, OpenFile, TooLarge
from hpctl.jobs.checkpoints.pickle_reader import PickleReader, SavedFields

END_BYTES = 22
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_MEMBER = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_MAX_DIRECTORY = 64 << 20
_CHUNK = 8 << 20
_AHEAD = 16 << 10  # the directory of some 200 tensors
_OLD_STREAM = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


class ArchiveMember(Struct, frozen=True):
    """One file of an archive. `offset` is its local header's, from the archive's beginning."""

    name: str
    offset: int
    size: int
    crc: int
    stored: bool
    room: int
    """Bytes from its header to the end of its data, at least."""


class Archive(Struct, frozen=True):
    """An archive within an open file, from `start` on, whose directory fits."""

    file: OpenFile
    start: int
    members: tuple[ArchiveMember, ...]

    def member(self, ending: str) -> ArchiveMember:
        """The member whose name ends so. Raises NotWhole."""
        for member in self.members:
            if member.name.endswith(ending):
                return member
        raise NotWhole(f"{self.file.name} has no {ending.lstrip('/')} in it")

    def saved(self, fields: frozenset[str], limit: int | None = None) -> SavedFields:
        """Some fields of the saved object, which is never executed.

        Raises TooLarge where its pickle has more than `limit` bytes.
        """
        member = self.member("/data.pkl")
        if limit is not None and member.size > limit:
            raise TooLarge(f"data.pkl in {self.file.name} has {member.size} bytes: too many")
        view = _View(self.file, f"data.pkl in {self.file.name}", self._data(member), member.size)
        top = PickleReader(view, fields).top()
        if not isinstance(top, dict):
            raise NotWhole(f"{view.name} holds no object")
        return SavedFields(top)

    def compare(self) -> None:
        """Read every byte and compare with the CRC-32 in the directory. Raises NotWhole."""
        for member in self.members:
            if member.crc == 0 and member.size:
                # torch.serialization.set_crc32_options(False) writes zeros.
                raise NotWhole(f"{self.file.name} has no checksums to compare with")
            at, crc, left = self._data(member), 0, member.size
            while left:
                part = self.file.read(at, min(left, _CHUNK))
                crc, at, left = zlib.crc32(part, crc), at + len(part), left - len(part)
            if crc != member.crc:
                raise NotWhole(f"{member.name} in {self.file.name} does not match its CRC-32")

    def _data(self, member: ArchiveMember) -> int:
        header = _LOCAL.unpack(self.file.read(self.start + member.offset, _LOCAL.size))
        if header[0] != b"PK\3\4" or not member.stored:
            raise NotWhole(f"{member.name} in {self.file.name} is damaged or compressed")
        return self.start + member.offset + _LOCAL.size + int(header[9]) + int(header[10])


class _View(Struct, frozen=True):
    """A stretch of a file, as a file."""

    file: OpenFile
    name: str
    start: int
    size: int

    @property
    def modified_ns(self) -> int:
        return self.file.modified_ns

    def ahead(self, offset: int, length: int) -> None:
        self.file.ahead(self.start + offset, length)

    def read(self, offset: int, length: int) -> bytes:
        return self.file.read(self.start + offset, length)


def read(file: OpenFile, start: int = 0, length: int | None = None) -> Archive:
    """Prove that an archive's end and directory fit its bytes: three or four reads.

    It fills `length` bytes of the file from `start` on (all of it by default). Raises NotWhole.
    """
    length = file.size - start if length is None else length
    file.ahead(start + max(0, length - _AHEAD), min(length, _AHEAD))
    at, size, count = _end(file, start, length)
    members = _members(file, start, at, size)
    if len(members) != count:
        raise NotWhole(f"{file.name}: its directory has {len(members)} of {count} members")
    reached = 0
    for member in sorted(members, key=lambda m: m.offset):
        if member.offset < reached:
            raise NotWhole(f"{file.name}: members of the archive overlap")
        reached = member.offset + member.room
    if reached > at:
        raise NotWhole(f"{file.name}: members reach beyond the archive's data")
    if file.read(start, 4) != b"PK\3\4":
        raise NotWhole(f"{file.name} does not begin as a zip archive")
    return Archive(file, start, tuple(members))


def has_end(tail: bytes) -> bool:
    """Whether these last bytes of an archive (END_BYTES of them) are its end record."""
    return len(tail) == END_BYTES and tail[:4] == b"PK\5\6" and tail[-2:] == b"\0\0"


def _end(file: OpenFile, start: int, length: int) -> tuple[int, int, int]:
    """Offset, size and count of members of the directory, from one or two end records."""
    if length < END_BYTES:
        raise NotWhole(f"{file.name} has {length} bytes: still being written, or cut")
    tail = file.read(start + max(0, length - 98), min(98, length))
    if not has_end(tail[-END_BYTES:]):
        if file.read(start, len(_OLD_STREAM)) == _OLD_STREAM:
            raise NotWhole(f"{file.name} is torch.save's older stream, which has no end to prove")
        raise NotWhole(f"{file.name} has no zip end record: still being written, or cut")
    end = _END.unpack(tail[-END_BYTES:])
    count, size, at, expected = int(end[4]), int(end[5]), int(end[6]), length - END_BYTES
    if len(tail) == 98 and tail[56:60] == b"PK\6\7" and tail[:4] == b"PK\6\6":
        record = _END64.unpack(tail[:56])
        count, size, at = int(record[7]), int(record[8]), int(record[9])
        expected = length - 98
        if int(_LOCATOR.unpack(tail[56:76])[2]) != expected:
            raise NotWhole(f"{file.name}: its two zip end records do not agree")
    if at + size != expected:
        raise NotWhole(f"{file.name}: its zip end record does not fit its size")
    return at, size, count


def _members(file: OpenFile, start: int, at: int, size: int) -> list[ArchiveMember]:
    if size > _MAX_DIRECTORY:
        raise NotWhole(f"{file.name}: its directory of {size} bytes is too large to read")
    raw, found, here = file.read(start + at, size), [], 0
    while here < size:
        if raw[here : here + 4] != b"PK\1\2" or here + _MEMBER.size > size:
            raise NotWhole(f"{file.name}: its zip directory is damaged")
        row = _MEMBER.unpack_from(raw, here)
        names, extras, comments = int(row[10]), int(row[11]), int(row[12])
        after = here + _MEMBER.size
        name = raw[after : after + names].decode("utf-8", "replace")
        extra = raw[after + names : after + names + extras]
        packed, unpacked, offset = _sizes(file, extra, int(row[8]), int(row[9]), int(row[16]))
        room = _LOCAL.size + names + packed
        stored = row[4] == 0 and packed == unpacked
        found.append(ArchiveMember(name, offset, unpacked, int(row[7]), stored, room))
        here = after + names + extras + comments
    return found


def _sizes(file: OpenFile, extra: bytes, packed: int, size: int, at: int) -> tuple[int, int, int]:
    """Sizes and offset, from the zip64 extra field where the 32-bit ones are full."""
    if 0xFFFFFFFF not in (packed, size, at):
        return packed, size, at
    here = 0
    while here + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, here)
        body = extra[here + 4 : here + 4 + length]
        here += 4 + length
        if kind != 1 or len(body) < 8 * [size, packed, at].count(0xFFFFFFFF):
            continue
        wide = iter(struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8]))
        size = next(wide) if size == 0xFFFFFFFF else size
        packed = next(wide) if packed == 0xFFFFFFFF else packed
        at = next(wide) if at == 0xFFFFFFFF else at
        return packed, size, at
    raise NotWhole(f"{file.name}: its zip directory lacks 64-bit sizes")

"""The archives in the shared directory, as a head node finds them.

Root of any node may have written anything there. So an archive is a regular file of the size and
digest that its recovery's journal has (`fetch`), and is never unpacked: `check_members` looks at
names and sizes.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import stat
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.evidence import MOST_BYTES

ARCHIVE_NAME: Final = re.compile(r"[a-z]{1,8}-[0-9a-f]{1,32}\.tar\.gz")
PART_NAME: Final = re.compile(r"\.[a-z]{1,8}-[0-9a-f]{1,32}\.tar\.gz\.\d{1,10}\.part")
PART_KEPT_S: Final = 3600.0
"""An archive that was never finished is deleted after so long."""
MOST_MEMBERS: Final = 512
MOST_LISTED: Final = 100_000


class InvalidArchiveError(HpctlError):
    """The file in the archive's place is not the one that the node reported."""


class EvidenceText(Struct, frozen=True):
    """One text of an archive, and how many bytes it has unpacked."""

    name: str
    size: int


class StoredArchiveFile(Struct, frozen=True):
    """One file of the directory: its name, bytes and time of change in Unix seconds."""

    name: str
    size: int
    changed: float


def open_regular_file(path: Path) -> IO[bytes]:
    """Open a regular file, no link followed. Raises OSError, InvalidArchiveError for anything
    else."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.fdopen(os.open(path, flags), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise InvalidArchiveError(
            f"hpctl does not read the evidence archive {path}: it is not a regular file"
        )
    return file


def read_archive_texts(file: IO[bytes]) -> list[EvidenceText]:
    """Return the texts of an archive. Raises InvalidArchiveError for one that holds anything else,
    or more than it may."""
    members: list[EvidenceText] = []
    total = 0
    try:
        unpacked = _SizeLimitedStream(gzip.GzipFile(fileobj=file), MOST_BYTES + MOST_MEMBERS * 2048)
        with tarfile.open(fileobj=unpacked, mode="r|") as archive:
            for member in archive:
                total += member.size
                if len(members) >= MOST_MEMBERS or total > MOST_BYTES:
                    raise InvalidArchiveError(
                        "hpctl does not unpack the evidence archive: its contents are larger than "
                        "hpctl allows"
                    )
                if not member.isreg() or not _is_evidence_text_name(member.name):
                    raise InvalidArchiveError(
                        "hpctl does not unpack the evidence archive: it contains "
                        f"{member.name!r}, which is not a regular file"
                    )
                members.append(EvidenceText(member.name.partition("/")[2], member.size))
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
        raise InvalidArchiveError(f"cannot read the evidence archive: {error}") from error
    return members


class _SizeLimitedStream(io.RawIOBase):
    """A stream of which so many bytes are read at most: what is packed may unpack to anything."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, most: int) -> None:
        self._file, self._left = file, most

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: object) -> int:
        """Read the next bytes into a buffer; 0 at the end or the limit."""
        view = memoryview(buffer)  # type: ignore[arg-type]
        block = self._file.read(min(len(view), self._left))
        view[: len(block)] = block
        self._left -= len(block)
        return len(block)


def _is_evidence_text_name(name: str) -> bool:
    return re.fullmatch(r"[a-z]{1,8}-[0-9a-f]{1,32}/[\w-]{1,64}\.txt", name) is not None


def list_archives(directory: Path) -> list[StoredArchiveFile]:
    """Return the archives of a directory, finished or not; other files are not hpctl's. Raises
    OSError."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if not (ARCHIVE_NAME.fullmatch(entry.name) or PART_NAME.fullmatch(entry.name)):
                continue
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                found.append(StoredArchiveFile(entry.name, status.st_size, status.st_mtime))
            if len(found) >= MOST_LISTED:
                break
    return found


def choose_expired_files(
    files: Iterable[StoredArchiveFile], now: float, keep_s: float, keep_bytes: float
) -> list[str]:
    """Return the names of the files to delete: what is older than `keep_s`, then the oldest until
    the rest has `keep_bytes` at most, and what was never finished."""
    expired, kept_bytes = [], 0
    for file in sorted(files, key=lambda f: (f.changed, f.name), reverse=True):
        part = PART_NAME.fullmatch(file.name) is not None
        too_old = now - file.changed > (PART_KEPT_S if part else keep_s)
        if too_old or kept_bytes + file.size > keep_bytes:
            expired.append(file.name)
        else:
            kept_bytes += file.size
    return expired


def delete_archives(directory: Path, names: Iterable[str]) -> int:
    """Delete files of a directory; return how many. Raises OSError."""
    count = 0
    for name in names:
        (directory / name).unlink(missing_ok=True)
        count += 1
    return count

"""One archive in the shared directory: written beside its place, bounded, and then renamed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final

from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.evidence import MOST_BYTES

_MODE: Final = 0o640


class EvidenceRefusedError(HpctlError):
    """Nothing is kept; the text says why."""


class _HashingOutputFile(io.RawIOBase):
    """A file that is written once, from its begin to its end, and its digest.

    tarfile writes a stream here without seeking.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: object) -> int:
        """Write bytes. Raises EvidenceRefusedError where the archive grows too large."""
        block = bytes(data)  # type: ignore[call-overload]
        self.size += len(block)
        if self.size > MOST_BYTES:
            raise EvidenceRefusedError(
                "the node's agent stopped collecting evidence: the archive would be larger than "
                f"{MOST_BYTES} bytes"
            )
        self.digest.update(block)
        self._file.write(block)
        return len(block)


class EvidenceArchiveWriter:
    """An archive that is being written. `close` names it; without it nothing is left."""

    def __init__(self, directory: Path, name: str) -> None:
        """Begin. Raises EvidenceRefusedError where the directory is not one that only root and the
        daemon's group may write to: another user could put a link in the archive's place."""
        self._name = name
        self._part = f".{name}.{os.getpid()}.part"
        self._folder = open_private_directory(directory)
        self._left = MOST_BYTES
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            handle = os.open(self._part, flags, _MODE, dir_fd=self._folder)
        except OSError as error:
            os.close(self._folder)
            raise EvidenceRefusedError(
                f"the node's agent cannot create an evidence archive in {directory}: "
                f"{error.strerror}"
            ) from error
        self._file = open(handle, "wb")  # noqa: SIM115 -- closed by `close` and `drop`
        self._out = _HashingOutputFile(self._file)
        self._tar = tarfile.open(  # noqa: SIM115 -- the same
            fileobj=self._out, mode="w|gz", format=tarfile.PAX_FORMAT
        )
        self.names: list[str] = []

    def add(self, name: str, lines: Iterable[bytes]) -> None:
        """Add a text, as far as there is room; nothing for an empty one."""
        # A text waits in a file, because tar has its size first and the agent's unit has little
        # memory.
        with tempfile.TemporaryFile() as body:
            size = self._write_text(body, lines)
            if size == 0:
                return
            self._left = max(0, self._left - size)
            body.seek(0)
            member = tarfile.TarInfo(f"{self._name.removesuffix('.tar.gz')}/{name}.txt")
            member.size, member.mode, member.mtime = size, _MODE, time.time_ns() // 10**9
            self._tar.addfile(member, body)
        self.names.append(name)

    def _write_text(self, body: IO[bytes], lines: Iterable[bytes]) -> int:
        """Write lines as far as there is room; return their bytes."""
        size = 0
        for line in lines:
            if size + len(line) > self._left:
                return size + body.write(b"[ended: the archive is full]\n")
            size += body.write(line)
        return size

    def close(self) -> tuple[int, str]:
        """Give the archive its name; return its bytes and SHA-256. Raises EvidenceRefusedError."""
        try:
            self._tar.close()
            group = os.fstat(self._folder).st_gid
            self._file.flush()
            os.fchown(self._file.fileno(), -1, group)
            os.fchmod(self._file.fileno(), _MODE)
            os.fsync(self._file.fileno())
            os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as error:
            self.drop()
            raise EvidenceRefusedError(
                f"the node's agent cannot write the evidence archive: {error.strerror}"
            ) from error
        self._file.close()
        os.close(self._folder)
        return self._out.size, self._out.digest.hexdigest()

    def drop(self) -> None:
        """Delete what was written."""
        with contextlib.suppress(OSError, ValueError, EvidenceRefusedError):
            self._tar.close()
        with contextlib.suppress(OSError):
            os.unlink(self._part, dir_fd=self._folder)
        with contextlib.suppress(OSError):  # what it still has to write finds no room either
            self._file.close()
        os.close(self._folder)


def open_private_directory(path: Path) -> int:
    """Return a descriptor of the directory. Raises EvidenceRefusedError where it is not there, is a
    link, belongs to another user, or is open to others."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        folder = os.open(path, flags)
    except OSError as error:
        raise EvidenceRefusedError(
            f"the node's agent cannot open the directory {path} for evidence: {error.strerror}"
        ) from error
    found = os.fstat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
        os.close(folder)
        raise EvidenceRefusedError(
            f"the node's agent does not write evidence to {path}: the directory does not belong "
            "to root, or others may write to it"
        )
    return folder

"""An archive as a head node reads it: from the shared directory or from S3, held to the journal.

What is in its place may be anything that root of any node has written. It is copied first and
compared then, so that nothing changes between the comparison and its use.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

from hpctl.nodes.evidence.bucket import EvidenceBucket, Progress, open_evidence_bucket
from hpctl.nodes.evidence.store import InvalidArchiveError, open_regular_file, read_archive_texts
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.evidence import MOST_BYTES, StoredEvidenceArchive, is_s3_location

_CHUNK: Final = 1024 * 1024
_ENDED: Final = "`evidence.keep_days` or `keep_gb` has ended, or this host does not reach it."


class EvidenceArchiveReader(Struct, frozen=True):
    """How archives are read: the profile and the region of S3's client, and who is shown the
    progress of a transfer. None: the defaults of the AWS tools, and no progress."""

    profile: str | None = None
    region: str | None = None
    progress: Progress | None = None

    @contextmanager
    def open(self, archive: StoredEvidenceArchive) -> Iterator[IO[bytes]]:
        """Open a copy of an archive, at its begin. Raises InvalidArchiveError where there is none
        of the size and digest that the journal has."""
        if archive.size > MOST_BYTES:
            raise InvalidArchiveError(
                f"{archive.path}: the evidence archive has {archive.size} bytes, more than hpctl "
                "allows"
            )
        with tempfile.TemporaryFile() as copy:
            try:
                self._copy(archive, copy)
            except OSError as error:
                raise InvalidArchiveError(
                    f"{archive.path}: {error.strerror or error}", _ENDED
                ) from error
            copy.seek(0)
            if hashlib.sha256(copy.read()).hexdigest() != archive.sha256:
                text = (
                    f"{archive.path} differs from the evidence archive that the node wrote: "
                    "its checksum (SHA-256) is different"
                )
                raise InvalidArchiveError(text)
            copy.seek(0)
            yield copy

    def fetch(self, archive: StoredEvidenceArchive, place: Path) -> Path:
        """Copy an archive to a new file in a directory; return its path. Raises
        InvalidArchiveError, HpctlError where the file is there already or cannot be written."""
        with self.open(archive) as file:
            read_archive_texts(file)
            file.seek(0)
            return copy_stream_to_new_file(place / archive.path.rpartition("/")[2], file)

    def _copy(self, archive: StoredEvidenceArchive, copy: IO[bytes]) -> None:
        progress = self.progress or _ignore_progress
        if is_s3_location(archive.path):
            url, _, name = archive.path.rpartition("/")
            self.open_bucket(url).copy(name, archive.size, copy, progress)
        else:
            _copy_archive_file(archive, copy, progress)

    def open_bucket(self, url: str) -> EvidenceBucket:
        """Return a bucket of evidence. Raises OSError where no client can be made."""
        return open_evidence_bucket(url, profile=self.profile, region=self.region)


def _ignore_progress(_come: int, _total: int) -> None:
    """Show nothing."""


def _copy_archive_file(archive: StoredEvidenceArchive, copy: IO[bytes], progress: Progress) -> None:
    """Copy a file of that size. Raises OSError, InvalidArchiveError."""
    with open_regular_file(Path(archive.path)) as file:
        found = os.fstat(file.fileno()).st_size
        if found != archive.size:
            raise InvalidArchiveError(
                f"the evidence archive {archive.path} has {found} bytes, but the node wrote "
                f"{archive.size}"
            )
        done = 0
        while block := file.read(min(_CHUNK, archive.size - done)):
            copy.write(block)
            done += len(block)
            progress(len(block), archive.size)


def copy_stream_to_new_file(target: Path, file: IO[bytes]) -> Path:
    """Write the rest of a file to a new one; return its path. Raises HpctlError where that is there
    already or cannot be written."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(target, flags, 0o600), "wb") as out:
            while block := file.read(_CHUNK):
                out.write(block)
    except OSError as error:
        raise HpctlError(
            f"cannot write the evidence archive to {target}: {error.strerror}",
            "Name a new file in a directory where you may write.",
        ) from error
    return target

"""Archives in a bucket of S3, where `evidence.directory` names one.

A node writes with its instance's role, which needs nothing but `s3:PutObject`. Any node may
overwrite another's object, as it may in a shared directory: the head compares size and SHA-256 with
the journal. Errors are OSError, with what to allow in their text.
"""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from hpctl.nodes.evidence.store import (
    ARCHIVE_NAME,
    MOST_LISTED,
    InvalidArchiveError,
    StoredArchiveFile,
    open_regular_file,
)
from hpctl.toolkit.errors import HpctlError

if TYPE_CHECKING:
    from hpctl.sagemaker.objects import S3Bucket

RANGE: Final = 8 * 1024 * 1024
"""Bytes of one read of an object."""
ANSWER_S: Final = 5.0
"""How long one answer of S3 may take on a node, in seconds: its remedy waits."""
_ATTEMPTS: Final = 2

Progress = Callable[[int, int], None]
"""Takes the bytes that have come since its last call, and of how many."""


class _DeadlineFile(io.RawIOBase):
    """A file that cannot be read any longer once its time is over: an upload takes its body from
    here, so that it ends where S3 is slow."""

    def __init__(self, file: IO[bytes], ends: float) -> None:
        """`ends` by time.monotonic()."""
        self._file, self._ends = file, ends

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True: botocore sends a body again from its begin."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Move as the file does."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the place in the file."""
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        """Read the next bytes. Raises TimeoutError once time is over."""
        if time.monotonic() > self._ends:
            raise TimeoutError(errno.ETIMEDOUT, "S3 takes it too slowly")
        view = memoryview(buffer)
        block = self._file.read(len(view))
        view[: len(block)] = block
        return len(block)


class EvidenceBucket:
    """The archives below `s3://bucket/prefix`."""

    def __init__(self, objects: S3Bucket, prefix: str) -> None:
        self._objects = objects
        self._prefix = prefix + "/" if prefix else ""

    def send(self, path: Path, sha256: str, ends: float) -> None:
        """Write an archive of this machine until `ends`, by time.monotonic(). Raises OSError."""
        with open_regular_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            body: Any = _DeadlineFile(file, ends)
            self._objects.put(self._prefix + path.name, body, size, bytes.fromhex(sha256))

    def copy(self, name: str, size: int, out: IO[bytes], progress: Progress) -> None:
        """Copy an archive of that size to a file. Raises InvalidArchiveError for one of another
        size, and OSError."""
        found = self._objects.find(self._prefix + name)
        if found.size != size:
            raise InvalidArchiveError(
                f"the evidence archive {self._prefix}{name} has {found.size} bytes, but the node "
                f"wrote {size}"
            )
        offset = 0
        while offset < size:
            block, _ = self._objects.read(found, offset, min(RANGE, size - offset))
            if not block:
                raise InvalidArchiveError(
                    f"the evidence archive {self._prefix}{name} is cut off: it ends after "
                    f"{offset} bytes"
                )
            out.write(block)
            offset += len(block)
            progress(len(block), size)

    def check_read_access(self) -> None:
        """Read one page of the listing. Raises OSError."""
        next(iter(self._objects.list(self._prefix, recursive=False)), None)

    def list_archive_files(self) -> list[StoredArchiveFile]:
        """Return the archives, as `store.list_files` does those of a directory. Raises OSError."""
        return list(self._iterate_stored_archives())

    def _iterate_stored_archives(self) -> Iterator[StoredArchiveFile]:
        listed = self._objects.list(self._prefix, recursive=False)
        for count, entry in enumerate(listed):
            if count >= MOST_LISTED:
                return
            name = entry.key.removeprefix(self._prefix)
            if ARCHIVE_NAME.fullmatch(name):
                yield StoredArchiveFile(name, entry.size, entry.modified_ns / 1e9)

    def delete_archive_files(self, names: Iterable[str]) -> int:
        """Delete archives; return how many. Raises OSError."""
        keys = [self._prefix + name for name in names]
        self._objects.delete(keys)
        return len(keys)


def open_evidence_bucket(
    url: str, *, profile: str | None = None, region: str | None = None, quick: bool = False
) -> EvidenceBucket:
    """Return `s3://bucket/prefix`; makes no request yet. `quick`: as a node asks, within seconds.

    Raises OSError where no client can be made, and where this Python has no boto3.
    """
    try:
        from hpctl.sagemaker.objects import S3Bucket
    except ImportError as error:
        raise OSError(errno.ENOPKG, f"no S3 client: {error}") from error
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    limits: dict[str, Any] = {"read_timeout_s": ANSWER_S, "attempts": _ATTEMPTS} if quick else {}
    try:
        objects = S3Bucket(bucket, profile=profile, region=region, **limits)
    except HpctlError as error:
        raise OSError(errno.EINVAL, str(error)) from error
    return EvidenceBucket(objects, prefix.strip("/"))


def upload_archive(path: Path, url: str, sha256: str, ends: float) -> str:
    """Write an archive of this node to S3 until `ends`; return why it is not there, or nothing."""
    try:
        open_evidence_bucket(url, quick=True).send(path, sha256, ends)
    except OSError as error:
        return error.strerror or str(error)
    return ""

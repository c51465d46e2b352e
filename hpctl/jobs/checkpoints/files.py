"""Bounded reading of one file of a checkpoint, on a file system or in an object store.

On a file system: one open, one fstat and reads of stated length. open(2) and not stat(2) alone:
on NFS it is the open that asks the server for the file's present size, where a stat may answer
from a cache.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from hpctl.jobs.checkpoints.reasons import Missing, NotWhole
from hpctl.jobs.checkpoints.remote import THREADS, Remote, RemoteFile

T = TypeVar("T")
R = TypeVar("R")

Place: TypeAlias = Path | Remote
"""Where a checkpoint, or something that holds checkpoints, lies."""

MAX_ENTRIES = 100_000
"""Entries of one checkpoint's directory that are looked at."""


class File(Protocol):
    """An open file: its name for people, and its size when it was opened."""

    @property
    def name(self) -> str:
        """The name within its checkpoint."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    @property
    def modified_ns(self) -> int:
        """When it was last written, in ns since the epoch."""
        ...

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes. Raises NotWhole where the file ends before, OSError."""
        ...

    def ahead(self, offset: int, length: int) -> None:
        """A hint that these bytes are wanted next, where each read is a request of its own."""
        ...


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of a file system."""

    name: str
    descriptor: int
    size: int
    modified_ns: int

    def ahead(self, offset: int, length: int) -> None:
        """Nothing: the kernel reads ahead by itself."""

    def read(self, offset: int, length: int) -> bytes:
        """Exactly `length` bytes. Raises NotWhole where the file ends before, OSError."""
        parts = []
        while length > 0:
            part = os.pread(self.descriptor, length, offset)
            if not part:
                raise NotWhole(f"{self.name} ends at byte {offset}: still being written, or cut")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def opened(root: Place, name: str) -> Iterator[File]:
    """Open `root/name`, or `root` itself where the name is empty.

    Raises NotWhole where it is missing or no regular file, OSError where the storage fails.
    """
    if isinstance(root, Remote):
        listed = root.find(name)
        if listed is None:
            raise Missing(f"{name or root.name} is missing")
        yield RemoteFile(name or root.name, root.objects, listed)
        return
    path = root / name if name else root
    shown = name or root.name
    try:
        # Without O_NONBLOCK a fifo of that name would hold us for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise Missing(f"{shown} is missing") from None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode):
            raise NotWhole(f"{shown} is not a regular file")
        yield LocalFile(shown, descriptor, about.st_size, about.st_mtime_ns)
    finally:
        os.close(descriptor)


def content(root: Place, name: str, limit: int) -> bytes:
    """The whole of a small file. More than `limit` bytes is NotWhole: it is not read."""
    with opened(root, name) as file:
        if file.size > limit:
            raise NotWhole(f"{file.name} has {file.size} bytes; at most {limit} are read")
        return file.read(0, file.size)


def size_of(root: Place, name: str) -> int:
    """A file's size, without opening it. Raises NotWhole, OSError."""
    if isinstance(root, Remote):
        listed = root.find(name)
        if listed is None:
            raise Missing(f"{name} is missing")
        return listed.size
    try:
        found = (root / name).lstat()
    except (FileNotFoundError, NotADirectoryError):
        raise Missing(f"{name} is missing") from None
    if not stat.S_ISREG(found.st_mode):
        raise NotWhole(f"{name} is not a regular file")
    return found.st_size


def modified_ns(root: Place, name: str) -> int:
    """When a file was last written, asked of the server by opening it. Raises as opened."""
    with opened(root, name) as file:
        return file.modified_ns


def exists(root: Place, name: str) -> bool:
    """Whether something of that name is there. Raises OSError."""
    if isinstance(root, Remote):
        return root.has(name)
    try:
        (root / name).lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def names_in(root: Place) -> frozenset[str] | None:
    """The entries of a directory; None for a file. Raises NotWhole, OSError."""
    if isinstance(root, Remote):
        return root.names()
    names: set[str] = set()
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if len(names) >= MAX_ENTRIES:
                    raise NotWhole(f"has more than {MAX_ENTRIES} entries")
                names.add(entry.name)
    except NotADirectoryError:
        return None
    return frozenset(names)


def directory_names(root: Place, name: str) -> frozenset[str] | None:
    """The entries of a sub-directory, or None where there is none. Raises OSError."""
    if isinstance(root, Remote):
        return root.below(name)
    try:
        return frozenset(os.listdir(root / name))
    except (FileNotFoundError, NotADirectoryError):
        return None


def for_each(root: Place, items: Iterable[T], work: Callable[[T], R]) -> list[R]:
    """The work's results in the items' order; what the first that fails raises, goes through.

    One after the other on a file system, whose answers mostly come from memory; up to THREADS
    at once where each of them waits for a request.
    """
    if not isinstance(root, Remote):
        return [work(item) for item in items]
    with ThreadPoolExecutor(THREADS) as pool:
        # Leaving the loop by an exception cancels all that have not begun.
        return list(pool.map(work, items))

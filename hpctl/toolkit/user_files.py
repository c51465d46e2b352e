"""Files whose paths a user has named, for code that has more rights than that user."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress

MOST_LINKS = 40
"""Symbolic links on the way to a file, as the kernel follows them at most."""

IsKind = Callable[[int], bool]
"""Says of a file's mode whether it is of the kind that is expected, as stat.S_ISFIFO does."""


def open_user_file(path: str, flags: int, owner: int, is_kind: IsKind) -> int:
    """Open a file that the user `owner` has named; return its descriptor.

    The path is walked one directory at a time. A symbolic link is followed only if it is root's, as
    of a mount that was moved: a user's own leads where that user has no access. The file itself is
    no link, is of the expected kind, and belongs to `owner`; it is looked at before it is opened,
    because opening a FIFO or a device has effects. Raises OSError, also for a path that is not
    absolute.
    """
    place = _open_path_descriptor(path, owner, is_kind)
    try:
        return os.open(f"/proc/self/fd/{place}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(place)


def open_own_file(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file of this process's own user, in a folder to which others may write too;
    return its descriptor.

    Raises OSError for a link, a FIFO and another user's file: a link would have this user write to
    another file of theirs, and a FIFO has no end. `flags` may hold O_CREAT, and never O_TRUNC.
    """
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EPERM, "it is no file of this user's", os.fspath(path))


def is_own_file(path: str | os.PathLike[str]) -> bool:
    """Return whether there is a regular file of this process's own user, which is no link."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def read_own_file_tail(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the last `most` bytes of a file that `open_own_file` opens. Raises OSError."""
    with open(open_own_file(path, os.O_RDONLY), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most))
        return file.read(most)


def find_user_file_mtime(path: str, owner: int) -> float | None:
    """Return when a regular file of the user `owner` was last written (POSIX s), by the same rules;
    None where there is none. What another user's directories hold is not disclosed."""
    with suppress(OSError, ValueError):
        place = _open_path_descriptor(path, owner, stat.S_ISREG)
        try:
            return os.fstat(place).st_mtime
        finally:
            os.close(place)
    return None


def _open_path_descriptor(path: str, owner: int, is_kind: IsKind) -> int:
    """Return a descriptor that names the file without opening it (O_PATH). Raises OSError."""
    if not path.startswith("/") or "\0" in path:
        raise OSError(errno.EINVAL, "not an absolute path", path)
    names = _split_path_components(path)
    place = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    links = 0
    try:
        while names:
            name = names.pop(0)
            found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            status = os.fstat(found)
            if not stat.S_ISLNK(status.st_mode):
                os.close(place)
                place = found
                continue
            # Read by the descriptor that was checked: another link may have its name by now.
            target = os.readlink("", dir_fd=found)
            os.close(found)
            links += 1
            if status.st_uid != 0 or links > MOST_LINKS:
                raise OSError(errno.ELOOP, "a link of a user is on the way", path)
            names = _split_path_components(target) + names
            if target.startswith("/"):
                os.close(place)
                place = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        status = os.fstat(place)
        if status.st_uid != owner or not is_kind(status.st_mode):
            raise OSError(errno.EACCES, "not such a file of that user", path)
    except BaseException:
        os.close(place)
        raise
    return place


def _split_path_components(path: str) -> list[str]:
    """Return the names of a path. `..` stays: the kernel resolves it from the directory reached."""
    return [name for name in path.split("/") if name not in ("", ".")]

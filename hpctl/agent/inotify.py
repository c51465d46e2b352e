"""Waiting for a file to change: inotify, through the C library."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

# linux/inotify.h
_MODIFY, _MOVED_TO, _CREATE = 0x2, 0x80, 0x100


class Inotify:
    """A descriptor that is readable when the file at a path grew, or another took its place.

    Raises OSError where the kernel has no inotify, or none left for this user.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            self._watch(path.parent, _CREATE | _MOVED_TO)
            self.again()
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """For a selector."""
        return self._fd

    def again(self) -> None:
        """Watch the file that is at the path now."""
        self._watch(self._path, _MODIFY)

    def drain(self) -> None:
        """Take note of what has changed so far: the descriptor is readable again after the next."""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while os.read(self._fd, 64 * 1024):
                pass

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)

    def _watch(self, path: Path, events: int) -> None:
        if self._libc.inotify_add_watch(self._fd, os.fsencode(path), events) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

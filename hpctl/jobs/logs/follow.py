"""A log file that grows: rotated, truncated, copied and truncated, or not there yet.

Reads are by position, so that a file is never read twice, and bounded, so that memory is too.
The bytes are cut into whole lines. A carriage return ends a line too: a progress bar rewrites its
line a thousand times before the newline comes. NUL bytes are dropped: a log truncated under a
writer that does not append has a hole of them before the next line.
"""

import os
import stat
from pathlib import Path

from hpctl.errors import HpctlError, Unavailable

LONGEST_LINE = 1 << 20
"""Bytes of a line that are kept; the rest of a longer one is passed over."""


class LineCutter:
    """Holds back the unfinished line at the end, at most LONGEST bytes of it."""

    __slots__ = ("_carry", "_dropping", "_returned")

    def __init__(self) -> None:
        self._carry = b""
        self._dropping = False
        self._returned = False

    def cut(self, data: bytes) -> bytes:
        """The lines that `data` completes, each ended by a newline."""
        if b"\0" in data:
            data = data.replace(b"\0", b"")
        if self._returned and data:
            data = data.removeprefix(b"\n")  # the second half of a \r\n that a read cut in two
            self._returned = False
        if b"\r" in data:
            self._returned = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        whole, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._keep(rest)
            return b""
        if self._dropping or self._carry:
            first, _, others = (whole + newline).partition(b"\n")
            self._keep(first)
            whole = self._carry + b"\n" + others
            self._carry, self._dropping = b"", False
        else:
            whole += newline
        self._keep(rest)
        return whole

    def finish(self) -> bytes:
        """The unfinished line, for a file that has ended; empty where there is none."""
        last, self._carry, self._dropping = self._carry, b"", False
        return last + b"\n" if last else b""

    def forget(self) -> None:
        """Drop the unfinished line: the file was cut short, and its end will never come."""
        self._carry, self._dropping = b"", False

    def _keep(self, part: bytes) -> None:
        if self._dropping:
            return
        self._carry += part
        if len(self._carry) > LONGEST_LINE:
            self._carry, self._dropping = self._carry[:LONGEST_LINE], True


BLOCK = 1 << 20
"""Bytes that one read takes at most: also what LineCutter's bound on a line rests on."""
REMEMBERED = 64
"""Bytes before the position that are compared, to see a file cut short and grown again."""


class NotALog(HpctlError):
    """The path is a directory, a FIFO or a device: following it could block or never end."""


class Follower:
    """Reads one path, whatever file stands there. Not safe for several threads.

    What it cannot see: lines that were written and rotated away, twice, between two reads; and a
    truncated file that grew again to the very same last bytes at the same place.
    """

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        """`at_end` passes over what is there already at the first read."""
        self.path = path
        self._at_end = at_end
        self._fd = -1
        self._position = 0
        self._tail = b""
        self._lines = LineCutter()

    def read(self) -> tuple[bytes, bool]:
        """Whole lines that are new, and whether that was all that the file holds by now.

        Raises Unavailable where the file cannot be read, NotALog where it is none. A file that is
        not there gives nothing: it may yet come, and what was open is read to its end.
        """
        try:
            return self._read()
        except OSError as error:
            self.close()
            message = f"cannot read {self.path}: {error.strerror or error}"
            raise Unavailable(
                message, "is its file system mounted, and may this user read it?"
            ) from (error)

    def finish(self) -> bytes:
        """The unfinished last line, once nobody writes any more."""
        return self._lines.finish()

    def close(self) -> None:
        """Let go of the file; the next read opens it again where it was."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> tuple[bytes, bool]:
        if self._fd < 0 and not self._open():
            return b"", True
        if self._cut_short():
            self._start_over()
        # Asked before the bytes are taken: a file system that fails here must not lose them.
        replaced = self._replaced()
        data = os.pread(self._fd, BLOCK, self._position)
        self._position += len(data)
        self._tail = (self._tail + data[-REMEMBERED:])[-REMEMBERED:]
        if len(data) == BLOCK:
            return self._lines.cut(data), False
        if replaced:
            if data:
                # More may have been written between this read and the rotation.
                return self._lines.cut(data), False
            # The last line may lack its newline, and will never get it.
            lines = self._lines.finish()
            self.close()
            self._start_over()
            return lines, False
        return self._lines.cut(data), True

    def _open(self) -> bool:
        try:
            # A FIFO without a writer would block the open.
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            self._at_end = False
            return False
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise NotALog(f"{self.path} is not a regular file", "name the file that the job writes")
        self._fd = fd
        if self._at_end:
            self._position, self._at_end = found.st_size, False
            begin = max(0, self._position - REMEMBERED)
            self._tail = os.pread(fd, self._position - begin, begin)
        return True

    def _cut_short(self) -> bool:
        size = len(self._tail)
        if not size:
            return False
        return os.pread(self._fd, size, self._position - size) != self._tail

    def _replaced(self) -> bool:
        """Whether another file stands at the path. None: it is in the middle of a rotation."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        mine = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def _start_over(self) -> None:
        self._position, self._tail = 0, b""
        self._lines.forget()

r"""The kernel's log, record by record: /dev/kmsg itself, or a file in the same format.

A record is `PRI,SEQ,USEC,FLAGS;text`, followed by continuation lines that begin with a space (the
kernel's Documentation/ABI/testing/dev-kmsg). The facility is PRI >> 3: 0 is the kernel, and user
space can never write it, so a line of another facility is no evidence about hardware. USEC counts
from boot. The device hands out one record a read, from the oldest that the ring still holds, so a
restarted agent sees this boot's records again. A record that was written without a closing newline
stays hidden until the next one begins (seen on Linux 6.18): test lines must end with one.
"""

import contextlib
import ctypes
import errno
import math
import os
import re
import stat
import time
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable

RECORD_BYTES = 8192
"""The longest record that the kernel hands out."""
BATCH = 512
"""The most records that one `read` returns, so that a log storm cannot starve the caller."""
FILE_POLL_S = 0.2
"""How often a file is read where inotify is not available."""
KERNEL_FACILITY = 0

# Of linux/inotify.h.
_MODIFY, _MOVED_TO, _CREATE = 0x2, 0x80, 0x100
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")
_STAMP = re.compile(rb"\d+,\d+,(\d+),[^;]*;")
_HEADER = re.compile(r"(\d+),(\d+),(\d+),[^;]*;")


class KernelRecord(Struct, frozen=True):
    """One kernel message. `at` is when it was logged, on the wall clock of now."""

    facility: int
    seq: int
    at: datetime
    text: str


def parse_kmsg_record(raw: bytes, booted: float | None = None) -> KernelRecord | None:
    """Return one record from its bytes; None for other bytes. Continuation lines are left out.

    `booted` is the wall-clock time that USEC counts from: by default this machine's boot.
    """
    now = time.time()
    return _parse_kmsg_record_with_clock(
        raw, _compute_boot_time(now) if booted is None else booted, now
    )


def _parse_kmsg_record_with_clock(raw: bytes, booted: float, now: float) -> KernelRecord | None:
    """Parse a record where the clock was read once for many: a storm runs through here."""
    line = raw.partition(b"\n")[0].decode("utf-8", "replace")
    header = _HEADER.match(line)
    if header is None:
        return None
    priority, seq, usec = header.groups()
    at = datetime.fromtimestamp(min(now, booted + int(usec) / 1e6), UTC)
    text = line[header.end() :]
    return KernelRecord(
        int(priority) >> 3, int(seq), at, _unescape_kmsg_text(text) if "\\" in text else text
    )


def _escape_kmsg_character(char: str) -> str:
    """Return a character as the kernel's log has it: printable ASCII, else `\\x` and hex digits."""
    if 32 <= ord(char) < 127 and char != "\\":
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode())


def format_kmsg_record(text: str, seq: int, priority: int = 4) -> bytes:
    """Return one record as the kernel would return it now, for a stand-in file.

    The default priority is facility 0 (kernel), level 4 (warning), the NVIDIA driver's own for
    most of its lines.
    """
    escaped = "".join(map(_escape_kmsg_character, text))
    return f"{priority},{seq},{time.monotonic_ns() // 1000},-;{escaped}\n".encode()


def _compute_boot_time(now: float) -> float:
    """Return when this machine booted: the kernel's stamps and CLOCK_MONOTONIC both count from
    there without suspended time."""
    return now - time.monotonic()


def _unescape_kmsg_text(text: str) -> str:
    """Undo the kernel's escapes, but leave control characters escaped: terminals obey those."""

    def decode_kmsg_escape(match: re.Match[str]) -> bytes:
        byte = int(match[1], 16)
        if byte in (0x09, 0x0A):
            return b" "
        return bytes([byte]) if byte >= 0x80 or byte == 0x5C else match[0].encode()

    out, last = bytearray(), 0
    for match in _ESCAPE.finditer(text):
        out += text[last : match.start()].encode() + decode_kmsg_escape(match)
        last = match.end()
    return (out + text[last:].encode()).decode("utf-8", "replace")


class KmsgDevice:
    """The device /dev/kmsg, non-blocking, from the oldest record that the ring holds.

    `lost` counts how often the kernel overwrote records before they were read: reading continues
    with the oldest that is left.
    """

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Return a descriptor for a selector, readable while records wait."""
        return self._fd

    def read(self) -> list[KernelRecord]:
        """Return the records that wait, at most BATCH. Raises Unavailable."""
        records: list[KernelRecord] = []
        now = time.time()
        booted = _compute_boot_time(now)
        for _ in range(BATCH):
            try:
                raw = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                break
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == errno.EPIPE:
                    self.lost += 1
                    continue
                if error.errno == errno.EINVAL:
                    # A record longer than the buffer; none is. The position has advanced.
                    continue
                raise ServiceUnavailable(
                    f"the agent cannot read the kernel log {self._path}: {error.strerror}"
                ) from error
            if not raw:
                break
            record = _parse_kmsg_record_with_clock(raw, booted, now)
            if record is not None:
                records.append(record)
        return records

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


class InotifyFileWatch:
    """A descriptor that is readable when the file at a path grew, or was replaced.

    Raises OSError where the kernel has no inotify, or its limit for this user is reached.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            self._add_inotify_watch(path.parent, _CREATE | _MOVED_TO)
            self.watch_current_file()
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """Return a descriptor for a selector."""
        return self._fd

    def watch_current_file(self) -> None:
        """Watch the file that is at the path now."""
        self._add_inotify_watch(self._path, _MODIFY)

    def drain(self) -> None:
        """Read the changes so far: the descriptor is readable again after the next change."""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            while os.read(self._fd, 64 * 1024):
                pass

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    def _add_inotify_watch(self, path: Path, events: int) -> None:
        if self._libc.inotify_add_watch(self._fd, os.fsencode(path), events) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class KmsgFileFollower:
    """A regular file in /dev/kmsg's format, followed by inotify; for machines without GPUs.

    A file of another format is refused: its lines do not show who wrote them. A file that shrinks
    or is replaced is read again from its start. A last line without its newline waits for the rest.
    USEC may count from any boot: the file's modification time is the time of its last record.
    """

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._path = path
        self._file = path.open("rb", buffering=0)
        self._inode = os.fstat(self._file.fileno()).st_ino
        self._offset = 0
        self._rest = b""
        self._records: list[KernelRecord] = []
        self._booted = math.inf
        self._is_kmsg = False
        self._changes: InotifyFileWatch | None = None
        with contextlib.suppress(OSError):
            self._changes = InotifyFileWatch(path)

    def fileno(self) -> int | None:
        """Return a descriptor for a selector, readable when the file has changed. None: poll it
        every FILE_POLL_S."""
        return None if self._changes is None else self._changes.fileno()

    def read(self) -> list[KernelRecord]:
        """Return the records that were added, at most BATCH. Raises Unavailable."""
        if self._changes is not None and not self._records:
            self._changes.drain()
        while not self._records and self._read_file_chunk():
            pass
        batch, self._records = self._records[:BATCH], self._records[BATCH:]
        return batch

    def _read_file_chunk(self) -> bool:
        """Read the next piece of the file; return False where there is none."""
        try:
            written = self._reopen_file_if_replaced()
            chunk = os.pread(self._file.fileno(), 256 * 1024, self._offset)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ServiceUnavailable(
                f"the agent cannot read the kernel log {self._path}: {error.strerror}"
            ) from error
        self._offset += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > RECORD_BYTES:
            # No record is as long: it is damaged and never becomes complete.
            self._rest = b""
            self.lost += 1
        last = next(filter(None, map(_STAMP.match, reversed(lines))), None)
        if last is not None:
            self._booted = min(self._booted, written - int(last[1]) / 1e6)
        now = time.time()
        parsed = (_parse_kmsg_record_with_clock(line, self._booted, now) for line in lines)
        self._records = [record for record in parsed if record is not None]
        self._is_kmsg |= bool(self._records)
        if not self._is_kmsg and (other := next(filter(None, map(bytes.strip, lines)), b"")):
            begins = other[:40].decode(errors="replace")
            raise ServiceUnavailable(
                f"the agent cannot read {self._path} as a kernel log: it is not in the format of "
                f"/dev/kmsg, its first line is {begins!r}",
                "Start the agent with --kmsg /dev/kmsg."
                f" To read a log in another format, run `hpctl agent triage {self._path}`.",
            )
        return bool(chunk)

    def _reopen_file_if_replaced(self) -> float:
        """Detect a replaced or shortened file; return when it was last written."""
        status = self._path.stat()
        if status.st_ino != self._inode:
            self._file.close()
            self._file = self._path.open("rb", buffering=0)
            self._inode, self._offset, self._rest = status.st_ino, 0, b""
            self._booted = math.inf
            if self._changes is not None:
                self._changes.watch_current_file()
        elif status.st_size < self._offset:
            self._offset, self._rest, self._booted = 0, b"", math.inf
        return status.st_mtime

    def close(self) -> None:
        """Close the descriptors."""
        self._file.close()
        if self._changes is not None:
            self._changes.close()


KernelLog = KmsgDevice | KmsgFileFollower


def open_kernel_log(path: Path) -> KernelLog:
    """Return the kernel's log at `path`: a character device or a regular file. Raises
    Unavailable."""
    try:
        if stat.S_ISREG(path.stat().st_mode):
            return KmsgFileFollower(path)
        return KmsgDevice(path)
    except OSError as error:
        hint = "Reading the kernel's log needs root or CAP_SYSLOG."
        if isinstance(error, FileNotFoundError):
            hint = "Name the kernel's log with --kmsg."
        raise ServiceUnavailable(
            f"the agent cannot open the kernel log {path}: {error.strerror}", hint
        ) from error

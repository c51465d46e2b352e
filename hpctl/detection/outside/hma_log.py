"""Follow the log of HyperPod's health monitoring agent: the journal of its unit, or a file.

It is trusted where only root can have written it: the journal's own fields (`_SYSTEMD_UNIT`,
`_UID`) name who logged a line, a file must be root's in directories that are root's. It informs and
never acts (`hpctl/faults/outside.md`), so any problem with it is one UNKNOWN finding.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import stat
import subprocess
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from hpctl.detection.outside.trust import explain_untrusted_directory, explain_untrusted_path
from hpctl.toolkit.bounds import parse_timestamp
from hpctl.toolkit.errors import ServiceUnavailable

UNIT = "sagemaker-health-monitoring-agent.service"


JOURNALCTL = (
    *("journalctl", f"--unit={UNIT}", "--boot", "--follow", "--lines=all", "--output=json"),
    *("--output-fields=MESSAGE,_UID,_SYSTEMD_UNIT", "--all", "--quiet", "--no-pager"),
)


UNIT_DIRECTORIES = (
    *("/etc/systemd/system", "/run/systemd/system"),
    *("/usr/lib/systemd/system", "/lib/systemd/system"),
)


MAX_LINE = 64 * 1024


CHUNK = 64 * 1024


_STAMP_DIGITS = 18


LINES = 256
"""Most lines of one read."""


class HealthAgentLogLine(Struct, frozen=True):
    """One line of the log. `at` is when it was logged, None where only the line itself may contain
    it."""

    text: str
    at: datetime | None = None


class UntrustedHealthLogError(ServiceUnavailable):
    """The error of a log that others than root could have written."""


class _HealthAgentLogLineSplitter:
    """A splitter of bytes into whole lines; a line that is too long is left out and counted."""

    def __init__(self, cut: int = 0) -> None:
        """Prepare. `cut`: lines that were left out before."""
        self.cut = cut
        self._rest = b""
        self._skipping = False

    def feed(self, chunk: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if self._skipping and lines:
            lines, self._skipping = lines[1:], False
        if len(self._rest) > MAX_LINE:
            self._rest = b""
            self.cut += not self._skipping
            self._skipping = True
        if self._skipping:
            self._rest = b""
        return lines


class _HealthLogReader:
    """The remainder of the bytes that were read. `cut`: how many lines were too long.

    After it is opened again it starts again with this boot's first line. `read` returns the added
    lines, at most LINES, and waits for some; it raises Unavailable where the log cannot be read,
    Untrusted among them.
    """

    def __init__(self) -> None:
        self._lines, self._pending = _HealthAgentLogLineSplitter(), list[bytes]()

    @property
    def cut(self) -> int:
        """Return how many lines were too long and are left out."""
        return self._lines.cut

    def _take_pending_lines(self) -> list[bytes]:
        now, self._pending = self._pending[:LINES], self._pending[LINES:]
        return now


class HealthAgentLogFile(_HealthLogReader):
    """A log file, from its beginning: rotated, shortened or replaced files are followed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._fd: int | None = None
        self._inode, self._offset = 0, 0

    def read(self, wait_s: float) -> list[HealthAgentLogLine]:
        """Return what was added since the last time."""
        if not self._pending:
            try:
                self._read_log_file_chunk()
                if not self._pending:
                    time.sleep(wait_s)
            except OSError as error:
                self.close()
                raise ServiceUnavailable(
                    f"the agent cannot read the log of HyperPod's health agent, {self._path}: "
                    f"{error.strerror}"
                ) from error
        return [
            HealthAgentLogLine(line.decode(errors="replace")) for line in self._take_pending_lines()
        ]

    def close(self) -> None:
        """Close the file; the next `read` opens it again, from its beginning."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _read_log_file_chunk(self) -> None:
        if self._fd is None:
            self._open_log_file()
        assert self._fd is not None
        chunk = os.pread(self._fd, CHUNK, self._offset)
        if chunk:
            self._offset += len(chunk)
            self._pending = self._lines.feed(chunk)
            return
        # Only at its end: the rest of a rotated file has been read by now.
        with contextlib.suppress(FileNotFoundError):
            status = self._path.lstat()
            if status.st_ino != self._inode or status.st_size < self._offset:
                self.close()

    def _open_log_file(self) -> None:
        trouble = explain_untrusted_directory(self._path.parent)
        if trouble:
            raise UntrustedHealthLogError(
                f"the agent does not read the log of HyperPod's health agent: {trouble}"
            )
        fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(fd)
        trouble = explain_untrusted_path(self._path, status)
        if not trouble and not stat.S_ISREG(status.st_mode):
            trouble = f"{self._path} is no regular file"
        if trouble:
            os.close(fd)
            raise UntrustedHealthLogError(
                f"the agent does not read the log of HyperPod's health agent: {trouble}"
            )
        self._fd, self._inode, self._offset = fd, status.st_ino, 0
        self._lines = _HealthAgentLogLineSplitter(self._lines.cut)


class _HealthAgentJournalEntry(msgspec.Struct, frozen=True):
    """One entry of `journalctl --output=json`; MESSAGE is a list of bytes where it is not text."""

    message: str | list[int] | None = msgspec.field(name="MESSAGE", default=None)
    uid: str = msgspec.field(name="_UID", default="")
    unit: str = msgspec.field(name="_SYSTEMD_UNIT", default="")
    at: str = msgspec.field(name="__REALTIME_TIMESTAMP", default="")


_entry = msgspec.json.Decoder(_HealthAgentJournalEntry)


class HealthAgentJournal(_HealthLogReader):
    """The unit's journal of this boot, through `journalctl --follow` as a child.

    Where the machine has no such unit, no child is started.
    """

    def __init__(
        self,
        command: Sequence[str] = JOURNALCTL,
        unit: str = UNIT,
        directories: Sequence[str] = UNIT_DIRECTORIES,
    ) -> None:
        super().__init__()
        self._command, self._unit, self._directories = tuple(command), unit, tuple(directories)
        self._child: subprocess.Popen[bytes] | None = None

    def read(self, wait_s: float) -> list[HealthAgentLogLine]:
        """Return the unit's own lines that were added, logged by root."""
        if not self._pending:
            self._pending = self._lines.feed(self._read_journal_chunk(wait_s))
        return [
            line
            for entry in self._take_pending_lines()
            if (line := self.parse_entry(entry)) is not None
        ]

    def close(self) -> None:
        """End the child; the next `read` starts another, from this boot's beginning."""
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
        assert child.stdout is not None
        child.stdout.close()

    def _read_journal_chunk(self, wait_s: float) -> bytes:
        child = self._child or self._start_journalctl()
        assert child.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            if not selector.select(wait_s):
                return b""
        chunk = os.read(child.stdout.fileno(), CHUNK)
        if not chunk:
            self.close()
            raise ServiceUnavailable(
                f"the agent cannot read the log of HyperPod's health agent: {self._command[0]} "
                f"ended with exit code {child.returncode}"
            )
        return chunk

    def _start_journalctl(self) -> subprocess.Popen[bytes]:
        if not any(Path(place, self._unit).exists() for place in self._directories):
            raise ServiceUnavailable(
                f"this machine has no HyperPod health agent: there is no service {self._unit}"
            )
        if shutil.which(self._command[0]) is None:
            raise ServiceUnavailable(
                f"the agent cannot read the log of HyperPod's health agent: {self._command[0]} is "
                "not installed on this node"
            )
        try:
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)},
                cwd="/",
            )
        except OSError as error:
            raise ServiceUnavailable(
                "the agent cannot read the log of HyperPod's health agent: cannot run "
                f"{self._command[0]}: {error.strerror}"
            ) from error
        return self._child

    def parse_entry(self, raw: bytes) -> HealthAgentLogLine | None:
        """Return the text of an entry. Other users may log under the unit's name, but not with its
        fields."""
        try:
            entry = _entry.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        if entry.unit != self._unit or entry.uid != "0" or entry.message is None:
            return None
        text = entry.message
        if isinstance(text, list):
            text = bytes(b & 0xFF for b in text).decode(errors="replace")
        stamp = entry.at if entry.at.isdecimal() and len(entry.at) <= _STAMP_DIGITS else "0"
        return HealthAgentLogLine(text, parse_timestamp(int(stamp) / 1e6))


Source = HealthAgentLogFile | HealthAgentJournal


def open_health_agent_log(path: Path | None) -> Source:
    """Return the file at `path`, or the journal where None."""
    return HealthAgentJournal() if path is None else HealthAgentLogFile(path)

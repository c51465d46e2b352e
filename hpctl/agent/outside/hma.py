"""Following the log of HyperPod's health monitoring agent: the journal of its unit, or a file.

It is trusted where only root can have written it: the journal's own fields (`_SYSTEMD_UNIT`,
`_UID`) say who logged a line, a file must be root's in directories that are root's. It informs and
never acts (`hpctl/core/faults/outside.md`), so whatever is wrong with it is one UNKNOWN finding.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from hpctl.agent.checks.kernel_gpu import normalise
from hpctl.agent.findings import fold
from hpctl.agent.outside.trust import why_not, why_not_directory
from hpctl.core.bounds import EARLIEST, LATEST, at_stamp
from hpctl.core.compat import UTC, iso_time
from hpctl.core.health import Key, key
from hpctl.core.model import Clears, Finding, Verdict
from hpctl.errors import Unavailable

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


class Line(Struct, frozen=True):
    """One line of the log. `at` is when it was logged, None where only the line itself may say."""

    text: str
    at: datetime | None = None


class Untrusted(Unavailable):
    """The log is there, and others than root could have written it."""


class _Lines:
    """Bytes in, whole lines out; a line that is too long is left out and counted."""

    def __init__(self) -> None:
        self.cut = 0
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


class _Followed:
    """What is left of the bytes that were read. `cut`: how many lines were too long.

    One that was opened again begins again with this boot's first line. `read` gives the lines that
    were added, LINES at most, and waits for some; it raises Unavailable where there are none to be
    had, Untrusted among them.
    """

    def __init__(self) -> None:
        self._lines, self._pending = _Lines(), list[bytes]()

    @property
    def cut(self) -> int:
        """How many lines were too long and are left out."""
        return self._lines.cut

    def _next(self) -> list[bytes]:
        now, self._pending = self._pending[:LINES], self._pending[LINES:]
        return now


class HealthAgentFile(_Followed):
    """A log file, from its beginning: rotated, shortened or replaced files are followed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._fd: int | None = None
        self._inode, self._offset = 0, 0

    def read(self, wait_s: float) -> list[Line]:
        """What was added since the last time."""
        if not self._pending:
            try:
                self._fill()
                if not self._pending:
                    time.sleep(wait_s)
            except OSError as error:
                self.close()
                raise Unavailable(f"{self._path} cannot be read: {error.strerror}") from error
        return [Line(line.decode(errors="replace")) for line in self._next()]

    def close(self) -> None:
        """Close the file; the next `read` opens it again, from its beginning."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _fill(self) -> None:
        if self._fd is None:
            self._open()
        assert self._fd is not None
        chunk = os.pread(self._fd, CHUNK, self._offset)
        if chunk:
            self._offset += len(chunk)
            self._pending = self._lines.feed(chunk)
            return
        # Only at its end: what a rotated file still held has been read by now.
        with contextlib.suppress(FileNotFoundError):
            status = self._path.lstat()
            if status.st_ino != self._inode or status.st_size < self._offset:
                self.close()

    def _open(self) -> None:
        if trouble := why_not_directory(self._path.parent):
            raise Untrusted(f"{self._path} is not trusted: {trouble}")
        fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        status = os.fstat(fd)
        trouble = why_not(self._path, status)
        if not trouble and not stat.S_ISREG(status.st_mode):
            trouble = f"{self._path} is no regular file"
        if trouble:
            os.close(fd)
            raise Untrusted(f"{self._path} is not trusted: {trouble}")
        cut = self._lines.cut
        self._fd, self._inode, self._offset, self._lines = fd, status.st_ino, 0, _Lines()
        self._lines.cut = cut


class _Entry(msgspec.Struct, frozen=True):
    """One entry of `journalctl --output=json`; MESSAGE is a list of bytes where it is not text."""

    message: str | list[int] | None = msgspec.field(name="MESSAGE", default=None)
    uid: str = msgspec.field(name="_UID", default="")
    unit: str = msgspec.field(name="_SYSTEMD_UNIT", default="")
    at: str = msgspec.field(name="__REALTIME_TIMESTAMP", default="")


_entry = msgspec.json.Decoder(_Entry)


class HealthAgentJournal(_Followed):
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

    def read(self, wait_s: float) -> list[Line]:
        """The unit's own lines that were added, logged by root."""
        if not self._pending:
            self._pending = self._lines.feed(self._chunk(wait_s))
        return [line for entry in self._next() if (line := self._line(entry)) is not None]

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

    def _chunk(self, wait_s: float) -> bytes:
        child = self._child or self._start()
        assert child.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            if not selector.select(wait_s):
                return b""
        chunk = os.read(child.stdout.fileno(), CHUNK)
        if not chunk:
            self.close()
            raise Unavailable(f"{self._command[0]} ended with exit code {child.returncode}")
        return chunk

    def _start(self) -> subprocess.Popen[bytes]:
        if not any(Path(place, self._unit).exists() for place in self._directories):
            raise Unavailable(f"this machine has no {self._unit}")
        if shutil.which(self._command[0]) is None:
            raise Unavailable(f"there is no {self._command[0]} here")
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
            raise Unavailable(f"{self._command[0]} cannot be run: {error.strerror}") from error
        return self._child

    def _line(self, raw: bytes) -> Line | None:
        """The text of an entry. Others may log in the unit's name, but not with its fields."""
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
        return Line(text, at_stamp(int(stamp) / 1e6))


Source = HealthAgentFile | HealthAgentJournal


def open_source(path: Path | None) -> Source:
    """The file at `path`, or the journal where None."""
    return HealthAgentJournal() if path is None else HealthAgentFile(path)


# --- hma watch ---
#
# The findings of HyperPod's health monitoring agent, followed in a thread of its own.

CHECK_LOG = "hma.log"
MAX_KEPT = 64
"""Distinct findings of one boot. It informs only: beyond them new ones are counted."""
WAIT_S = 1.0
TROUBLE_S = 3600.0
"""How long a trouble with the log is reported after it was last seen."""
AGAIN_S = 60.0
"""How long after a trouble the log is opened again."""


class HealthAgentWatch(threading.Thread):
    """Follows a source until stopped. `changed` is called when something new was found.

    Records from before `booted` are another boot's and count no more. A source that is not there
    is no finding: most machines have none. One that is there and not to be trusted is.
    """

    def __init__(self, source: Source, booted: datetime, changed: Callable[[], None]) -> None:
        super().__init__(name="hma", daemon=True)
        # The kernel's idea of the boot and the wall clock differ by what was adjusted since.
        self._source, self._booted = source, booted - timedelta(seconds=5)
        self._changed = changed
        self._found: dict[Key, Finding] = {}
        self._trouble: Finding | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._cut = 0

    def run(self) -> None:
        """Until stopped: read, judge, and again."""
        try:
            while not self._stopping.is_set():
                pause = 0.0 if self.turn(WAIT_S) else AGAIN_S
                self._stopping.wait(pause)
        finally:
            self._source.close()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End; a read under way is given `timeout_s`."""
        self._stopping.set()
        if self.is_alive():
            self.join(timeout_s)

    def turn(self, wait_s: float) -> bool:
        """Read once. False where there is nothing to read from."""
        try:
            lines = self._source.read(wait_s)
        except Untrusted as error:
            self._note("untrusted", str(error))
            return False
        except Unavailable:
            return False
        heard = datetime.now(UTC)
        for line in lines:
            self._take(line, heard)
        if self._source.cut > self._cut:
            self._note("too_long", "a line is too long to be a detection")
            self._cut = self._source.cut
        return True

    def findings(self) -> tuple[Finding, ...]:
        """All of this boot, earliest first. From any thread."""
        with self._lock:
            trouble = () if self._trouble is None else (self._trouble,)
            if trouble and datetime.now(UTC) - trouble[0].last > timedelta(seconds=TROUBLE_S):
                self._trouble, trouble = None, ()
            return (*sorted(self._found.values(), key=lambda f: (f.first, key(f))), *trouble)

    def _take(self, line: Line, heard: datetime) -> None:
        try:
            detection = read_detection(line.text)
        except (Malformed, ArithmeticError, LookupError, TypeError, ValueError) as error:
            self._note("malformed", str(error) or type(error).__name__, line.text)
            return
        if detection is not None:
            self._add(detection, line, heard)

    def _add(self, detection: Detection, line: Line, heard: datetime) -> None:
        at = detection.at or line.at
        if at is not None and at < self._booted:
            return
        finding = detection.finding(line.at or heard)
        name = key(finding)
        with self._lock:
            old = self._found.get(name)
            if old is not None and at is not None and at <= old.last:
                return  # The log was opened again, and says it again.
            full = old is None and len(self._found) >= MAX_KEPT
            if not full:
                self._found[name] = finding if old is None else fold(old, finding)
        if full:
            self._note("too_many", f"more than {MAX_KEPT} distinct detections in one boot")
        elif old is None:
            self._changed()

    def _note(self, code: str, detail: str, evidence: str = "") -> None:
        """One UNKNOWN finding for all that is wrong with the log: the first message, counted."""
        now = datetime.now(UTC)
        new = Finding(
            CHECK_LOG,
            Verdict.UNKNOWN,
            now,
            now,
            code=code,
            detail=detail[:256],
            evidence=evidence[:512],
            clears=Clears.GONE,
        )
        with self._lock:
            old = self._trouble
            self._trouble = new if old is None else fold(old, new)
        if old is None:
            self._changed()


def booted_at() -> datetime:
    """When this machine booted, by its own clocks."""
    return datetime.fromtimestamp(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME), UTC)


# --- hma_records ----------
# What one line of HyperPod's health monitoring agent says: the shapes that its releases write.
#
# All are JSON objects with the key `HealthMonitoringAgentDetectionEvent`; its other lines are its
# own affairs. Keys end in `: ` in some releases and not in others. The shapes, by what they hold:
#
#     xid        "condition": "XID Error", "data": {"ErrNum": 79}        from DCGM; no action named
#     dcgm       "condition": anything else, "data": {...}                a DCGM policy violation
#     npd        "details": {"reason": ..., "message": "Node condition NvidiaErrorReboot is ..."}
#     event      "Event detail": {"Action": "replace", "Type": ..., "Reason": ...}
#     condition  "condition details": {"type": ..., "status": ..., "message": ...}
#
# What HyperPod means to do stands in the detail: `replace`, `reboot` or `none`, where it says so.
# That is its business: hpctl shows it, and its gate sees the provider act.

MARK = "HealthMonitoringAgentDetectionEvent"
EVIDENCE_CHARS = 512
_SIGNS = (MARK, "DCGM Policy Violation found", "NPD caught")
"""One that is cut off may have lost its mark."""
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
    r"[^)]*\): (?P<code>\d{1,5})"
)
_CONDITION = re.compile(r"[Nn]ode condition (\w+)")
_NO_CODE = re.compile(r"[^A-Za-z0-9_.:+-]+")
_NO_ACTION = frozenset({"XidUserAppError", "KernelDeadlock", "NvidiaGpuXidRestartApp"})


class Malformed(ValueError):
    """A detection that cannot be understood: cut off, or of a release that we do not know."""


class Detection(Struct, frozen=True):
    """One detection. `at` is None where the record names no time that can be read_detection."""

    what: str
    code: str
    line: str
    at: datetime | None
    device: str = ""
    action: str = ""
    message: str = ""

    def finding(self, heard: datetime) -> Finding:
        """The finding that it amounts to: WARN where HyperPod itself means to do nothing."""
        at = heard if self.at is None else min(self.at, heard)
        return Finding(
            f"hma.{self.what}",
            Verdict.WARN if self.action == "none" else Verdict.FAIL,
            at,
            at,
            device=self.device,
            code=self.code,
            detail=": ".join(part for part in (self.action, self.message) if part)[:256],
            evidence=self.line[:EVIDENCE_CHARS],
            clears=Clears.BOOT,
        )


def read_detection(line: str) -> Detection | None:
    """The detection in a line of the log; None for its other lines. Raises Malformed."""
    if not any(sign in line for sign in _SIGNS):
        return None
    try:
        # syslog puts its own prefix before it.
        begin = 0 if line.lstrip().startswith(("{", "[")) else max(0, line.find("{"))
        record = msgspec.json.decode(line[begin:])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise Malformed(f"a detection that is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise Malformed("a detection that is no JSON object")
    fields = _plain_keys(record)
    if fields.get(MARK) != "HealthEvent":
        return None
    for name, reader in _SHAPES.items():
        inner = fields.get(name)
        if isinstance(inner, dict):
            return reader(_plain_keys(inner), fields, line)
    if isinstance(fields.get("condition"), str):
        return _dcgm(fields, line)
    raise Malformed(f"a detection of an unknown shape: {', '.join(sorted(fields))[:120]}")


def _npd(details: Mapping[str, Any], fields: Mapping[str, Any], line: str) -> Detection | None:
    """An event of the node problem detector: its reason, and the condition that it leads to."""
    message, reason = _text(details, "message"), _code(details, "reason")
    condition = _CONDITION.search(message)
    at = _time(details.get("timestamp")) or _time(fields.get("ts"))
    action = _action(reason, condition[1] if condition else message)
    xid = _XID.search(message)
    if xid is None:
        return Detection("npd", reason, line, at, action=action, message=message)
    return Detection("npd", reason, line, at, normalise(xid["pci"]), action, f"Xid {xid['code']}")


def _event(details: Mapping[str, Any], fields: Mapping[str, Any], line: str) -> Detection | None:
    """An event with its action, as clusters on EKS have it."""
    reason, kind = _code(details, "Reason"), _text(details, "Type")
    asked = _text(details, "Action").lower()
    action = asked if asked in ("replace", "reboot", "none") else _action(reason, kind) or asked
    xid = _XID.search(_text(details, "Message"))
    device = normalise(xid["pci"]) if xid else ""
    return Detection("event", reason, line, _time(fields.get("ts")), device, action, kind)


def _condition(
    details: Mapping[str, Any], fields: Mapping[str, Any], line: str
) -> Detection | None:
    """A condition of the node; one whose status is not True is none."""
    if str(details.get("status", "True")).lower() != "true":
        return None
    kind = _code(details, "type")
    at = _time(fields.get("ts"))
    message = _text(details, "message")
    return Detection("condition", kind, line, at, action=_action(kind, kind), message=message)


_SHAPES = {"Event detail": _event, "condition details": _condition, "details": _npd}


def _dcgm(fields: Mapping[str, Any], line: str) -> Detection:
    """A DCGM policy violation. It names no action: nothing is to be read_detection into it."""
    at, condition = _time(fields.get("ts")), _text(fields, "condition")
    data = fields.get("data")
    values = _plain_keys(data) if isinstance(data, dict) else {}
    if condition.lower().startswith("xid"):
        return Detection("xid", _number(values.get("ErrNum")), line, at)
    message = msgspec.json.encode(data).decode() if data else ""
    return Detection("dcgm", _slug(condition), line, at, message=message)


def _number(value: object) -> str:
    """An Xid as JSON may spell it: 79, 79.0 or "79". Raises Malformed for all else."""
    text = str(value).removesuffix(".0")
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,5}", text):
        raise Malformed(f"an Xid whose ErrNum is no number: {value!r:.80}")
    return str(int(text))


def _plain_keys(record: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key).rstrip(": "): value for key, value in record.items()}


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key, "")
    return " ".join(value.split()) if isinstance(value, str) else ""


def _code(fields: Mapping[str, Any], key: str) -> str:
    """The word that names it. Raises Malformed where there is none."""
    slug = _slug(_text(fields, key))
    if not slug:
        raise Malformed(f"a detection without {key!r}")
    return slug


def _slug(text: str) -> str:
    return _NO_CODE.sub("_", text.strip())[:64]


def _action(reason: str, condition: str) -> str:
    """What HyperPod means to do, from its own text; empty where that does not say."""
    if reason in _NO_ACTION:
        return "none"
    for phrases, action in (
        (("Terminate", "Replace", "PendingReplacement"), "replace"),
        (("Reboot",), "reboot"),
    ):
        if any(word in condition or word in reason for word in phrases):
            return action
    return ""


def _time(value: object) -> datetime | None:
    """ISO 8601 or seconds since 1970, as zap writes either; None for Go's zero time (year 1) and
    for times that no clock shows."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            at = datetime.fromtimestamp(value, UTC)
        else:
            at = iso_time(str(value))
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return at if EARLIEST < at < LATEST else None

r"""Kernel messages in a saved log, in any of these forms: dmesg, the journal, syslog, kmsg.

These forms are recognized, line by line, so that a file may contain several:

    [12345.678901] TEXT                  dmesg; also -x, -r, -d, -e, -T, --iso, [ T1234] callers
    4,123,456789,-;TEXT                  /dev/kmsg
    Nov 10 12:00:00 host kernel: TEXT    syslog and `journalctl -k`, in each of its short forms
    Nov 10 12:00:00 host kern.err kernel: TEXT    BusyBox's syslog, OpenWrt's logread
    kernel:[12345.678901] TEXT           what rsyslog prints on terminals
    10.1.0.5: kern: err: [2026-11-10T12:00:00Z]: TEXT    talosctl dmesg
    <4>1 2026-11-10T12:00:00Z host kernel - - - TEXT    syslog, RFC 5424
    {"MESSAGE": "TEXT", ...}             journalctl -o json and json-pretty; dmesg --json
    {"message": "Nov 10 ... kernel: TEXT"}    one of these lines, in a log collector's JSON
    __CURSOR=... MESSAGE=TEXT            journalctl -o export
    Tue 2026-11-10 ... [s=...] MESSAGE=TEXT    journalctl -o verbose
    TEXT                                 the bare message
         TEXT                            indented: a further line of the message above

What other tools print before each line is left out first (`hpctl.detection.log_prefixes`). The
month and the day of a date may be in any language: the date decides nothing.

A further line has the author of the message above it: no line of a program's message counts as the
kernel's.

Lines of other programs are left out, where the form shows it: only the kernel's lines are evidence
about hardware. In plain text any user may have written `kernel:`; the reader of the file must judge
that.
"""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct

from hpctl.detection import kmsg
from hpctl.detection.log_prefixes import DECODED, ISO_TIME, MONTH, strip_log_prefixes
from hpctl.toolkit.bounds import EARLIEST, clamp_time
from hpctl.toolkit.compat import UTC, parse_iso_time

MAX_LINE = 256 * 1024
"""Bytes of a line that are read; the rest is skipped."""
KERNEL = "kernel"
USER = 1
"""The facility of lines that the kernel did not write."""
_PRETTY_LINES = 200
_UNKNOWN_YEAR = 2000  # a leap year, which has a 29 February

_PRI = re.compile(r"<(\d{1,3})>")
_RFC5424 = re.compile(r"1 (\S+) \S+ (\S+) \S+ \S+ (?:-|(?:\[[^\]]*\])+) ?")
_DECODED = re.compile(DECODED)
_UPTIME = re.compile(
    r"(?:\[ *)?\+?(\d{1,10}\.\d{1,9})(?:@\d{1,5})?(?: *<[^>]{0,20}>)? *\] ?"
    r"|\[[A-Z][a-z]{2}\d\d \d\d:\d\d\] "
)
_CTIME = re.compile(
    rf"\[(?:[^\W\d_]{{1,12}}\.? )?({MONTH} [ \d]?\d \d\d:\d\d:\d\d)"
    r"(?:\.\d{1,9})?(?: [A-Z]{2,5})?( \d{4})(?: *<[^>]{0,20}>)?\] ?"
)
_BRACKETED_ISO = re.compile(rf"\[({ISO_TIME})\]:? ?")
_ISO = re.compile(
    r"(?P<at>\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:(?P<dmesg>,)\d{1,9}|\.\d{1,9})?"
    r"(?:Z|[+-]\d\d:?\d\d)?)(?: [+-]\d{4})?(?: UTC)? "
    r"|[^\W\d_]{1,12}\.? (?P<full>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\S{0,10} \S{1,9} "
)
_SYSLOG = re.compile(
    # A day of the week, and a year at any place; the month as the writer's language has it.
    rf"(?:(\d{{4}}) )?(?:[^\W\d_]{{1,12}}[.,]? )?({MONTH} [ \d]?\d)(?: (\d{{4}}))? (\d\d:\d\d:\d\d)"
    r"(?:\.\d{1,9})?(?: (?:[A-Z]{2,5} )?(\d{4}))? "
)
_DATED = re.compile(
    # Any other date, where a host and a program's name follow: `10. Nov 12:00:00 host kernel: `.
    r"[^\[<{\":]{0,40}?(?<![\d:.])\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: [+-]\d{4})?(?: [A-Z]{3,5})? "
    r"(?=(?:\S{1,255} )?[\w./-]{1,64}(?:\[\d{1,10}\])?:)"
)
_UNIX = re.compile(r"(\d{9,11}\.\d{1,9}) ")
_SAYS = re.compile(
    r"(?:\S{0,255} )?(?:kern\.[a-z]{3,7} )?kernel:(?: kernel:)?(?: |(?=\[))|kernel:(?=\S)"
    r"|(?:\S{1,32} vmkernel: )?cpu\d{1,4}:\d{1,12}(?: opID=\w{1,32})?\)"
)
"""Rsyslog prints no space after it on terminals. A hypervisor of VMware names the processor."""
_NETCONSOLE = re.compile(r"\S{1,255} (?=\[ *\d{1,10}\.\d{6}\] )")
"""A line that syslog received from a kernel itself has no program's name."""
_FACILITY = re.compile(r"(?!kern\.)[a-z]+\d?\.(?:emerg|alert|crit|err|warn|notice|info|debug)\b")
"""A facility and a level where a host's name would be: another program's line."""
_VERBOSE = re.compile(r"\S.{8,60} \[s=[0-9a-f]{3,32};i=[0-9a-f]+;")
"""The first line of an entry, as `journalctl -o verbose` prints it."""
_VERBOSE_FURTHER = " " * 6
_MOST_FIELDS = 256
"""Fields of one entry that are kept; the journal's own are fewer than 50."""
_VERBOSE_FIELD = re.compile(r" {4}([A-Z_][A-Z0-9_]{0,63})=(.*)")
_CALLER = re.compile(r"\[ *[TC]\d{1,10}\] ")
_REPEATED = re.compile(r"message repeated \d{1,9} times: \[ ?(.*)\]$")
"""The line that rsyslog writes for equal lines."""
_APEI = re.compile(r"\{\d{1,10}\}\[")
_MEMBER = re.compile(r"\s+[\"\[\]\d]")
"""A line within an object that is printed over several."""
_FURTHER = re.compile(r" {6,64}(?! )(?![\[<\d])|\t")
"""What a further line of a message begins with, as dmesg and journalctl print it."""
_FIELD = re.compile(rb"([A-Z_][A-Z0-9_]{0,63})(=|\n)")


class LogTextEntry(Struct, frozen=True):
    """One message: the number of its line in the file, counted from 1, and its record.

    `record.facility` is 0 where the kernel wrote it, as far as the form shows; `raw` is the line.
    """

    number: int
    record: kmsg.KernelRecord
    raw: str


class LogTextReader:
    """The entries of a log. `lines` is how many were read so far."""

    def __init__(self, stream: BinaryIO) -> None:
        self.lines = 0
        self._stream = stream
        self._unread = b""
        self._at = EARLIEST
        self._facility = 0

    def __iter__(self) -> Iterator[LogTextEntry]:
        block: list[str] = []
        while line := self._read_log_line():
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if line.startswith(b"__CURSOR="):
                yield from self._parse_journal_export_entry(line)
                continue
            if _VERBOSE.match(text):
                yield from self._parse_journal_verbose_entry()
                continue
            bare = text.strip("\x1e ,")
            if bare in ("{", "}", "},{") or (
                block and len(block) < _PRETTY_LINES and _MEMBER.match(text)
            ):
                block.append(text)
                if bare.startswith("}"):
                    yield from self._parse_json_log_block(block)
                    block = []
                if bare.endswith("{"):
                    block = ["{"]
                continue
            block = []
            entry = self._parse_log_line(text, line)
            if entry is not None:
                yield entry

    def _read_log_line(self) -> bytes:
        """Return the next line; only the beginning of one that is too long."""
        if self._unread:
            line, self._unread = self._unread, b""
            return line
        line = self._stream.readline(MAX_LINE)
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = self._stream.readline(MAX_LINE)
        self.lines += bool(line)
        return line

    def _parse_log_line(self, text: str, line: bytes) -> LogTextEntry | None:
        whole, text = text, strip_log_prefixes(text)
        record = kmsg.parse_kmsg_record(
            line if text == whole else text.encode(), EARLIEST.timestamp()
        )
        if record is not None:
            return LogTextEntry(self.lines, record, whole)
        # `{7}[Hardware Error]: ` is the kernel's own: what firmware reports has a number (APEI).
        if text.lstrip("\x1e").startswith(("{", "data: {")) and not _APEI.match(text):
            fields = _parse_json_log_object(text.lstrip("\x1e").removeprefix("data: "))
            if fields is None:
                return self._make_log_entry(USER, self._at, text, self.lines)
            return self._make_entry_from_journal_fields(fields, text, self.lines)
        further = _FURTHER.match(text)
        if further is not None:
            return self._make_log_entry(
                self._facility, None, text[further.end() :], self.lines, whole
            )
        facility, at, message = _split_log_line(text)
        return self._make_log_entry(facility, at, message, self.lines, whole)

    def _make_log_entry(
        self, facility: int, at: datetime | None, message: str, number: int, raw: str = ""
    ) -> LogTextEntry:
        self._at = at or self._at
        self._facility = facility
        one_line = message.replace("\n", " ")  # as kmsg's records have it
        return LogTextEntry(
            number, kmsg.KernelRecord(facility, number, self._at, one_line), raw or message
        )

    def _parse_json_log_block(self, block: list[str]) -> Iterator[LogTextEntry]:
        """Parse one object of json-pretty or of dmesg's JSON, which ended on this line."""
        inner = [line for line in block if line.strip(" ,") not in ("{", "}", "},{")]
        for back, line in enumerate(reversed(inner), 1):
            if '"MESSAGE"' in line or '"msg"' in line:
                fields = _parse_json_log_object("{" + "\n".join(inner).rstrip(", ") + "}")
                if fields is not None:
                    yield self._make_entry_from_journal_fields(
                        fields, line.strip(), self.lines - back
                    )
                return

    def _parse_journal_export_entry(self, first: bytes) -> Iterator[LogTextEntry]:
        """Parse one entry of the journal's export format, until its empty line."""
        fields: dict[str, Any] = {}
        number, line = self.lines, first
        while line and line != b"\n":
            name = _FIELD.match(line)
            if name is not None:
                key = name[1].decode()
                number = self.lines if key == "MESSAGE" else number
                fields[key] = (
                    line[name.end() :].rstrip(b"\n")
                    if name[2] == b"="
                    else self._read_binary_journal_field()
                )
            line = self._read_log_line()
        decoded = {key: value.decode("utf-8", "replace") for key, value in fields.items()}
        if "MESSAGE" in decoded:
            yield self._make_entry_from_journal_fields(decoded, decoded["MESSAGE"], number)

    def _parse_journal_verbose_entry(self) -> Iterator[LogTextEntry]:
        """Parse one entry of the journal's verbose form: the indented lines after its first."""
        fields: dict[str, str] = {}
        number, key = self.lines, ""
        while line := self._read_log_line():
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            name = _VERBOSE_FIELD.match(text)
            if name is not None:
                key = name[1]
                if len(fields) < _MOST_FIELDS:
                    fields[key] = name[2]
                number = self.lines if key == "MESSAGE" else number
            elif text.startswith(_VERBOSE_FURTHER) and key:
                if key in fields:
                    fields[key] = f"{fields[key]} {text.strip()}"[:MAX_LINE]
            else:
                self._unread = line
                break
        if "MESSAGE" in fields:
            yield self._make_entry_from_journal_fields(fields, fields["MESSAGE"], number)

    def _read_binary_journal_field(self) -> bytes:
        """Read a field of any bytes: its length in 8 bytes, the field, a newline."""
        data = self._stream.read(min(int.from_bytes(self._stream.read(8), "little"), MAX_LINE))
        self.lines += data.count(b"\n")
        self._read_log_line()
        return data

    def _make_entry_from_journal_fields(
        self, fields: dict[str, Any], raw: str, number: int
    ) -> LogTextEntry:
        """Return the record of the journal's fields, or dmesg's own: who wrote it, when, and the
        text."""
        if "msg" in fields and "pri" in fields:
            facility = KERNEL if fields.get("fac", "kern") == "kern" else ""
            at = _convert_epoch_seconds_to_datetime(fields.get("time"))
            return self._make_log_entry(
                0 if facility else USER, at, _decode_journal_message(fields["msg"]), number, raw
            )
        message = _decode_journal_message(
            fields.get("MESSAGE", fields.get("message", fields.get("log", "")))
        )
        if _has_log_collector_fields(fields):
            inner = strip_log_prefixes(message.rstrip("\n"))
            author, at, text = _split_log_line(inner)
            return self._make_log_entry(USER if text == inner else author, at, text, number, raw)
        transport = _get_journal_transport(fields)
        ours = transport == KERNEL and str(fields.get("SYSLOG_FACILITY", 0)) == "0"
        stamp = str(fields.get("__REALTIME_TIMESTAMP", ""))
        at = (
            _convert_epoch_seconds_to_datetime(int(stamp) / 1e6)
            if re.fullmatch(r"[0-9]{1,17}", stamp)
            else None
        )
        return self._make_log_entry(0 if ours else USER, at, message or raw, number, raw)


def _has_log_collector_fields(fields: dict[str, Any]) -> bool:
    """Return whether an object is a log collector's, which names no author of the line in it."""
    return "MESSAGE" not in fields and _get_journal_transport(fields) == ""


def _get_journal_transport(fields: dict[str, Any]) -> object:
    """Return who gave the journal an entry, empty where nothing says it."""
    systemd = fields.get("systemd")  # as Filebeat names the journal's fields
    if isinstance(systemd, dict):
        return systemd.get("transport", "")
    return fields.get("_TRANSPORT", fields.get("SYSLOG_IDENTIFIER", ""))


def _split_log_line(text: str) -> tuple[int, datetime | None, str]:
    """Split a line of text into facility, time and message."""
    facility = 0
    pri = _PRI.match(text)
    if pri is not None:
        facility, text = int(pri[1]) >> 3, text[pri.end() :]
        head = _RFC5424.match(text)
        if head is not None:
            ours = head[2] == KERNEL and facility == 0
            return (
                0 if ours else USER,
                _parse_iso_timestamp(head[1]),
                _strip_kernel_timestamp_and_caller(text[head.end() :]),
            )
    elif (decoded := _DECODED.match(text)) is not None:
        facility, text = 0 if decoded[1] == "kern" else USER, text[decoded.end() :]
    at, syslog, text = _split_log_line_timestamp(text)
    says = _match_kernel_line_prefix(text, syslog)
    if says is not None:
        text = text[says.end() :]
    elif syslog:
        facility = USER
    return facility, at, _strip_kernel_timestamp_and_caller(text)


def _match_kernel_line_prefix(text: str, syslog: bool) -> re.Match[str] | None:
    """Match what says that the kernel wrote the rest of a line, with its date cut off."""
    if not syslog:
        return _SAYS.match(text)
    if _FACILITY.match(text):
        return None
    return _SAYS.match(text) or _NETCONSOLE.match(text)


def _split_log_line_timestamp(text: str) -> tuple[datetime | None, bool, str]:
    """Return when a line was logged, whether syslog wrote that, and the rest of the line."""
    at, syslog = None, False
    stamp = _UPTIME.match(text)
    if stamp is not None:
        at = _convert_epoch_seconds_to_datetime(float(stamp[1])) if stamp[1] else None
    elif (stamp := _CTIME.match(text)) is not None:
        at = _parse_month_name_date(stamp[1] + stamp[2])
    elif (stamp := _BRACKETED_ISO.match(text)) is not None:
        at = _parse_iso_timestamp(stamp[1])
    elif (stamp := _ISO.match(text)) is not None:
        # Of the writers of such times only dmesg has a comma in them, and no host's name after it.
        at, syslog = _parse_iso_timestamp(stamp["at"] or stamp["full"]), stamp["dmesg"] is None
    elif (stamp := _SYSLOG.match(text)) is not None:
        at, syslog = _parse_syslog_date(stamp), True
    elif (stamp := _UNIX.match(text)) is not None:
        at, syslog = _convert_epoch_seconds_to_datetime(float(stamp[1])), True
    elif (stamp := _DATED.match(text)) is not None:
        syslog = True
    return at, syslog, text if stamp is None else text[stamp.end() :]


def _parse_syslog_date(stamp: re.Match[str]) -> datetime | None:
    year = stamp[1] or stamp[3] or stamp[5] or _UNKNOWN_YEAR
    return _parse_month_name_date(f"{stamp[2]} {stamp[4]} {year}")


def _strip_kernel_timestamp_and_caller(text: str) -> str:
    """Return the message without the kernel's own time and caller, which syslog leaves before
    it."""
    for prefix in (_UPTIME, _CALLER):
        match = prefix.match(text)
        if match is not None:
            text = text[match.end() :]
    repeated = _REPEATED.match(text)
    return repeated[1] if repeated else text


def _decode_journal_message(value: object) -> str:
    """Return a message of the journal's JSON: a list of bytes where it is no valid text."""
    if isinstance(value, list):
        return bytes(b & 0xFF for b in value if isinstance(b, int)).decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def _parse_json_log_object(text: str) -> dict[str, Any] | None:
    try:
        fields = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
    return fields if isinstance(fields, dict) else None


def _convert_epoch_seconds_to_datetime(seconds: object) -> datetime | None:
    if not isinstance(seconds, int | float):
        return None
    try:
        return clamp_time(EARLIEST + timedelta(seconds=seconds))
    except OverflowError:
        return None


@lru_cache(64)
def _parse_iso_timestamp(text: str) -> datetime | None:
    try:
        at = parse_iso_time(text)
    except ValueError:
        return None
    return clamp_time(at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC))


@lru_cache(64)
def _parse_month_name_date(text: str) -> datetime | None:
    """Parse `Nov 10 12:00:00 2026` as UTC: only the time between lines counts."""
    try:
        return clamp_time(datetime.strptime(text, "%b %d %H:%M:%S %Y").replace(tzinfo=UTC))
    except ValueError:
        return None

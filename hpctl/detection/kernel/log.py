"""Sort a batch of kernel records: which lines matter, and the findings that they become.

Most lines matter to no check, and in a storm thousands a second must be sorted. A line goes to the
readers that its first four characters choose, or one of a few later phrases, and equal lines of a
batch only once. The fault tables define which characters and phrases belong to a check
(`HealthCheckSpec.heads` and `words`) and the form of its lines (`FaultRow.line`); seven modules
read what a row cannot express, each for the reason at its top. Patterns are anchored: what user
space can put into a kernel line (the name of a process or a device) rarely comes first, and the
lines in which it does are left out.

Lines that the kernel did not write are not trusted: see `hpctl.detection.kmsg`.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from hpctl.detection.findings import merge_repeated_findings
from hpctl.detection.kernel.line import (
    HEAD_CHARS,
    KernelFaultLine,
    has_process_name_prefix,
    make_kernel_line_finding,
)
from hpctl.detection.kernel.link_detection import NvlinkErrorTracker
from hpctl.detection.kernel.out_of_memory import parse_oom_kill_line
from hpctl.detection.kernel.patterns import KernelLineMatcher
from hpctl.detection.kernel.processor_errors import parse_processor_error_line
from hpctl.detection.kernel.split_messages import LONGEST_PART, PART_HEAD, KernelMessageJoiner
from hpctl.detection.kernel.traces import (
    TRACE_CHECKS,
    add_driver_name_from_trace,
    is_followed_by_kernel_trace,
    is_past_kernel_trace,
)
from hpctl.detection.kernel.unknown_driver_lines import DRIVER_HEADS, parse_unknown_driver_line
from hpctl.detection.kernel.xid import parse_xid_or_sxid_line
from hpctl.detection.kmsg import KERNEL_FACILITY, KernelRecord
from hpctl.faults.health import Key, make_finding_identity_key
from hpctl.faults.table import KERNEL_CHECKS
from hpctl.vocabulary.model import DeviceVerdict, Finding

LONGEST = 2048
"""Characters of a message that are judged: the kernel makes none longer (PRINTK_MESSAGE_MAX), and
no pattern is slow on as many."""

JobOf = Callable[[int, datetime], str]
Gather = Callable[[KernelRecord], KernelFaultLine | None]
Found = dict[tuple[Key, DeviceVerdict], Finding]

_PROCESS_CHECK = "kernel.process"
"""Its lines begin with the name of a process, and are matched against no other check."""
_READ_BY_CODE: Mapping[str, Gather] = {
    "kernel.xid": parse_xid_or_sxid_line,
    "kernel.sxid": parse_xid_or_sxid_line,
    "kernel.memory": parse_processor_error_line,
    "kernel.oom": parse_oom_kill_line,
}
"""The readers of a check's lines that come before the patterns of its rows."""
_CHECKS = tuple(spec for spec in KERNEL_CHECKS if spec.name != _PROCESS_CHECK)


def _list_kernel_line_parsers(checks: tuple[str, ...]) -> tuple[Gather, ...]:
    """Return what reads the lines of these checks, in the order in which it is asked."""
    by_code = dict.fromkeys(_READ_BY_CODE[check] for check in checks if check in _READ_BY_CODE)
    return (*by_code, KernelLineMatcher(checks).gather)


def _group_line_parsers_by_prefix() -> dict[str, tuple[Gather, ...]]:
    checks: dict[str, tuple[str, ...]] = {}
    for spec in _CHECKS:
        for head in spec.heads if spec.name not in TRACE_CHECKS else ():
            checks[head] = (*checks.get(head, ()), spec.name)
    readers = {names: _list_kernel_line_parsers(names) for names in set(checks.values())}
    table = {head: readers[names] for head, names in checks.items()}
    for head in DRIVER_HEADS:
        table[head] = (*table.get(head, ()), parse_unknown_driver_line)
    return table


def _group_line_parsers_by_word() -> dict[str, tuple[Gather, ...]]:
    table: dict[str, tuple[Gather, ...]] = {}
    for spec in _CHECKS:
        for word in spec.words:
            table[word] = _list_kernel_line_parsers((spec.name,))
    return table


_BY_HEAD = _group_line_parsers_by_prefix()
_BY_WORD = _group_line_parsers_by_word()
_AER, _BUS, _APEI, _QUEUE, _KILLER, _NCCL, _PAGES, _NRT, _SWIOTLB, _AMD_VI = chain.from_iterable(
    spec.words for spec in KERNEL_CHECKS
)
_PROCESS = (KernelLineMatcher([_PROCESS_CHECK]).gather,)
_TRACED = KernelLineMatcher(TRACE_CHECKS)
_TROUBLE = frozenset(
    chain.from_iterable(spec.heads for spec in _CHECKS if spec.name in TRACE_CHECKS)
)


class _RepeatedKernelLines(Struct):
    """Equal lines of one batch: the first of them, the time of the last, and how many."""

    first: KernelRecord
    last: datetime
    count: int = 1


class KernelLogAnalyzer:
    """A judge of batches, one after the other: a trace may be split between two of them."""

    def __init__(self, job_of: JobOf) -> None:
        self._job_of = job_of
        self._trouble: KernelFaultLine | None = None
        self._joiner = KernelMessageJoiner()
        self._complaints = NvlinkErrorTracker()

    def findings(
        self, records: Iterable[KernelRecord], *, accept_user: bool = False
    ) -> list[Finding]:
        """Return the findings of a batch, equal ones folded, in the order of their first lines.

        OK marks a line that ends the condition of an earlier one. `accept_user` accepts lines that
        the kernel did not write, for tests on the real device.
        """
        equal: dict[str, _RepeatedKernelLines] = {}
        found: Found = {}
        for record in records:
            if record.facility != KERNEL_FACILITY and not accept_user:
                continue
            text = record.text
            if len(text) > LONGEST:
                text = text[:LONGEST]
                record = replace(record, text=text)
            head = text[:HEAD_CHARS]
            if head == PART_HEAD and len(text) <= LONGEST_PART:
                record = self._joiner.join(record)
                text = record.text
            if self._trouble is not None:
                self._find_driver_in_kernel_trace(record, found)
            if head in _TROUBLE:
                self._detect_kernel_lockup(record, found)
            # Written in full: a storm runs through this line, and a loop over the words costs more.
            elif (
                head in _BY_HEAD
                or _AER in text
                or _BUS in text
                or _APEI in text
                or _NRT in text
                or _QUEUE in text
                or _KILLER in text
                or _NCCL in text
                or _PAGES in text
                or _SWIOTLB in text
                or _AMD_VI in text
            ):
                known = equal.get(text)
                if known is None:
                    equal[text] = _RepeatedKernelLines(record, record.at)
                else:
                    known.count += 1
                    known.last = max(known.last, record.at)
        for lines in equal.values():
            self._parse_repeated_kernel_lines(lines, found)
        return list(found.values())

    def _parse_repeated_kernel_lines(self, lines: _RepeatedKernelLines, found: Found) -> None:
        text = lines.first.text
        if has_process_name_prefix(text):
            self._try_line_parsers(_PROCESS, lines, found)
            return
        for word, readers in _BY_WORD.items():
            if word in text and self._try_line_parsers(readers, lines, found):
                return
        self._try_line_parsers(_BY_HEAD.get(text[:HEAD_CHARS], ()), lines, found)

    def _try_line_parsers(
        self, readers: Iterable[Gather], lines: _RepeatedKernelLines, found: Found
    ) -> bool:
        """Keep the result of the first reader that recognizes the lines."""
        for gather in readers:
            line = gather(lines.first)
            if line is None:
                continue
            finding = make_kernel_line_finding(
                self._complaints.mark_persistent_nvlink_error(line, lines.last)
            )
            if lines.count > 1:
                finding = replace(finding, last=lines.last, count=finding.count * lines.count)
            self._add_finding_with_job(finding, line.pid, found)
            return True
        return False

    def _detect_kernel_lockup(self, record: KernelRecord, found: Found) -> None:
        """Judge a lockup or a crash: the next lines may name the place."""
        if has_process_name_prefix(record.text):
            return
        line = _TRACED.gather(record)
        if line is not None:
            self._add_finding_with_job(make_kernel_line_finding(line), line.pid, found)
            self._trouble = line if is_followed_by_kernel_trace(line) else None

    def _find_driver_in_kernel_trace(self, record: KernelRecord, found: Found) -> None:
        trouble = self._trouble
        if trouble is None:
            return
        if is_past_kernel_trace(trouble, record):
            self._trouble = None
        elif (line := add_driver_name_from_trace(trouble, record)) is not None:
            self._trouble = None
            self._add_finding_with_job(make_kernel_line_finding(line), line.pid, found)

    def _add_finding_with_job(self, finding: Finding, pid: int | None, found: Found) -> None:
        if pid is not None and not finding.job:
            job = self._job_of(pid, finding.first)
            finding = replace(finding, job=job) if job else finding
        name = (make_finding_identity_key(finding), finding.verdict)
        known = found.get(name)
        found[name] = finding if known is None else merge_repeated_findings(known, finding)

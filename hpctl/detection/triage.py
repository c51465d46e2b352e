"""`hpctl agent triage`: what hpctl would find in a kernel log, line by line. It needs no cluster.

The lines are judged by the agent's own code (`hpctl.detection.kernel.log`), and its findings by the
daemon's own (`hpctl.faults.assess`, hpctl's own catalogue): each line separately, then all lines of
a boot together, because companions and the driver's own statement change the meaning of a line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, BinaryIO, ClassVar

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpctl.detection.findings import FindingStore
from hpctl.detection.kernel import unknown_driver_lines
from hpctl.detection.kernel.line import has_process_name_prefix, make_kernel_line_finding
from hpctl.detection.kernel.log import LONGEST, KernelLogAnalyzer
from hpctl.detection.kmsg import KERNEL_FACILITY, KernelRecord
from hpctl.detection.logtext import LogTextEntry, LogTextReader
from hpctl.detection.outside import hma_records
from hpctl.faults.table import KERNEL_CHECKS
from hpctl.toolkit import output
from hpctl.toolkit.bounds import EARLIEST, escape_json_for_terminal
from hpctl.toolkit.declared_view import (
    BlankLine,
    Column,
    Columns,
    ItemTextLines,
    Layout,
    RowTable,
    TextLine,
)
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.toolkit.output import ExitCode
from hpctl.vocabulary.model import Finding

if TYPE_CHECKING:
    from hpctl.faults.catalogue import FaultRules
    from hpctl.vocabulary.assessment import FaultClass, NodeAssessment
    from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding

_BOOT = "Linux version "
"""The kernel's first words."""
_AT_ONCE = 100
_SHOWN = 2000
"""The most rows of the table; the summary counts all lines."""


class TriagedLineView(Struct, frozen=True):
    """One line with a meaning, as JSON has it. `device` is empty where it names none."""

    line: int
    check: str
    code: str
    device: str
    rule: str
    meaning: str
    condition: str
    remedy: str
    urgency: str
    source: str
    text: str


class TriagedBootView(Struct, frozen=True):
    """The result of all lines of one boot: `first` and `last` number its lines in the file.

    `restart_job`: some of them are a job's own fault, or cost a job its process.
    """

    first: int
    last: int
    assessment: NodeAssessment
    restart_job: bool


class RepeatedKernelLineText(Struct, frozen=True):
    """The text of equal lines: the number of the first, how many, and what they mean."""

    line: int
    times: int
    view: TriagedLineView

    columns: ClassVar[Columns] = (
        Column("LINE", "line"),
        Column("TIMES", "times"),
        Column("CODE", "code"),
        Column("DEVICE", "view.device"),
        Column("CONDITION", "view.condition"),
        Column("REMEDY", "view.remedy"),
        Column("MEANING, SOURCE", "{view.meaning} [{view.rule}]\n{view.source}", fold=True),
    )

    @property
    def code(self) -> str:
        """Return the check that found the line, and the code."""
        return f"{self.view.check.removeprefix('kernel.')} {self.view.code}".strip()


class KernelLogTriageText(Struct, frozen=True):
    """The text of `hpctl agent triage`. `meant`: so many of the `read` lines mean something;
    `others` were not the kernel's."""

    lines: tuple[RepeatedKernelLineText, ...]
    boots: tuple[TriagedBootView, ...]
    meant: int
    read: int
    others: int

    layout: ClassVar[Layout] = (
        RowTable("lines"),
        BlankLine(when="lines"),
        ItemTextLines(
            "boots",
            lambda boot: (
                f"lines {boot.first} to {boot.last}: {_describe_response_to_boot_faults(boot)}"
            ),
        ),
        TextLine("{meant} of {read} lines mean something{rest}"),
    )

    @property
    def rest(self) -> str:
        """Return how many lines other programs wrote."""
        return f", {self.others} not the kernel's" if self.others else ""


def _merge_equal_lines(views: list[TriagedLineView]) -> tuple[RepeatedKernelLineText, ...]:
    """Return equal lines as one row."""
    folded: dict[TriagedLineView, tuple[int, int]] = {}
    for view in views:
        same = replace(view, line=0, text="")
        first, times = folded.get(same, (view.line, 0))
        folded[same] = (first, times + 1)
    rows = list(folded.items())[:_SHOWN]
    return tuple(RepeatedKernelLineText(first, times, view) for view, (first, times) in rows)


@click.command(short_help="Show what hpctl would make of a kernel log.")
@click.argument("file", default="-", metavar="[FILE|-]")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object a line (docs/cli-json.md)."
)
def triage(file: str, as_json: bool) -> None:
    """Show what hpctl would make of a kernel log: what each line means, and what it would do.

    FILE is dmesg's output, the journal's (in any of its forms), a syslog file or records of
    /dev/kmsg, also as pdsh, grep, kubectl or CloudWatch print them; - or nothing is standard
    input. Works anywhere, and does nothing else.
    Exit code: 0 hpctl would leave the node in service, 1 it would act, 3 FILE cannot be read.
    """
    from hpctl.vocabulary.assessment import NodeCondition

    reader = KernelLogTriageReader()
    views: list[TriagedLineView] = []
    with _open_log(file) as stream:
        for view in reader.views(stream):
            views.append(view)
            # Rows of a file in groups of a hundred; a live input line by line.
            if as_json and (file == "-" or len(views) >= _AT_ONCE):
                _print_json_lines(views)
    boots = reader.boots()
    if as_json:
        _print_json_lines(views)
    else:
        text = KernelLogTriageText(
            _merge_equal_lines(views), tuple(boots), len(views), reader.lines, reader.others
        )
        output.show_view("triage", text, as_json)
    faulty = any(boot.assessment.condition is NodeCondition.FAULTY for boot in boots)
    output.exit_with_code(ExitCode.PROBLEM if faulty else ExitCode.FINE)


@contextmanager
def _open_log(file: str) -> Iterator[BinaryIO]:
    """Yield the file, or standard input. Raises Unavailable."""

    try:
        if file == "-":
            yield sys.stdin.buffer
            return
        with open(file, "rb") as stream:
            yield stream
    except OSError as error:
        hint = "read it by `dmesg | hpctl agent triage` or `journalctl -k | hpctl agent triage`"
        raise ServiceUnavailable(
            f"cannot read the kernel log {file}: {error.strerror or error}", hint
        ) from error


class KernelLogTriageReader:
    """A judge of a log: `views` its lines, then `boots` the result of all of them together."""

    def __init__(self) -> None:
        self.lines = self.others = 0
        self._kernel = _make_kernel_line_judge()
        self._boots: list[tuple[int, int, FindingStore]] = []

    def views(self, stream: BinaryIO) -> Iterator[TriagedLineView]:
        """Yield the lines with a meaning, in their order."""
        log = LogTextReader(stream)
        for entry in log:
            if not self._boots or entry.record.text.startswith(_BOOT):
                self._start_boot(entry.number)
            first, _, all_of_boot = self._boots[-1]
            self._boots[-1] = (first, log.lines, all_of_boot)
            for finding in self._detect_entry_findings(entry):
                all_of_boot.add(finding)
                view = _make_triaged_line_view(finding, entry)
                if view is not None:
                    yield view
        self.lines = log.lines

    def boots(self) -> list[TriagedBootView]:
        """Judge each boot as the daemon would have done at its end."""
        from hpctl.faults.assess import (
            assess_findings_without_settling,
            list_fault_classes_by_severity,
        )
        from hpctl.vocabulary.assessment import Remedy

        boots = []
        for first, last, seen in self._boots:
            findings = seen.all()
            if findings:
                ladders = (
                    fault.ladder
                    for fault in list_fault_classes_by_severity(findings, _load_default_rules())
                )
                restart = any(ladder[0] is Remedy.RESTART_JOB for ladder in ladders)
                boots.append(
                    TriagedBootView(
                        first,
                        last,
                        assess_findings_without_settling(findings, _load_default_rules()),
                        restart,
                    )
                )
        return boots

    def _start_boot(self, number: int) -> None:
        self._kernel = _make_kernel_line_judge()
        self._boots.append((number, number, FindingStore()))

    def _detect_entry_findings(self, entry: LogTextEntry) -> list[Finding]:
        if entry.record.facility == KERNEL_FACILITY:
            found = self._kernel.findings([entry.record]) or _find_driver_error(entry.record)
            if found:
                return found
        else:
            self.others += 1
        try:
            detection = hma_records.parse_health_agent_detection(entry.raw)
        except hma_records.MalformedHealthAgentDetectionError:
            return []
        return [] if detection is None else [detection.finding(entry.record.at)]


def _make_kernel_line_judge() -> KernelLogAnalyzer:
    """Return the agent's own judge of lines, which does not look up in /proc whose process a line
    names."""
    return KernelLogAnalyzer(lambda _pid, _at: "")


def _find_driver_error(record: KernelRecord) -> list[Finding]:
    """Return a word of failure in any line: a reader of a log needs it, an agent does not keep
    it."""
    text = record.text[:LONGEST]
    if has_process_name_prefix(text):
        return []
    found = unknown_driver_lines.parse_unknown_driver_line(replace(record, text=text))
    return [] if found is None else [make_kernel_line_finding(found)]


def _make_triaged_line_view(finding: Finding, entry: LogTextEntry) -> TriagedLineView | None:
    """Return the view of one finding; None where the catalogue has no row for it."""
    kind = (finding.check, finding.verdict, finding.device, finding.code, finding.detail)
    judged = _classify_kernel_line_fault(kind, finding.count, finding.clears)
    if judged is None:
        return None
    fault, condition = judged
    return TriagedLineView(
        line=entry.number,
        check=finding.check,
        code=finding.code,
        device=finding.device,
        rule=fault.rule,
        meaning=fault.meaning,
        condition=condition,
        remedy=_format_remedy_name(fault.ladder[0]),
        urgency=fault.urgency.value,
        source=_describe_line_source(finding.check, fault),
        text=entry.raw[:512],
    )


@lru_cache(1024)
def _classify_kernel_line_fault(
    kind: tuple[str, DeviceVerdict, str, str, str], count: int, clears: ClearCondition
) -> tuple[FaultClass, str] | None:
    """Judge by what the lines of a storm share: time, process and text of a line change nothing."""
    from hpctl.faults.assess import assess_findings_without_settling, list_fault_classes_by_severity

    check, verdict, device, code, detail = kind
    finding = Finding(
        check, verdict, EARLIEST, EARLIEST, device, code, detail, count=count, clears=clears
    )
    assessment = assess_findings_without_settling((finding,), _load_default_rules())
    if assessment.fault is not None:
        return assessment.fault, assessment.condition.value
    rows = list_fault_classes_by_severity([finding], _load_default_rules())
    return (rows[0], assessment.condition.value) if rows else None


@lru_cache(1)
def _load_default_rules() -> FaultRules:
    from hpctl.faults.catalogue import build_fault_rules

    return build_fault_rules()


@lru_cache(256)
def _describe_line_source(check: str, fault: FaultClass) -> str:
    """Return which component prints the line, and which treats it."""

    printed = next((f"{row.source}; " for row in KERNEL_CHECKS if row.name == check), "")
    return f"{printed}{fault.source}"


def _format_remedy_name(remedy: str) -> str:
    return remedy.replace("_", "-")


def _print_json_lines(views: list[TriagedLineView]) -> None:
    """Print one object a line; the list is then empty."""
    if views:
        output.echo("\n".join(map(_encode_triaged_line_as_json, views)))
        views.clear()


def _encode_triaged_line_as_json(view: TriagedLineView) -> str:
    body = {"schema": "hpctl.triage/1", **msgspec.to_builtins(view)}
    return escape_json_for_terminal(msgspec.json.encode(body).decode())


def _describe_response_to_boot_faults(boot: TriagedBootView) -> str:
    """Return the condition, what hpctl would do about it, and why."""
    from hpctl.vocabulary.assessment import Urgency

    assessment = boot.assessment
    fault, why = assessment.fault, assessment.why
    if fault is None:
        stays = f"{assessment.condition}: hpctl would leave the node in service"
        if boot.restart_job:
            stays += "; restart the job"
        return f"{stays}\n  why: {why}" if why else stays
    when = (
        "drain the node at once, stop its jobs and start them on other nodes"
        if fault.urgency is Urgency.NOW
        else "drain the node and wait until its jobs have ended"
    )
    ladder = ", then ".join(_format_remedy_name(remedy) for remedy in fault.ladder)
    return f"faulty: hpctl would {when}; remedy: {ladder}\n  why: {why}\n  source: {fault.source}"

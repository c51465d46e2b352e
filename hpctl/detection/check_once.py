"""Every check once, for `hpctl agent check`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckObservation,
    CheckResultUnknownError,
    DeviceAbsentError,
)
from hpctl.detection.findings import FindingStore
from hpctl.detection.kernel.log import KernelLogAnalyzer
from hpctl.detection.kmsg import open_kernel_log
from hpctl.detection.runner import LoadedCheck, make_check_finding
from hpctl.detection.slurm_jobs import ProcessJobFinder
from hpctl.faults.assess import assess_findings_without_settling
from hpctl.faults.catalogue import build_fault_rules
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.assessment import NodeCondition
from hpctl.vocabulary.model import DeviceVerdict, Finding

#
# One run of every check on this machine, and one reading of the kernel's log as it is now.

LOG = "kernel"


_WORST = (DeviceVerdict.FAIL, DeviceVerdict.WARN, DeviceVerdict.UNKNOWN, DeviceVerdict.NOTE)


_STATES = {NodeCondition.FAULTY: DeviceVerdict.FAIL, NodeCondition.SUSPECT: DeviceVerdict.WARN}


class CheckResultRow(Struct, frozen=True):
    """One check: `state` is ok, note, warn, fail, unknown, or absent where this machine lacks it.

    `why` describes what it examines, why it is absent or unknown, or the result of the kernel's
    lines.
    """

    check: str
    state: str
    why: str
    findings: tuple[Finding, ...] = ()


def run_node_checks_once(
    checks: Sequence[LoadedCheck], machine: CheckedMachine
) -> list[CheckResultRow]:
    """Run each check now, one after the other, without N of M and grace."""
    return [_run_check_once(check, machine) for check in checks]


def check_kernel_log_once(path: Path, *, accept_user: bool = False) -> tuple[CheckResultRow, int]:
    """Return the findings of this boot's kernel log, folded, and how many records were lost."""
    try:
        findings, lost = _read_kernel_log_findings(path, accept_user)
    except ServiceUnavailable as error:
        return CheckResultRow(LOG, DeviceVerdict.UNKNOWN, f"{error} {error.hint}".strip()), 0
    return _make_kernel_log_row(path, findings), lost


def _make_kernel_log_row(path: Path, findings: tuple[Finding, ...]) -> CheckResultRow:
    """Judge the lines together, by the daemon's own function, so that both agree."""
    if not findings:
        return CheckResultRow(LOG, DeviceVerdict.OK, f"what the kernel says in {path}")
    assessment = assess_findings_without_settling(findings, build_fault_rules())
    state = _STATES.get(assessment.condition, DeviceVerdict.NOTE)
    return CheckResultRow(LOG, state, assessment.why, findings)


def _read_kernel_log_findings(path: Path, accept_user: bool) -> tuple[tuple[Finding, ...], int]:
    source, kernel, findings = (
        open_kernel_log(path),
        KernelLogAnalyzer(ProcessJobFinder().of),
        FindingStore(),
    )
    try:
        while records := source.read():
            for finding in kernel.findings(records, accept_user=accept_user):
                findings.add(finding)
    finally:
        source.close()
    return findings.all(), source.lost


def _run_check_once(check: LoadedCheck, machine: CheckedMachine) -> CheckResultRow:
    spec, now = check.spec, datetime.now(UTC)
    try:
        seen = list(check.judge(check.gather(machine), None, check.limits))
    except DeviceAbsentError as error:
        return CheckResultRow(spec.name, "absent", str(error))
    except CheckResultUnknownError as error:
        seen = [CheckObservation("cannot_tell", "", DeviceVerdict.UNKNOWN, str(error)[:256])]
    findings = tuple(make_check_finding(spec, one, now) for one in seen)
    return CheckResultRow(spec.name, _find_worst_finding_verdict(findings), spec.what, findings)


def _find_worst_finding_verdict(findings: Sequence[Finding]) -> str:
    verdicts = {finding.verdict for finding in findings}
    return next(
        (verdict.value for verdict in _WORST if verdict in verdicts), DeviceVerdict.OK.value
    )

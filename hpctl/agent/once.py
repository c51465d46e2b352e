"""One run of every check on this machine, and one look at the kernel's log as it stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hpctl.agent import runner
from hpctl.agent.check import Machine, NotHere
from hpctl.agent.checks import kernel
from hpctl.agent.fold import Findings
from hpctl.agent.kmsg import open_log
from hpctl.agent.runner import Check
from hpctl.core.model import Finding, Verdict
from hpctl.errors import Unavailable

LOG = "kernel"
_WORST = (Verdict.FAIL, Verdict.WARN, Verdict.UNKNOWN)


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check: `state` is ok, warn, fail, unknown, or absent where it is not for this machine.

    `why` says what it looks at, or why it is absent or unknown.
    """

    check: str
    state: str
    why: str
    findings: tuple[Finding, ...] = ()


def look(checks: Sequence[Check], machine: Machine) -> list[CheckRow]:
    """Run the checks, one after the other."""
    return [_row(check, result) for check, result in runner.once(checks, machine)]


def look_at_log(path: Path, *, accept_user: bool = False) -> tuple[CheckRow, int]:
    """What this boot's kernel log says, folded, and how many records were lost."""
    try:
        findings, lost = _read_log(path, accept_user)
    except Unavailable as error:
        return CheckRow(LOG, Verdict.UNKNOWN, f"{error} {error.hint}".strip()), 0
    return CheckRow(LOG, _worst(findings), f"what the kernel says in {path}", findings), lost


def _read_log(path: Path, accept_user: bool) -> tuple[tuple[Finding, ...], int]:
    source, findings = open_log(path), Findings()
    try:
        while records := source.read():
            for finding in kernel.findings(records, accept_user=accept_user):
                findings.add(finding)
    finally:
        source.close()
    return findings.all(), source.lost


def _row(check: Check, result: Sequence[Finding] | NotHere) -> CheckRow:
    if isinstance(result, NotHere):
        return CheckRow(check.spec.name, "absent", str(result))
    return CheckRow(check.spec.name, _worst(result), check.spec.what, tuple(result))


def _worst(findings: Sequence[Finding]) -> str:
    verdicts = {finding.verdict for finding in findings}
    return next((verdict.value for verdict in _WORST if verdict in verdicts), Verdict.OK.value)

"""Folding an agent's reports into what is known of its node, and what a reset clears of it.

A GPU reset is the daemon's order to a node's agent. It is good for one boot of one instance, for
ORDER_S seconds, and once. The agent answers with a finding of RESET_CHECK, whose device is the
recovery's id: `done`, `failed` or `refused`. An order without an answer is in doubt: it is never
given again, and the next rung of the ladder is taken.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from hpctl.vocabulary.identity import RecoveryId
from hpctl.vocabulary.model import AgentReport, ClearCondition, DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.reset_order import MOST_GPUS

RESET_CHECK: Final = "gpu.reset"


RESET_DONE, RESET_FAILED, RESET_REFUSED = "done", "failed", "refused"


ORDER_S: Final = 60.0
"""An agent asks every 10 s; a credential of this age is worth nothing to a user who finds it."""


_OF_GPUS: Final = ("gpu.", "kernel.xid")


MOST_FINDINGS: Final = 512
"""What is kept of one node, and what one report may hold."""


def list_faulty_gpus(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the PCI addresses of the GPUs that findings speak against."""
    named = {f.device for f in findings if f.check.startswith(_OF_GPUS) and f.device.count(":") > 1}
    return tuple(sorted(named)) if len(named) <= MOST_GPUS else ()


def find_gpu_reset_result(recovery: RecoveryId, findings: Iterable[Finding]) -> Finding | None:
    """Return what a node's agent says of the reset that a recovery ordered; None: nothing yet."""
    return next((f for f in findings if f.check == RESET_CHECK and f.device == recovery), None)


def drop_findings_cleared_by_reset(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return the findings without those that a reset has cleared since: of its GPUs, seen before
    it."""
    resets = [f for f in findings if f.check == RESET_CHECK and f.code == RESET_DONE]
    if not resets:
        return findings

    def is_finding_current(finding: Finding) -> bool:
        return not any(_is_cleared_by_reset(finding, reset) for reset in resets)

    return tuple(filter(is_finding_current, findings))


def _is_cleared_by_reset(finding: Finding, reset: Finding) -> bool:
    of_gpu = finding.check.startswith(_OF_GPUS) and finding.check != RESET_CHECK
    before = finding.last < reset.first and finding.clears is not ClearCondition.OPERATOR
    return of_gpu and before and finding.device in reset.evidence.split()


Key = tuple[str, str, str, str, str]


def make_finding_identity_key(finding: Finding) -> Key:
    """Return what makes two findings the same one, seen again."""
    return (finding.check, finding.device, finding.code, finding.detail, finding.job)


def merge_agent_report(
    known: NodeHealth | None, report: AgentReport, heard: datetime
) -> tuple[NodeHealth, bool]:
    """Return what is known after a report, and whether anything in it is new, an end included.

    `heard` is the head node's own clock: how long a node has been silent must not depend on
    the node's. It is taken as it is: after the clock was set back, a time in the future would
    hide for as long that the node fell silent.

    A new generation starts from its own findings alone: what a former boot saw is cleared by
    the boot, save what only an operator clears. Within a generation nothing seen is forgotten
    but what clears by being gone, of which the agent's list is the whole truth, and a job that
    the agent now tells together with others: a node that runs thousands of jobs in one boot would
    otherwise be remembered by each that had an error; what a reset of its GPU has cleared; and
    what is too much (`limit_finding_count`). Counts are the agent's own.
    """
    findings = tuple(_clamp_finding_times_to_report(f, heard) for f in report.findings)
    reported = {make_finding_identity_key(f) for f in findings}
    if known is None or known.generation != report.generation:
        kept = _list_findings_cleared_by_operator_only(known, report)
        fresh = NodeHealth(
            report.generation,
            heard,
            drop_findings_cleared_by_reset(_merge_findings(kept, findings)),
        )
        return limit_finding_count(fresh, reported), True
    folded = {
        make_finding_identity_key(f): f for f in known.findings if _should_keep_finding(f, reported)
    }
    new = any(
        f.clears is ClearCondition.GONE and make_finding_identity_key(f) not in reported
        for f in known.findings
    )
    unknown: set[Key] = set()
    for finding in findings:
        before = folded.get(make_finding_identity_key(finding))
        if before is None:
            folded[make_finding_identity_key(finding)] = finding
            unknown.add(make_finding_identity_key(finding))
        elif finding != before:
            new |= finding.verdict is not before.verdict
            folded[make_finding_identity_key(finding)] = replace(
                finding,
                first=min(before.first, finding.first),
                last=max(before.last, finding.last),
                count=max(before.count, finding.count),
            )
    health = NodeHealth(
        known.generation, heard, drop_findings_cleared_by_reset(tuple(folded.values()))
    )
    health = limit_finding_count(health, reported)
    return health, new or any(make_finding_identity_key(f) in unknown for f in health.findings)


_DROPPED: Final[Key] = ("agent.dropped", "", "", f"more than {MOST_FINDINGS} distinct findings", "")
"""The finding that says that a node sent more; `count`: the most that were left out at once."""


def limit_finding_count(health: NodeHealth, reported: Container[Key] = ()) -> NodeHealth:
    """Return the node with MOST_FINDINGS at most, and one that counts those that were dropped.

    A node that tells ever new things, by a broken check or by malice, must cost the others neither
    time nor memory. What fails is kept first, of that what the agent still tells, then what only an
    operator clears, then the newest: a flood hides nothing that fails and is still reported.
    """
    others = [f for f in health.findings if make_finding_identity_key(f) != _DROPPED]
    if len(others) <= MOST_FINDINGS:
        return health

    def make_finding_priority_key(f: Finding) -> tuple[bool, bool, bool, datetime, Key]:
        fails, lasting = f.verdict is DeviceVerdict.FAIL, f.clears is ClearCondition.OPERATOR
        return (
            fails,
            make_finding_identity_key(f) in reported,
            lasting,
            f.last,
            make_finding_identity_key(f),
        )

    others.sort(key=make_finding_priority_key, reverse=True)
    dropped, at = len(others) - MOST_FINDINGS, health.last_heard
    check, _, _, detail, _ = _DROPPED
    note = Finding(check, DeviceVerdict.WARN, at, at, detail=detail, count=dropped)
    for before in (f for f in health.findings if make_finding_identity_key(f) == _DROPPED):
        note = replace(note, first=before.first, count=max(before.count, dropped))
    return replace(health, findings=(*others[:MOST_FINDINGS], note))


def _should_keep_finding(finding: Finding, reported: set[Key]) -> bool:
    name = make_finding_identity_key(finding)
    if name in reported:
        return True
    together = (*name[:-1], "") in reported
    return finding.clears is not ClearCondition.GONE and not (finding.job and together)


def drop_findings_dismissed_by_operator(
    health: NodeHealth, returned: datetime | None
) -> NodeHealth:
    """Return what still counts of a node that an operator gave back with `hpctl undrain` at that
    time.

    A finding that only an operator clears is dismissed from then on, however often its check
    still sees it: the agent continues to report what it saw, and a condition that lasts is no news.
    It counts again where it says something else, or began again, after a restart above all.
    """
    if returned is None or not any(_is_finding_dismissed(f, returned) for f in health.findings):
        return health
    kept = tuple(f for f in health.findings if not _is_finding_dismissed(f, returned))
    return replace(health, findings=kept)


def _is_finding_dismissed(finding: Finding, returned: datetime) -> bool:
    return finding.clears is ClearCondition.OPERATOR and finding.first <= returned


def _list_findings_cleared_by_operator_only(
    known: NodeHealth | None, report: AgentReport
) -> tuple[Finding, ...]:
    if known is None or known.generation.instance != report.instance:
        return ()
    return tuple(f for f in known.findings if f.clears is ClearCondition.OPERATOR)


def _merge_findings(
    kept: tuple[Finding, ...], reported: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    names = {make_finding_identity_key(f) for f in reported}
    return (*(f for f in kept if make_finding_identity_key(f) not in names), *reported)


def _clamp_finding_times_to_report(finding: Finding, heard: datetime) -> Finding:
    """A finding cannot be younger than its report: a node's clock that runs ahead would
    otherwise lengthen every wait that is counted from it."""
    if finding.last <= heard:
        return finding
    return replace(finding, first=min(finding.first, heard), last=heard)

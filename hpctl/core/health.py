"""Folding an agent's reports into what is known of its node."""

from datetime import datetime

from msgspec.structs import replace

from hpctl.core import reset
from hpctl.core.model import Clears, Finding, Health, Report

Key = tuple[str, str, str, str, str]


def key(finding: Finding) -> Key:
    """What makes two findings the same one, seen again."""
    return (finding.check, finding.device, finding.code, finding.detail, finding.job)


def fold_report(known: Health | None, report: Report, heard: datetime) -> tuple[Health, bool]:
    """What is known after a report, and whether anything in it is new, an end included.

    `heard` is the head node's own clock: how long a node has been silent must not depend on
    the node's. It is taken as it is: after the clock was set back, a time in the future would
    hide for as long that the node fell silent.

    A new generation starts from its own findings alone: what a former boot saw is cleared by
    the boot, save what only an operator clears. Within a generation nothing seen is forgotten
    but what clears by being gone, of which the agent's list is the whole truth, and a job that
    the agent now tells together with others: a node that runs thousands of jobs in one boot would
    otherwise be remembered by each that had an error; and what a reset of its GPU has cleared.
    Counts are the agent's own.
    """
    findings = tuple(_not_later(f, heard) for f in report.findings)
    if known is None or known.generation != report.generation:
        kept = _outlives_boot(known, report)
        return Health(report.generation, heard, reset.standing(_merged(kept, findings))), True
    reported = {key(f) for f in findings}
    folded = {key(f): f for f in known.findings if _still_known(f, reported)}
    new = any(f.clears is Clears.GONE and key(f) not in reported for f in known.findings)
    for finding in findings:
        before = folded.get(key(finding))
        if before is None:
            folded[key(finding)] = finding
            new = True
        elif finding != before:
            new |= finding.verdict is not before.verdict
            folded[key(finding)] = replace(
                finding,
                first=min(before.first, finding.first),
                last=max(before.last, finding.last),
                count=max(before.count, finding.count),
            )
    return Health(known.generation, heard, reset.standing(tuple(folded.values()))), new


def _still_known(finding: Finding, reported: set[Key]) -> bool:
    name = key(finding)
    if name in reported:
        return True
    together = (*name[:-1], "") in reported
    return finding.clears is not Clears.GONE and not (finding.job and together)


def standing(health: Health, returned: datetime | None) -> Health:
    """What still counts of a node that an operator gave back with `hpctl return` at that time.

    A finding that only an operator clears is dismissed from then on, however often its check
    still sees it: the agent goes on to report what it saw, and a condition that lasts is no news.
    It counts again where it says something else, or began anew, after a restart above all.
    """
    if returned is None or not any(_dismissed(f, returned) for f in health.findings):
        return health
    kept = tuple(f for f in health.findings if not _dismissed(f, returned))
    return replace(health, findings=kept)


def _dismissed(finding: Finding, returned: datetime) -> bool:
    return finding.clears is Clears.OPERATOR and finding.first <= returned


def _outlives_boot(known: Health | None, report: Report) -> tuple[Finding, ...]:
    if known is None or known.generation.instance != report.instance:
        return ()
    return tuple(f for f in known.findings if f.clears is Clears.OPERATOR)


def _merged(kept: tuple[Finding, ...], reported: tuple[Finding, ...]) -> tuple[Finding, ...]:
    names = {key(f) for f in reported}
    return (*(f for f in kept if key(f) not in names), *reported)


def _not_later(finding: Finding, heard: datetime) -> Finding:
    """A finding cannot be younger than its report: a node's clock that runs ahead would
    otherwise lengthen every wait that is counted from it."""
    if finding.last <= heard:
        return finding
    return replace(finding, first=min(finding.first, heard), last=heard)

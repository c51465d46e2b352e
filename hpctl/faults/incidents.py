"""Findings of one moment, as one incident."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import combinations, pairwise
from operator import itemgetter

from msgspec import Struct

from hpctl.faults.decode import parse_gpu_component
from hpctl.toolkit.bounds import clamp_duration
from hpctl.vocabulary.model import TEST, DeviceVerdict, Finding

XID = "kernel.xid"


SXID = "kernel.sxid"


_APPLICATIONS = frozenset({"13", "31"})
"""Codes that an application's own bug writes again and again."""


_TELLING = frozenset({DeviceVerdict.NOTE, DeviceVerdict.WARN, DeviceVerdict.FAIL})


class FaultIncident(Struct, frozen=True):
    """All findings of one check and code on one device that say anything, oldest first."""

    check: str
    device: str
    code: str
    findings: tuple[Finding, ...]
    first: datetime
    last: datetime

    @property
    def count(self) -> int:
        """Return how often it was seen, bursts included."""
        return sum(f.count for f in self.findings)

    @property
    def text(self) -> str:
        """Return everything its lines say, for the decoders."""
        return " ".join(f"{f.detail} {f.evidence}" for f in self.findings)


def make_finding_sort_key(
    f: Finding,
) -> tuple[datetime, datetime, str, str, str, str, str, int, str]:
    """Return a total order on findings, oldest first, so that the order of arrival does not
    show."""
    return (f.first, f.last, f.check, f.device, f.code, f.detail, f.evidence, f.count, f.verdict)


def group_findings_by_incident(findings: Iterable[Finding]) -> list[FaultIncident]:
    """Fold the NOTE, WARN and FAIL findings, in an order that does not depend on the input's.

    What an incident means is its rule's business, not its verdict's: a site may have given a rule
    another treatment.
    """
    folded: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in findings:
        # A test's result is only for the recovery that asked for it.
        if finding.verdict in _TELLING and not finding.check.startswith(TEST):
            key = (finding.check, finding.device, finding.code.strip())
            folded.setdefault(key, []).append(finding)
    return [_make_incident(key, found) for key, found in sorted(folded.items(), key=itemgetter(0))]


def _make_incident(key: tuple[str, str, str], found: list[Finding]) -> FaultIncident:
    """Return the incident of findings with one check, device and code."""
    check, device, code = key
    return FaultIncident(
        check=check,
        device=device,
        code=code,
        findings=tuple(sorted(found, key=make_finding_sort_key)),
        first=min(finding.first for finding in found),
        last=max(finding.last for finding in found),
    )


def can_be_same_fault_event(a: FaultIncident, b: FaultIncident, fold: timedelta) -> bool:
    """Return whether two incidents can be one event: same device (or one names none), close in
    time."""
    if a.device != b.device and a.device and b.device:
        return False
    return b.first - a.last <= fold and a.first - b.last <= fold


def is_incident_repeated_on_gpu_component(
    incident: FaultIncident, window_s: float, apart: timedelta
) -> bool:
    """Seen twice on the same part within the window, and by more than one job or burst.

    Of an error that is mostly the application's (Xid 13, 31), the same job having it again
    says nothing: two jobs must have had it. Where a finding does not say which job it hit,
    time stands in for it: a process that had such an error is dead, and the next one later than
    `apart` is another. For every other code it is time alone that tells two bursts apart.
    """
    parts: dict[str, list[Finding]] = {}
    for finding in incident.findings:
        place = parse_gpu_component(incident.code, f"{finding.detail} {finding.evidence}")
        parts.setdefault(place, []).append(finding)
    window = clamp_duration(window_s)
    by_job = incident.check == XID and incident.code in _APPLICATIONS
    return any(
        _has_repeat_on_gpu_component(findings, window, apart, by_job=by_job)
        for findings in parts.values()
    )


def _has_repeat_on_gpu_component(
    findings: Sequence[Finding], window: timedelta, apart: timedelta, *, by_job: bool
) -> bool:
    """Return whether one part of a device was hit again: by another job, or after another time."""
    if by_job and _has_findings_from_two_jobs(findings, window):
        return True
    timed = [f for f in findings if not (by_job and f.job)]
    times = sorted({f.first for f in timed} | {f.last for f in timed})
    return any(apart <= later - earlier <= window for earlier, later in pairwise(times))


def _has_findings_from_two_jobs(findings: Sequence[Finding], window: timedelta) -> bool:
    named = sorted((f for f in findings if f.job), key=make_finding_sort_key)
    return any(
        one.job != other.job and other.first - one.last <= window
        for one, other in combinations(named, 2)
    )


def collect_incident_evidence(
    main: Sequence[FaultIncident], others: Iterable[FaultIncident]
) -> tuple[Finding, ...]:
    """Return the findings of the incidents that decided, then those of their devices' others."""
    devices = {incident.device for incident in main} | {""}
    chosen: dict[int, Finding] = {}
    for incident in main:
        chosen.update((id(f), f) for f in incident.findings)
    for incident in others:
        if incident.device in devices:
            chosen.update((id(f), f) for f in incident.findings)
    return tuple(chosen.values())

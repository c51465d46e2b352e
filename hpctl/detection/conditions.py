"""Conditions that last, as findings with a beginning."""

from collections import deque
from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec import Struct
from msgspec.structs import replace

from hpctl.detection.check import CheckObservation
from hpctl.faults.table import HealthCheckSpec
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding

# From a check's results, run after run, to its findings: N of M, grace, and how they end.

MAX_THINGS = 128
"""Limit of the distinct conditions that one check follows; further ones are not followed."""


_Thing_Key = tuple[str, str, str]


class _ObservationRunHistory(Struct):
    """One code on one device (and job): its last runs, and the finding once it is reported."""

    runs: deque[bool]
    since: datetime
    finding: Finding | None = None
    gone_s: float | None = None


class CheckFindingTracker:
    """The findings of one check. Not for several threads at once.

    `earlier` are the check's findings of a former run of the agent in this boot: they end like any
    other.
    """

    def __init__(self, spec: HealthCheckSpec, earlier: Iterable[Finding] = ()) -> None:
        self._spec = spec
        self._at = datetime.min.replace(tzinfo=UTC)
        self._things: dict[_Thing_Key, _ObservationRunHistory] = {}
        self._unknown: Finding | None = None
        for finding in earlier:
            if finding.check == spec.name and finding.verdict is not DeviceVerdict.UNKNOWN:
                key = (finding.code, finding.device, finding.job)
                self._things[key] = _ObservationRunHistory(
                    self._make_recent_runs_window(), finding.first, finding
                )
                self._at = max(self._at, finding.last)

    def saw(
        self, observations: Iterable[CheckObservation], at: datetime, *, early: bool = False
    ) -> bool:
        """Record one run. Return whether the list of findings has changed.

        What an `early` run sees is UNKNOWN at most. `at` is the wall clock's, which may be set.
        """
        self._adjust_times_to_clock_change(at)
        before = self._list_finding_keys()
        seen = {(o.code, o.device, o.job): o for o in observations}
        if early:
            self._record_grace_period_failures(sorted({o.code for o in seen.values()}), at)
            seen = {}
        else:
            self._unknown = None
        for name in seen.keys() - self._things.keys():
            if len(self._things) < MAX_THINGS:
                self._things[name] = _ObservationRunHistory(self._make_recent_runs_window(), at)
        for name, thing in list(self._things.items()):
            self._update_observation_history(name, thing, seen.get(name), at)
        return self._list_finding_keys() != before

    def record_unknown_check_run(self, why: str, at: datetime) -> bool:
        """Record a run that could not tell: what was known stays known. Return whether this is
        new."""
        self._adjust_times_to_clock_change(at)
        old = self._unknown
        self._unknown = Finding(
            self._spec.name,
            DeviceVerdict.UNKNOWN,
            at if old is None else old.first,
            at,
            code="cannot_tell",
            detail=_sanitize_report_text(why, 256) if old is None else old.detail,
            count=1 if old is None else old.count + 1,
            clears=ClearCondition.GONE,
        )
        return old is None

    def _record_grace_period_failures(self, codes: list[str], at: datetime) -> None:
        """Record failures during grace as UNKNOWN: they are not faults yet, but the node is not
        known to be healthy either."""
        if codes:
            self.record_unknown_check_run(
                f"too early after the start to believe {', '.join(codes)}", at
            )
        else:
            self._unknown = None

    def _adjust_times_to_clock_change(self, at: datetime) -> None:
        """Move all times with a clock that was set back, so that their ages stay the same.

        Otherwise a finding would begin after it was last seen, for which the head node refuses the
        whole report, and would not end before the clock has caught up.
        """
        back, self._at = self._at - at, at
        if back <= timedelta(0):
            return
        for thing in self._things.values():
            thing.since -= back
            if thing.finding is not None:
                thing.finding = _shift_finding_times_back(thing.finding, back)
        if self._unknown is not None:
            self._unknown = _shift_finding_times_back(self._unknown, back)

    def findings(self) -> list[Finding]:
        """Return the findings to report now."""
        known = [thing.finding for thing in self._things.values() if thing.finding is not None]
        return known if self._unknown is None else [*known, self._unknown]

    def _update_observation_history(
        self,
        key: _Thing_Key,
        thing: _ObservationRunHistory,
        observation: CheckObservation | None,
        at: datetime,
    ) -> None:
        if not any(thing.runs):
            thing.since = at
        thing.runs.append(observation is not None)
        finding = thing.finding
        if observation is not None:
            thing.gone_s = observation.gone_s
            if finding is not None:
                thing.finding = _update_finding_count(finding, observation, at)
            elif sum(thing.runs) >= self._spec.seen[0]:
                thing.finding = self._make_finding_from_observation(observation, thing, at)
        elif self._has_finding_ended(thing, at):
            del self._things[key]

    def _has_finding_ended(self, thing: _ObservationRunHistory, at: datetime) -> bool:
        finding = thing.finding
        if finding is None:
            return not any(thing.runs)
        limit = timedelta(seconds=self._spec.gone_s if thing.gone_s is None else thing.gone_s)
        return finding.clears is ClearCondition.GONE and at - finding.last >= limit

    def _make_finding_from_observation(
        self, seen: CheckObservation, thing: _ObservationRunHistory, at: datetime
    ) -> Finding:
        return Finding(
            self._spec.name,
            seen.verdict,
            thing.since,
            at,
            device=_sanitize_report_text(seen.device, 256),
            code=seen.code,
            detail=_sanitize_report_text(seen.detail, 256),
            evidence=_sanitize_report_text(seen.evidence, 512),
            count=sum(thing.runs),
            clears=seen.clears or self._spec.clears,
            job=seen.job,
        )

    def _make_recent_runs_window(self) -> deque[bool]:
        return deque(maxlen=self._spec.seen[1])

    def _list_finding_keys(self) -> set[tuple[str, str, str, str]]:
        return {(f.code, f.device, f.job, f.verdict) for f in self.findings()}


def _shift_finding_times_back(finding: Finding, by: timedelta) -> Finding:
    return replace(finding, first=finding.first - by, last=finding.last - by)


def _update_finding_count(finding: Finding, seen: CheckObservation, at: datetime) -> Finding:
    """Return the finding with one more count. Its text stays the first one, unless the verdict
    changes."""
    more = replace(finding, last=at, count=finding.count + 1)
    if seen.verdict is finding.verdict:
        return more
    detail, evidence = (
        _sanitize_report_text(seen.detail, 256),
        _sanitize_report_text(seen.evidence, 512),
    )
    return replace(more, verdict=seen.verdict, detail=detail, evidence=evidence)


def _sanitize_report_text(text: str, limit: int) -> str:
    """Return the text that a report can carry: the name of a file or device need not be UTF-8."""
    return text[:limit].encode("utf-8", "replace").decode()

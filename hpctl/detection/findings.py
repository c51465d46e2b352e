"""The findings of one boot, folded from repeated results of checks and log lines.

All of the kernel's log is folded: a burst of one error is one finding with a count. Memory is
bounded: what no longer fits is folded without its detail and job, and then only counted, so that a
log storm cannot grow the agent. A known fault stays known, unless the log itself reports its end.

For checks, `Conditions` handles N of M, grace, and how findings end.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from msgspec.structs import replace

from hpctl.faults.health import Key, make_finding_identity_key
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding
from hpctl.wire import reports as wire

MAX_DETAILED = wire.MAX_FINDINGS * 3 // 4
"""Beyond this many, a new finding is folded by only check, device and code."""


MAX_JOBS = 8
"""Jobs that are kept apart for one error on one device: it only matters that several had it."""


MAX_DETAILED_NOTES = wire.MAX_FINDINGS // 2
"""Beyond this many, a new note is folded by only check, device and code."""


MAX_NOTES = wire.MAX_FINDINGS * 5 // 8
"""Beyond this many, a new note is folded by only check and code: a line that is no evidence against
the node must not displace one that is, whichever user causes such lines."""


SAME_BURST = timedelta(seconds=5)
"""A line whose process has already ended belongs to the job that the same error just hit, within
this time."""


MAX_KEPT = wire.MAX_FINDINGS * 7 // 8 - 1
"""One place is reserved for the finding that reports what was left out, and an eighth of a report
for the checks' findings: what is missing from it counts as ended."""


def merge_repeated_findings(old: Finding, new: Finding) -> Finding:
    """Return two sightings of the same condition as one: counts added, the first evidence kept."""
    # Written in full: `replace` takes three times as long, and a storm runs through this line.
    return Finding(
        old.check,
        old.verdict,
        min(old.first, new.first),
        max(old.last, new.last),
        old.device,
        old.code,
        old.detail,
        old.evidence,
        old.count + new.count,
        old.clears,
        old.job,
    )


class FindingStore:
    """The folded findings of one boot.

    `earlier` are the findings of a former run of the agent. The kernel's ring shows part of them
    again, so the larger of the two counts is kept, never the sum.
    """

    def __init__(self, earlier: Iterable[Finding] = ()) -> None:
        self._earlier = {make_finding_identity_key(finding): finding for finding in earlier}
        self._seen: dict[Key, Finding] = {}
        self._left_out: Finding | None = None
        self._jobs: dict[Key, dict[Key, None]] = {}
        self._notes = {n for n, f in self._earlier.items() if f.verdict is DeviceVerdict.NOTE}
        for name in self._earlier:
            self._index_finding_by_job(name)

    def add(self, finding: Finding) -> bool:
        """Fold one sighting in. Return whether there is something new to report.

        A finding that is OK and clears by being gone ends what was seen of it before.
        """
        if finding.verdict is DeviceVerdict.OK and finding.clears is ClearCondition.GONE:
            return self._drop_ended_finding(finding)
        finding = self._assign_job_to_finding(finding)
        name = make_finding_identity_key(finding)
        if (
            name not in self._seen
            and name not in self._earlier
            and self._has_reached_finding_limit(MAX_DETAILED)
        ):
            finding = replace(finding, detail="", job="")
            name = make_finding_identity_key(finding)
        if finding.verdict is DeviceVerdict.NOTE and name not in self._notes:
            finding = self._add_note_finding(finding)
            name = make_finding_identity_key(finding)
        old = self._seen.get(name)
        if old is not None:
            self._seen[name] = merge_repeated_findings(old, finding)
            return False
        if name not in self._earlier and self._has_reached_finding_limit(MAX_KEPT):
            self._record_dropped_finding(finding.last)
            return False
        self._seen[name] = finding
        self._index_finding_by_job(name)
        return name not in self._earlier

    def all(self) -> tuple[Finding, ...]:
        """Return every finding, earliest first."""
        merged = dict(self._earlier)
        for name, new in self._seen.items():
            old = merged.get(name)
            merged[name] = new if old is None else _merge_findings_across_agent_runs(old, new)
        if self._left_out is not None:
            merged[make_finding_identity_key(self._left_out)] = self._left_out
        return tuple(sorted(merged.values(), key=lambda f: (f.first, make_finding_identity_key(f))))

    def _assign_job_to_finding(self, finding: Finding) -> Finding:
        """Return a sighting under the job that it belongs to, after making room for a new job."""
        name = make_finding_identity_key(finding)
        jobs = self._jobs.get(_strip_job_from_finding_key(name))
        if jobs is None:
            return finding
        if name in jobs:
            jobs[name] = jobs.pop(name)
        elif finding.job:
            self._merge_oldest_job_finding(jobs)
        else:
            for known in map(self._get_finding_by_key, reversed(jobs)):
                if known.first - SAME_BURST <= finding.first <= known.last + SAME_BURST:
                    return replace(finding, job=known.job)
        return finding

    def _get_finding_by_key(self, name: Key) -> Finding:
        return self._seen.get(name) or self._earlier[name]

    def _index_finding_by_job(self, name: Key) -> None:
        if name[-1]:
            self._jobs.setdefault(_strip_job_from_finding_key(name), {})[name] = None

    def _merge_oldest_job_finding(self, jobs: dict[Key, None]) -> None:
        """Fold the job that was hit longest ago into the finding without a job."""
        if len(jobs) < MAX_JOBS:
            return
        name = next(iter(jobs))
        del jobs[name]
        self._notes.discard(name)
        place = _strip_job_from_finding_key(name)
        for known in (self._seen, self._earlier):
            finding = known.pop(name, None)
            if finding is not None:
                nameless = replace(finding, job="")
                known[place] = (
                    merge_repeated_findings(known[place], nameless) if place in known else nameless
                )

    def _drop_ended_finding(self, over: Finding) -> bool:
        name = make_finding_identity_key(over)
        ended = [k for k in (self._seen, self._earlier) if name in k and k[name].last <= over.last]
        for known in ended:
            del known[name]
        return bool(ended)

    def _has_reached_finding_limit(self, limit: int) -> bool:
        return len(self._seen.keys() | self._earlier.keys()) >= limit

    def _add_note_finding(self, note: Finding) -> Finding:
        """Add a note of a new name, without its detail, job and device where there are many."""
        if len(self._notes) >= MAX_DETAILED_NOTES:
            note = replace(note, detail="", job="")
        if make_finding_identity_key(note) not in self._notes and len(self._notes) >= MAX_NOTES:
            note = replace(note, device="")
        self._notes.add(make_finding_identity_key(note))
        return note

    def _record_dropped_finding(self, at: datetime) -> None:
        new = Finding(
            "agent.findings",
            DeviceVerdict.WARN,
            at,
            at,
            detail="more distinct findings than a report holds",
        )
        self._left_out = (
            new if self._left_out is None else merge_repeated_findings(self._left_out, new)
        )


def _strip_job_from_finding_key(name: Key) -> Key:
    """Return a key without its job."""
    return (*name[:-1], "")


def _merge_findings_across_agent_runs(old: Finding, new: Finding) -> Finding:
    """Join the findings of two runs of the agent: the later run may be of a newer version."""
    return replace(
        old,
        verdict=new.verdict,
        first=min(old.first, new.first),
        last=max(old.last, new.last),
        count=max(old.count, new.count),
    )

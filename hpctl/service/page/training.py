"""The training runs of the page: a strip a job."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from msgspec import Struct

from hpctl.engine.estimates import RecoveryEndTimeEstimate, RecoveryTimeEstimator
from hpctl.engine.job_losses import (
    JobDowntime,
    JobInterruption,
    find_job_downtime,
    group_recoveries_by_job,
    has_recovery_changed_phase_recently,
)
from hpctl.engine.timeline import format_recovery_or_change_headline
from hpctl.engine.world import World
from hpctl.toolkit.durations import format_duration
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.slurm_facts import ENDED, SlurmJob

#
# What each job has made of its time: training, and what faults took from it.

MOST = 500
"""Jobs on the page."""


WIDTH, SEEN = 1000, 4
"""Of a strip, and the least of a part of it: a minute is to be seen in a month."""


Span = tuple[datetime, datetime, str, str]
"""Begin, end, the style sheet's class, and what it tells."""


Segment = tuple[int, int, str, str]
"""The same as a part of a strip: its place and its width for the times."""


class TrainingJobSummary(Struct, frozen=True):
    """A job since it was submitted, as far as the journal goes back. `shown`: its id as its owner
    writes it. `nodes`: those that it has, or had when it ran last, and `size` how many they are or
    are to be. `recovery`: the open one. `estimate`: when it runs again."""

    id: JobId
    shown: str
    name: str
    user: str
    state: str
    nodes: tuple[NodeName, ...]
    size: int
    since: datetime
    until: datetime
    lost: JobDowntime
    recovery: JobRecovery | None = None
    estimate: RecoveryEndTimeEstimate | None = None

    @property
    def ratio(self) -> float:
        """Return the effective training time ratio: the share of the time since it was submitted
        that no fault took."""
        return max(0.0, 1 - self.lost.seconds / max((self.until - self.since).total_seconds(), 1.0))

    @property
    def strip(self) -> tuple[Segment, ...]:
        """Return its time from left to right, losses in it."""
        whole = (self.since, self.until, "trained", f"since {self.since:%Y-%m-%d %H:%M} UTC")
        return scale_time_spans_to_segments((whole, *map(_make_downtime_span, self.lost.losses)))


def scale_time_spans_to_segments(spans: Sequence[Span]) -> tuple[Segment, ...]:
    """Spans of time in the width that all of them have together."""
    first, last = min(s[0] for s in spans), max(s[1] for s in spans)
    scale, found = WIDTH / max((last - first).total_seconds(), 1.0), []
    for begin, end, kind, says in spans:
        width = max(round((end - begin).total_seconds() * scale), SEEN)
        x = round((begin - first).total_seconds() * scale)
        found.append((min(x, WIDTH - width), width, kind, says))
    return tuple(found)


def list_training_job_summaries(
    w: World, only: Collection[JobId] | None = None
) -> list[TrainingJobSummary]:
    """Return the jobs that run or wait, and those that were hit lately, or `only` these of them;
    open recoveries first, then most lost."""
    # Of the present minute: what is the same for a while is not sent each second.
    now = w.now.replace(second=0, microsecond=0)
    hits, estimator = group_recoveries_by_job(w), RecoveryTimeEstimator(w)
    known = w.slurm.jobs.values() if w.slurm else ()
    jobs = {job.id: job for job in known if job.state not in ENDED}
    shown = jobs.keys() | {
        job for job in hits if has_recovery_changed_phase_recently(hits[job][-1], now)
    }
    if only is not None:
        shown &= {*only}
    found = []
    for job in shown:
        one = _make_training_job_summary(w, jobs.get(job), hits.get(job, []), estimator, now)
        if one is not None:
            found.append(one)
    return sorted(found, key=lambda t: (t.recovery is None, -t.lost.seconds, -t.id))[:MOST]


def _make_training_job_summary(
    w: World,
    job: SlurmJob | None,
    hits: list[JobRecovery],
    estimator: RecoveryTimeEstimator,
    now: datetime,
) -> TrainingJobSummary | None:
    begun = hits[0].attempt.submit if hits else job.start if job else None
    about = job or (hits[-1] if hits else None)
    if begun is None or about is None:
        return None
    last = hits[-1] if hits else None
    nodes = job.nodes if job else ()
    if not nodes and last is not None:
        nodes = last.ran_on
    size = len(nodes) or (last.nodes if last else 0) or (job.wants if job else 0)
    lost = find_job_downtime(w, job, hits, w.now)
    until = now if job else hits[-1].since
    still = last if last is not None and not last.ended else None
    return TrainingJobSummary(
        id=job.id if job else hits[-1].attempt.job,
        shown=about.shown,
        name=about.name,
        user=about.user,
        state=job.state if job else str(hits[-1].phase),
        nodes=nodes,
        size=size,
        since=begun,
        until=max(until, begun, *(loss.end for loss in lost.losses)),
        lost=lost,
        recovery=still,
        estimate=estimator.estimate_job_restart_time(still) if still else None,
    )


def _make_downtime_span(loss: JobInterruption) -> Span:
    """From the fault to the job's next run, or to its owner's hands."""
    lost = format_duration(loss.seconds)
    headline = format_recovery_or_change_headline(loss.recovery)
    says = f"{loss.begin:%m-%d %H:%M:%S}: {lost} lost. {headline}"
    return loss.begin, loss.end, "lost", says

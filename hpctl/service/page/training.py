"""The training runs of the page: a strip a job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from hpctl.engine.timeline import headline
from hpctl.engine.world import World
from hpctl.toolkit.durations import duration
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.job_recovery import JobRecovery, JobSignal
from hpctl.vocabulary.slurm_facts import SlurmJob

#
# What each job has made of its time: training, and what faults took from it.

LATELY = timedelta(days=7)
"""So long a job is shown that Slurm no longer knows."""


MOST = 500
"""Jobs on the page."""


WIDTH, SEEN = 1000, 4
"""Of a strip, and the least of a part of it: a minute is to be seen in a month."""


_GOES_ON = (JobSignal.RUNNING_SEEN, JobSignal.WENT_ON, JobSignal.FINISHED, JobSignal.CALLED_OFF)


Span = tuple[datetime, datetime, str, str]
"""Begin, end, the style sheet's class, and what it tells."""


Segment = tuple[int, int, str, str]
"""The same as a part of a strip: its place and its width for the times."""


class Training(Struct, frozen=True):
    """A job since it was submitted, as far as the journal goes back. `shown`: its id as its owner
    writes it. `losses`: when it did not
    train, for a fault. `redone`: steps that it trained again. `gpus`: 0 where Slurm counts none."""

    id: JobId
    shown: str
    name: str
    user: str
    state: str
    nodes: int
    gpus: int
    since: datetime
    until: datetime
    losses: tuple[Span, ...]
    redone: int

    @property
    def lost_s(self) -> float:
        """Seconds of all losses."""
        return sum((end - begin).total_seconds() for begin, end, *_ in self.losses)

    @property
    def ratio(self) -> float:
        """The effective training time ratio."""
        return max(0.0, 1 - self.lost_s / max((self.until - self.since).total_seconds(), 1.0))

    @property
    def strip(self) -> tuple[Segment, ...]:
        """Its time from left to right, losses in it."""
        whole = (self.since, self.until, "trained", f"since {self.since:%Y-%m-%d %H:%M} UTC")
        return strip((whole, *self.losses))


def strip(spans: Sequence[Span]) -> tuple[Segment, ...]:
    """Spans of time in the width that all of them have together."""
    first, last = min(s[0] for s in spans), max(s[1] for s in spans)
    scale, found = WIDTH / max((last - first).total_seconds(), 1.0), []
    for begin, end, kind, says in spans:
        width = max(round((end - begin).total_seconds() * scale), SEEN)
        x = round((begin - first).total_seconds() * scale)
        found.append((min(x, WIDTH - width), width, kind, says))
    return tuple(found)


def trainings(w: World) -> list[Training]:
    """The jobs that run or wait, and those that were hit lately; most lost first."""
    # Of the present minute: what is the same for a while is not sent each second.
    now = w.now.replace(second=0, microsecond=0)
    hit: dict[JobId, list[JobRecovery]] = {}
    for rec in w.state.jobs.values():
        if rec.of_no_fault:
            continue
        hit.setdefault(rec.attempt.job, []).append(rec)
    jobs = {job.id: job for job in (w.slurm.jobs.values() if w.slurm else ()) if not job.end}
    shown = jobs.keys() | {job for job in hit if hit[job][-1].since > now - LATELY}
    found = (_training(w, jobs.get(job), hit.get(job, []), now) for job in shown)
    return sorted(filter(None, found), key=lambda t: (-t.lost_s, -t.id))[:MOST]


def _training(
    w: World, job: SlurmJob | None, hit: list[JobRecovery], now: datetime
) -> Training | None:
    # A job id comes again: what another user's job of this number suffered is not its own.
    hit = [rec for rec in hit if job is None or rec.user == job.user]
    begun, who = hit[0].attempt.submit if hit else job.start if job else None, job or hit[-1]
    if begun is None:
        return None
    until = max(now if job else hit[-1].since, begun)
    nodes = [w.slurm.nodes.get(name) for name in job.nodes] if job and w.slurm else []
    gpus = sum(dict(node.has.gres).get("gpu", 0) for node in nodes if node)
    wrong = [rec.trouble for rec in hit if rec.trouble and rec.trouble.progress is not None]
    return Training(
        id=job.id if job else hit[-1].attempt.job,
        shown=who.shown,
        name=who.name,
        user=who.user,
        state=job.state if job else str(hit[-1].phase),
        nodes=len(nodes) or len(hit[-1].ran_on if hit else ()),
        gpus=gpus,
        since=begun,
        until=until,
        losses=tuple(_loss(rec, until) for rec in hit),
        redone=sum(max((t.step or 0) - (t.progress or 0), 0) for t in wrong),
    )


def _loss(rec: JobRecovery, until: datetime) -> Span:
    """From the fault to the job's next run, or to its owner's hands."""
    ends = (move.at for move in rec.trail if JobSignal(move.signal) in _GOES_ON)
    end = next(ends, rec.since if rec.ended else max(until, rec.since))
    begin = min(rec.trouble.at if rec.trouble else rec.opened, end)
    lost = duration((end - begin).total_seconds())
    return begin, end, "lost", f"{begin:%m-%d %H:%M:%S}: {lost} lost. {headline(rec)}"

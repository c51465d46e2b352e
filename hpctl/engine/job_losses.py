"""What faults took from each job, in time and GPU-hours: one count for `top`, page and report."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from hpctl.engine.world import World
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoveryPhase, JobRecoverySignal
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode

LATELY: Final = timedelta(days=7)
"""So long the losses of a job are shown that Slurm no longer knows."""
LEAST: Final = 0.1
"""Fewer GPU-hours are only said to be fewer."""
_GOES_ON: Final = (
    JobRecoverySignal.RUNNING_SEEN,
    JobRecoverySignal.WENT_ON,
    JobRecoverySignal.FINISHED,
)


class JobInterruption(Struct, frozen=True):
    """One interruption of a job, and the recovery that ended it, or is to end it."""

    begin: datetime
    end: datetime
    recovery: JobRecovery

    @property
    def seconds(self) -> float:
        """Return how long the job did not train."""
        return (self.end - self.begin).total_seconds()


class JobDowntime(Struct, frozen=True):
    """A job's interruptions, oldest first. `gpus`: how many it has, or had when it ran last; 0
    where Slurm counts none. `redone`: steps that it trained again."""

    losses: tuple[JobInterruption, ...]
    gpus: int
    redone: int

    @property
    def seconds(self) -> float:
        """Return seconds of all interruptions."""
        return sum(loss.seconds for loss in self.losses)

    @property
    def gpu_hours(self) -> float:
        """Return what its GPUs did not train in that time, in GPU-hours."""
        return self.seconds * self.gpus / 3600

    @property
    def text(self) -> str:
        """`1.6` or `<0.1`: the GPU-hours; "" where nothing was lost or Slurm counts no GPUs."""
        if not self.gpu_hours:
            return ""
        return f"{self.gpu_hours:.1f}" if self.gpu_hours >= LEAST else f"<{LEAST}"


NO_LOSSES: Final = JobDowntime((), 0, 0)


def find_job_interruption_times(rec: JobRecovery, now: datetime) -> tuple[datetime, datetime]:
    """Return from when to when a job made no progress: from its trouble, or its recovery's
    opening, to its next run, or until it was left to its owner.

    A recovery that was canceled before the job ran again did not stop it.
    """
    end = next((move.at for move in rec.trail if JobRecoverySignal(move.signal) in _GOES_ON), None)
    begin = min(rec.opened, rec.trouble.at) if rec.trouble is not None else rec.opened
    if end is None and rec.phase is JobRecoveryPhase.CANCELLED:
        return begin, begin
    if end is None:
        end = rec.since if rec.ended else max(now, rec.since)
    return min(begin, end), end


def count_gpus_of_nodes(names: Iterable[NodeName], nodes: Mapping[NodeName, SlurmNode]) -> int:
    """Return how many GPUs these nodes have by Slurm's GRES; 0 where it does not count them."""
    return sum(dict(nodes[name].has.gres).get("gpu", 0) for name in names if name in nodes)


def group_recoveries_by_job(w: World) -> dict[JobId, list[JobRecovery]]:
    """Return the recoveries of each job that a fault opened, oldest first.

    A job id comes again: the recoveries of another user's job of this number are left out.
    """
    jobs = w.slurm.jobs if w.slurm is not None else {}
    hits: dict[JobId, list[JobRecovery]] = {}
    for rec in w.state.jobs.values():
        if rec.is_without_fault:
            continue
        job = jobs.get(rec.attempt.job)
        if job is None or rec.user == job.user:
            hits.setdefault(rec.attempt.job, []).append(rec)
    return hits


def find_job_downtime(
    w: World, job: SlurmJob | None, hits: list[JobRecovery], now: datetime
) -> JobDowntime:
    """Return the losses of one job from its recoveries. `job`: None where Slurm has dropped it;
    `now`: until when an interruption that lasts is counted."""
    if not hits:
        return NO_LOSSES
    spans = [(rec, find_job_interruption_times(rec, now)) for rec in hits]
    losses = tuple(JobInterruption(begin, end, rec) for rec, (begin, end) in spans if end > begin)
    troubles = (rec.trouble for rec in hits if rec.trouble is not None)
    wrong = [trouble for trouble in troubles if trouble.progress is not None]
    redone = sum(max((one.step or 0) - (one.progress or 0), 0) for one in wrong)
    return JobDowntime(losses, _count_job_gpus(w, job, hits[-1]), redone)


def has_recovery_changed_phase_recently(rec: JobRecovery, now: datetime) -> bool:
    """Return whether a recovery moved lately enough to be shown where its job has left Slurm."""
    return now < add_seconds_within_bounds(rec.since, LATELY.total_seconds())


def _count_job_gpus(w: World, job: SlurmJob | None, last: JobRecovery) -> int:
    """Return the GPUs of the nodes that the job has, or had; of its lost node times its size,
    else."""
    nodes = w.slurm.nodes if w.slurm is not None else {}
    held = (job.nodes if job is not None else ()) or last.ran_on
    if held:
        return count_gpus_of_nodes(held, nodes)
    size = last.nodes or (job.wants if job is not None else 0) or len(last.bad_nodes)
    return count_gpus_of_nodes(last.bad_nodes[:1], nodes) * size

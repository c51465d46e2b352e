"""Whether a job was preempted, when, and which job started on its nodes. Pure.

Slurm does not tell which job preempted another, and forgets at a requeue that a job was preempted:
it clears PreemptTime once COMPLETING is over (`batch_requeue_fini`). What remains is that a job
started on the nodes of the former run, from the second of the requeue on. An operator's requeue
frees nodes as well: only what Slurm lets preempt what tells the two apart.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.preemption_order import PreemptionOrder
from hpctl.vocabulary.slurm_facts import SlurmJob

SUSPENDED: Final = "SUSPENDED"
WITHIN: Final = timedelta(minutes=2)
"""How long after the end of a run a job on its nodes started for it: KillWait and Epilog pass."""
RELEASED: Final = timedelta(seconds=3)
"""How long before the second of a requeue a job may have started on its nodes: slurmctld gives the
nodes to others once they are free, and writes the job's new SubmitTime when it has handled the end
of its run (seen on 24.11: a second later)."""


class JobPreemption(Struct, frozen=True):
    """When a job lost its nodes to another. `certain`: Slurm says that it was preempted, or lets
    the other preempt it. `by`: the first job that started on its nodes then; None
    where none is known."""

    at: datetime
    certain: bool
    by: SlurmJob | None = None


def is_job_possibly_preempted(job: SlurmJob) -> bool:
    """Return whether a job waits for another run, or ended as preempted."""
    return job.state == "PREEMPTED" or (job.state == "PENDING" and job.restarts > 0)


def find_preemption_of_job(
    job: SlurmJob, jobs: Iterable[SlurmJob], order: PreemptionOrder
) -> JobPreemption | None:
    """Return how a job lost its nodes; None where it runs, or ended in another way."""
    if not is_job_possibly_preempted(job):
        return None
    waits = job.state == "PENDING"
    ended = job.submit if waits else job.end
    if ended is None:
        return None
    by = _find_first_job_on_nodes(job, jobs, ended)
    known = job.preempted or (None if waits else ended)
    if known is not None:
        return JobPreemption(known, True, by)
    if by is None:
        return None
    return JobPreemption(ended, order.allows(by, job), by)


def _find_first_job_on_nodes(
    job: SlurmJob, jobs: Iterable[SlurmJob], since: datetime
) -> SlurmJob | None:
    """Return the first of the jobs that started on a job's nodes from then on.

    Where none did, the last that started up to RELEASED before then and runs. One that has ended
    may have been there before the job.
    """
    earliest = add_seconds_within_bounds(since, -RELEASED.total_seconds())
    latest = add_seconds_within_bounds(since, WITHIN.total_seconds())
    nodes = set(job.nodes)
    found = []
    for other in jobs:
        if other.id == job.id or other.start is None:
            continue
        if earliest <= other.start <= latest and not nodes.isdisjoint(other.nodes):
            found.append((other.start, other.id, other))
    following = [one for one in found if one[0] >= since]
    if following:
        return min(following)[2]
    running = [one for one in found if one[2].running]
    return max(running)[2] if running else None


def find_suspending_job(
    job: SlurmJob, jobs: Iterable[SlurmJob], order: PreemptionOrder
) -> SlurmJob | None:
    """Return the job that has suspended another: the last that started on its nodes, runs, and may
    preempt it. None where a person suspended it."""
    if job.state != SUSPENDED:
        return None
    nodes = set(job.nodes)
    found = []
    for other in jobs:
        if other.state != "RUNNING" or other.start is None or nodes.isdisjoint(other.nodes):
            continue
        if order.allows(other, job):
            found.append((other.start, other.id, other))
    return max(found)[2] if found else None


def describe_preemption(found: JobPreemption) -> str:
    """Return a preemption as a clause: `preempted at 12:00:00 UTC; job 12 of alice (...) started
    then`."""
    how = "preempted" if found.certain else "requeued"
    text = f"{how} at {found.at:%Y-%m-%d %H:%M:%S} UTC"
    if found.by is None:
        return text
    return f"{text}; {format_preemptor(found.by)} started on its nodes then"


def format_preemptor(job: SlurmJob) -> str:
    """Return a job as other users see it named: `job 12 of alice (partition high, QOS urgent)`."""
    where = ", ".join(
        f"{what} {name}" for what, name in (("partition", job.partition), ("QOS", job.qos)) if name
    )
    return f"job {job.shown} of {job.user} ({where})"

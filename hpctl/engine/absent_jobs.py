"""Which jobs to ask slurmctld for by their ids, because a list of all jobs leaves them out.

squeue lists the waiting tasks of an array as one job. A task that was requeued disappears in it,
and still has its own record, its own delay and its own nodes to avoid.
"""

from collections.abc import Collection

from msgspec.structs import replace

from hpctl.engine.journal.state import EngineState
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.slurm_facts import ENDED, SchedulerView, SlurmJob

MOST = 1000
"""Jobs that are asked for at once, the newest first: each cycle asks again."""


def find_jobs_missing_from_view(
    seen: SchedulerView, before: SchedulerView, state: EngineState
) -> tuple[JobId, ...]:
    """Return the jobs that `seen` should hold and does not.

    These are the jobs of open recoveries, and those that ran or waited for another run in
    `before`. A job that ended is in the list until slurmctld forgets it, so it is not asked for.
    """
    treated = {state.jobs[rid].attempt.job for rid in state.open_jobs.values()}
    started = {job.id for job in before.jobs.values() if _can_job_run_again(job)}
    absent = (treated | started) - seen.jobs.keys()
    return tuple(sorted(absent, reverse=True)[:MOST])


def add_jobs_to_view(seen: SchedulerView, jobs: Collection[SlurmJob]) -> SchedulerView:
    """Return the view with these jobs in it. The list counts what they want in their array."""
    more = {job.id: replace(job, wants=0, asks=None) for job in jobs}
    return replace(seen, jobs={**seen.jobs, **more}) if more else seen


def _can_job_run_again(job: SlurmJob) -> bool:
    returns = job.running or job.completing or job.restarts > 0
    return returns and job.state not in ENDED

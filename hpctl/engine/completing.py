"""Which nodes keep a job COMPLETING, and what hpctl does about it.

Slurm shows of a COMPLETING job only the nodes that have not finished: an Epilog or a process there
does not end. A node that is set DOWN leaves the job at once, with all other jobs that run there.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from hpctl.engine.journal.state import EngineState
from hpctl.toolkit.bounds import add_seconds_within_bounds, parse_count
from hpctl.toolkit.durations import format_duration
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.job_recovery import JobRecoveryPhase
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob

_FREES_SINCE: Final = {(23, 11): 11, (24, 5): 6, (24, 11): 1}
"""The first release of a series that requeues a job whose last completing node is set DOWN. Before,
slurmctld forgets to call batch_requeue_fini, and the job's next run fails."""

_WAITS: Final = (JobRecoveryPhase.STOPPING, JobRecoveryPhase.RELEASED, JobRecoveryPhase.STARTING)


def find_stuck_completing_jobs(
    jobs: Iterable[SlurmJob], for_s: float, now: datetime
) -> list[SlurmJob]:
    """Return the jobs that have been COMPLETING for at least `for_s` seconds, by their ids."""
    found = [job for job in jobs if is_job_stuck_completing(job, for_s, now)]
    return sorted(found, key=lambda job: job.id)


def is_job_stuck_completing(job: SlurmJob, for_s: float, now: datetime) -> bool:
    """Return whether a job has been COMPLETING for so many seconds."""
    since = job.completing_since
    return since is not None and now >= add_seconds_within_bounds(since, for_s)


def is_restart_waiting_for_completion(job: SlurmJob, state: EngineState) -> bool:
    """Return whether a restart of the job waits until it is no longer COMPLETING."""
    recovery = state.get_open_job_recovery(job.id)
    return job.state == "PENDING" or (recovery is not None and recovery.phase in _WAITS)


def is_job_freed_by_node_down(job: SlurmJob, slurm: SchedulerView) -> bool:
    """Return whether a COMPLETING job is whole once its last node is set DOWN."""
    if job.state != "PENDING":
        return True
    numbers = [parse_count(part) for part in slurm.oldest_slurmd_version.split(".")]
    if len(numbers) < 3:
        return False
    series, release = (numbers[0], numbers[1]), numbers[2]
    return series >= (25, 5) or release >= _FREES_SINCE.get(series, release + 1)


def describe_completing_job(job: SlurmJob, now: datetime) -> str:
    """Say how long a job has been COMPLETING, and which nodes keep it so."""
    since = job.completing_since or now
    lasting = format_duration(max(0.0, (now - since).total_seconds()))
    nodes = ", ".join(job.completing_nodes)
    return (
        f"job {job.shown} has been COMPLETING for {lasting}: its Epilog or its processes on {nodes}"
        " have not ended"
    )


def describe_stuck_completing_fix(
    job: SlurmJob, slurm: SchedulerView, state: EngineState, policy: RecoveryPolicy
) -> str:
    """Say what ends it: what hpctl does and when, or what a person can do."""
    nodes = ", ".join(job.completing_nodes)
    if not is_restart_waiting_for_completion(job, state):
        return f"no restart waits for it, so hpctl leaves {nodes} alone; end the Epilog there"
    if not is_job_freed_by_node_down(job, slurm):
        return (
            f"Slurm {slurm.oldest_slurmd_version} breaks a requeued job whose last node is set"
            " DOWN, so"
            f" hpctl waits; end the Epilog on {nodes}, and the job restarts at once"
        )
    due = add_seconds_within_bounds(
        job.completing_since or slurm.as_of, policy.job.completing_deadline_s
    )
    return (
        f"hpctl drains {nodes} from {due:%H:%M:%S} UTC on and sets it DOWN once no job runs there"
    )


def find_job_stuck_completing_on_node(
    node: NodeName, slurm: SchedulerView, for_s: float, now: datetime
) -> SlurmJob | None:
    """Return the first job that a node has kept COMPLETING for so many seconds."""
    jobs = find_stuck_completing_jobs(slurm.jobs.values(), for_s, now)
    return next((job for job in jobs if node in job.completing_nodes), None)

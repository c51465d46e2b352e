"""Which jobs keep a drained node from its remedy, in words for `status`, `explain` and the page."""

from datetime import datetime

from hpctl.vocabulary.assessment import Urgency
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.policy import RecoveryPolicy, UnrecoverableJobAction
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob


def describe_node_wait_for_job(
    rec: NodeRecovery, slurm: SchedulerView | None, policy: RecoveryPolicy, now: datetime
) -> str:
    """Return `job 3 of alice, not requeueable, ends at most ...`; "" where no job is waited for.

    Of several jobs, the one that may run longest.
    """
    jobs = _find_jobs_blocking_node(rec, slurm, policy)
    if not jobs:
        return ""
    job = max(jobs, key=_make_job_end_time_sort_key)
    who = f" of {job.user}" if job.user else ""
    how = "which may run to its end" if job.recoverable else "not requeueable"
    others = len(jobs) - 1
    more = f"; and {others} other job{'s' * (others > 1)}" if others else ""
    return f"job {job.shown}{who}, {how}, {_describe_job_end(job, now)}{more}"


def _make_job_end_time_sort_key(job: SlurmJob) -> tuple[bool, float, int]:
    """Return the longest last: one without a time limit, then by its end."""
    return job.end is None, job.end.timestamp() if job.end is not None else 0.0, job.id


def _describe_job_end(job: SlurmJob, now: datetime) -> str:
    if job.end is None:
        return "has no time limit"
    at = f"{job.end:%Y-%m-%d %H:%M:%S} UTC"
    return f"was to end by {at}" if job.end <= now else f"ends at most {at}"


def _find_jobs_blocking_node(
    rec: NodeRecovery, slurm: SchedulerView | None, policy: RecoveryPolicy
) -> list[SlurmJob]:
    """Return the jobs that the node waits for."""
    if slurm is None or rec.phase is not NodeRecoveryPhase.CORDONED:
        return []
    here = [job for job in slurm.jobs.values() if job.running and rec.node in job.nodes]
    if rec.urgency is not Urgency.NOW:
        return here
    if policy.node.unrecoverable_jobs is not UnrecoverableJobAction.WAIT:
        return []
    return [job for job in here if not job.recoverable]

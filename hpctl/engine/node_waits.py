"""Which job keeps a drained node from its remedy, in words for `status`, `explain` and the page."""

from datetime import datetime

from hpctl.vocabulary.assessment import Urgency
from hpctl.vocabulary.node_recovery import NodePhase, NodeRecovery
from hpctl.vocabulary.policy import Policy, Unrecoverable
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob


def describe_job_wait(
    rec: NodeRecovery, slurm: SchedulerView | None, policy: Policy, now: datetime
) -> str:
    """Return `job 3 of alice, not requeueable, ends at most ...`; "" where no job is waited for."""
    job = _find_job(rec, slurm, policy)
    if job is None:
        return ""
    who = f" of {job.user}" if job.user else ""
    how = "which may run to its end" if job.recoverable else "not requeueable"
    if job.end is None or job.end <= now:
        return f"job {job.shown}{who}, {how}, has no time limit"
    return f"job {job.shown}{who}, {how}, ends at most {job.end:%Y-%m-%d %H:%M:%S} UTC"


def _find_job(rec: NodeRecovery, slurm: SchedulerView | None, policy: Policy) -> SlurmJob | None:
    """The job that the node waits for; one that Slurm cannot start again first."""
    if slurm is None or rec.phase is not NodePhase.CORDONED:
        return None
    jobs = sorted(slurm.jobs.values(), key=lambda job: job.id)
    here = [job for job in jobs if job.running and rec.node in job.nodes]
    if policy.node.unrecoverable_jobs is Unrecoverable.WAIT:
        for job in here:
            if not job.recoverable:
                return job
    patient = rec.urgency is not Urgency.NOW
    return here[0] if here and patient else None

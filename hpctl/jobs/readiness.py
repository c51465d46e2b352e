"""When a job that runs on a faulty node may be stopped, as the node's recovery asks."""

from hpctl.engine.view import PlanningView, must_requeue_job_before_node_down
from hpctl.vocabulary.job_recovery import JobRecoveryPhase
from hpctl.vocabulary.slurm_facts import SlurmJob

_MAY_BE_STOPPED = (
    JobRecoveryPhase.EXCISING,
    JobRecoveryPhase.WATCHING,
    JobRecoveryPhase.STOPPING,
    JobRecoveryPhase.RELEASED,
    JobRecoveryPhase.STARTING,
    JobRecoveryPhase.PROVING,
)
"""In these phases a job's own recovery is ready for its node to be set DOWN."""


def is_job_ready_for_node_down(job: SlurmJob, view: PlanningView) -> bool:
    """Return whether the recovery of a job is ready for its node to be set DOWN."""
    recovery = view.state.get_open_job_recovery(job.id)
    if recovery is None or recovery.phase not in _MAY_BE_STOPPED:
        return False
    return not must_requeue_job_before_node_down(recovery, view)

"""When a job that runs on a faulty node may be stopped, as the node's recovery asks."""

from hpctl.engine.view import PlanningView, must_requeue_before_down
from hpctl.vocabulary.job_recovery import JobPhase
from hpctl.vocabulary.slurm_facts import SlurmJob

_MAY_BE_STOPPED = (
    JobPhase.EXCISING,
    JobPhase.WATCHING,
    JobPhase.STOPPING,
    JobPhase.RELEASED,
    JobPhase.STARTING,
    JobPhase.PROVING,
)
"""In these phases a job's own recovery is ready for its node to be set DOWN."""


def is_job_ready_to_stop(job: SlurmJob, view: PlanningView) -> bool:
    """Return whether the recovery of a job is ready for its node to be set DOWN."""
    recovery = view.state.job_recovery(job.id)
    if recovery is None or recovery.phase not in _MAY_BE_STOPPED:
        return False
    return not must_requeue_before_down(recovery, view)

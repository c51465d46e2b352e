"""How long each phase of a job's recovery may last."""

from hpctl.vocabulary.job_recovery import JobRecoveryPhase
from hpctl.vocabulary.policy import RecoveryPolicy


def find_job_phase_deadline_s(
    phase: JobRecoveryPhase, policy: RecoveryPolicy, *, completing: bool = False
) -> float:
    """Return how long a phase may last, in seconds. `completing`: the job is, which its nodes end,
    and a recovery that gave up meanwhile could not restart it then."""
    job = policy.job
    limits = {
        JobRecoveryPhase.HIT: job.stop_deadline_s,
        JobRecoveryPhase.EXCISING: job.stop_deadline_s,
        JobRecoveryPhase.WATCHING: job.supervisor_grace_s + job.step_retry_s,
        JobRecoveryPhase.SAVING: job.save_grace_s + job.step_retry_s,
        JobRecoveryPhase.STOPPING: job.stop_deadline_s,
        JobRecoveryPhase.RELEASED: job.release_deadline_s,
        JobRecoveryPhase.STARTING: job.start_deadline_s,
        JobRecoveryPhase.PROVING: job.prove_deadline_s,
    }
    return max(limits[phase], job.start_deadline_s) if completing else limits[phase]

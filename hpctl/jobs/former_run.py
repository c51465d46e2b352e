"""Why the run of a job before this one ended, as far as the daemon knows: for the job's own log."""

from hpctl.engine.journal.state import EngineState
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoveryPhase


def describe_previous_run_end(state: EngineState, job: JobId, restarts: int) -> str:
    """Return why the run before the one with this restart count ended, "" where that is not known.

    May be called from another thread than the loop, which changes `state` meanwhile.
    """
    former = restarts - 1
    of_run = [
        rec for rec in tuple(state.jobs.values()) if _is_recovery_for_job_run(rec, job, former)
    ]
    if of_run:
        return _describe_run_end_cause(state, max(of_run, key=lambda rec: rec.opened))
    for event in reversed(state.reports.get(job, ())):
        if event.report.restarts == former and event.report.trouble is not None:
            return event.report.trouble.why
    return ""


def _is_recovery_for_job_run(rec: JobRecovery, job: JobId, restarts: int) -> bool:
    """Return whether a recovery treats the end of that run."""
    if (rec.attempt.job, rec.attempt.restarts) != (job, restarts):
        return False
    return not rec.lift and (bool(rec.note) or rec.phase is not JobRecoveryPhase.CANCELLED)


def _describe_run_end_cause(state: EngineState, rec: JobRecovery) -> str:
    if rec.trouble is not None:
        return rec.trouble.why
    cause = state.nodes.get(rec.cause)
    if cause is None or cause.by:
        return rec.why
    return f"{rec.why} ({cause.rule})"

"""When a released job can start again."""

from collections.abc import Iterator
from datetime import datetime

from hpctl.engine.view import PlanningView
from hpctl.toolkit.bounds import EARLIEST, add_seconds_within_bounds
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoverySignal
from hpctl.vocabulary.outcome import OutcomeKind
from hpctl.vocabulary.recovery import StepKind, find_last_step_attempt
from hpctl.vocabulary.slurm_facts import SlurmJob

RUNS_APART_SINCE = "25.11"
"""Since this release each run of a job has its own id (SLUID), by which a slurmd remembers
the credentials that it has revoked."""

CLOCK_MARGIN_S = 0.02
"""How far slurmctld's clock may be from this host's, in seconds."""

BACKOFF_SLACK_S = 60.0
"""A begin time that hpctl's backoff has set is at most this long after the backoff's end."""


def find_earliest_job_restart_time(rec: JobRecovery, view: PlanningView) -> datetime:
    """Return when slurmds take the credential of a released job's next run.

    The reasons are in `hpctl.slurm.rules`.

    From 25.11 at once. Before, once the second is over in which slurmctld signaled the end of its
    last run: that of the order which ended it, where hpctl gave it, else that in which the run
    was seen to have ended. A second order to end it, after KillWait, leaves that time as it was
    (cred_revoke in slurmd). The margin: slurmctld's clock is this host's, or NTP keeps it so.
    """
    if view.scheduler.oldest_slurmd_version >= RUNS_APART_SINCE:
        return EARLIEST
    ended = min(max(_list_run_ending_order_times(rec, view), default=rec.since), rec.since)
    return add_seconds_within_bounds(
        add_seconds_within_bounds(ended, CLOCK_MARGIN_S).replace(microsecond=0), 1
    )


def _list_run_ending_order_times(rec: JobRecovery, view: PlanningView) -> Iterator[datetime]:
    """Yield when slurmctld had answered the orders of which one ended the run, the last one counts.

    A run that may outlive its node has ended whenever its supervisor ended it. A run that Slurm
    requeued after this recovery had started it was ended by none of the orders before.
    """
    if rec.supervised or rec.has_lost_node:
        return
    requeued = [move.at for move in rec.trail if move.signal == JobRecoverySignal.REQUEUED_AGAIN]
    began = max(requeued, default=rec.opened)
    cause = view.state.nodes.get(rec.cause)
    down = find_last_step_attempt(cause.steps, StepKind.DOWN) if cause else None
    for step in (down, find_last_step_attempt(rec.steps, StepKind.REQUEUE)):
        if step is None or step.outcome is None or step.resolved is None:
            continue
        if step.outcome.kind is OutcomeKind.ACCEPTED and step.started >= began:
            yield step.resolved


def find_user_postponed_begin_time(
    rec: JobRecovery, job: SlurmJob | None, now: datetime
) -> datetime | None:
    """Return until when a person has put off a job that is to restart; None where none has.

    hpctl's own backoff sets a begin time as well.
    """
    if job is None or job.eligible is None or job.eligible <= now or not job.is_start_postponed:
        return None
    backs_off = rec.start_at is not None and job.eligible <= add_seconds_within_bounds(
        rec.start_at, BACKOFF_SLACK_S
    )
    return None if backs_off else job.eligible

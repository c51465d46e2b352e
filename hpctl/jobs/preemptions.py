"""Which registered jobs were preempted, and the note of it in their Comment.

Slurm starts a preempted job again: hpctl does nothing to it and counts nothing. A recovery writes
one line into the job's Comment, which the owner reads with squeue, and notifies the owner by mail.
Jobs that did not register keep their Comment as it is; `hpctl explain` shows the same for them, and
of a job that preemption has ended: slurmctld changes no Comment of an ended job.
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Final

from hpctl.engine.journal.events import JobRecoveryOpened
from hpctl.engine.preemption import describe_preemption, find_preemption_of_job
from hpctl.engine.view import PlanningView
from hpctl.jobs.run_gates import RUN_GATES, FailedRunDecision
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.identity import JobAttempt, JobId, RecoveryId
from hpctl.vocabulary.isolation import ItemProcessingFailure, process_items_capturing_failures
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import make_recovery_id
from hpctl.vocabulary.run_policy import RunAction, RunActionDecision
from hpctl.vocabulary.slurm_facts import SlurmJob

RECENT: Final = timedelta(minutes=10)
"""An older preemption is not noted: the daemon did not run then, or was not installed yet."""


def plan_preempted_job_recoveries(
    view: PlanningView, policy: RecoveryPolicy, taken: Collection[JobId], now: datetime
) -> tuple[list[JobRecoveryOpened], list[ItemProcessingFailure]]:
    """Return what opens for each registered job that was preempted, once it is known by which.

    `taken`: the jobs that something is decided on already.
    """

    def decide_preempted_job_recovery(job: SlurmJob) -> JobRecoveryOpened | None:
        if job.id in taken or job.id in view.state.open_jobs or view.is_quarantined(job.id):
            return None
        return _plan_preempted_job_recovery(job, view, policy, now)

    jobs = (view.scheduler.jobs.get(job) for job in view.ruled)
    found, flaws = process_items_capturing_failures(
        "plan", filter(None, jobs), lambda job: job.id, decide_preempted_job_recovery
    )
    return [decision for decision in found if decision is not None], flaws


def _plan_preempted_job_recovery(
    job: SlurmJob, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> JobRecoveryOpened | None:
    if job.state != "PENDING" or job.restarts == 0 or job.completing:
        return None
    attempt = JobAttempt(job.id, job.submit, job.restarts - 1)
    if _is_preemption_already_handled(attempt, view):
        return None
    found = find_preemption_of_job(job, view.scheduler.jobs.values(), view.preemption)
    if found is None or not found.certain or found.by is None or abs(now - found.at) > RECENT:
        return None
    why = describe_preemption(found)
    answer = RunActionDecision(RunAction.NOTIFY, why)
    if any(
        gate.gate(FailedRunDecision(job, answer), view, policy, now) is not None
        for gate in RUN_GATES
    ):
        return None
    opened = len(view.state.jobs)
    return JobRecoveryOpened(
        at=now,
        recovery=make_recovery_id("j", job.id, attempt, "note", opened, known=view.state),
        attempt=attempt,
        cause=RecoveryId(""),
        bad_nodes=(),
        why=f"it was {why}",
        name=job.name,
        user=job.user,
        partition=job.partition,
        ran_on=job.nodes,
        nodes=len(job.nodes),
        known_as=job.shown,
        note=f"hpctl: {why}",
    )


def _is_preemption_already_handled(attempt: JobAttempt, view: PlanningView) -> bool:
    """Return whether this run was noted, or ended for a reason that is known. Ids are reused, but
    not within a day."""
    return any(
        rec.attempt.job == attempt.job
        and rec.attempt.restarts == attempt.restarts
        and rec.since > add_seconds_within_bounds(attempt.submit, -86400)
        for rec in view.state.jobs.values()
    )

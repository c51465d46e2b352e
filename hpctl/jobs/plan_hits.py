"""Which jobs a node under treatment has hit, and what is decided about each."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from hpctl.engine.journal.events import GateBlocked, JobRecoveryOpened
from hpctl.engine.test_reservation import is_acceptance_test_job
from hpctl.engine.view import PlanningView, is_node_recovery_urgent
from hpctl.jobs.departures import find_node_fault_start_time, has_job_left_node_before_fault
from hpctl.jobs.restart import choose_restart_method
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.assessment import Urgency
from hpctl.vocabulary.identity import JobAttempt, NodeName
from hpctl.vocabulary.isolation import ItemProcessingFailure, call_and_capture_failure
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.node_recovery import (
    NodeRecovery,
    NodeRecoveryPhase,
    is_await_only_remedy_ladder,
)
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import make_recovery_id
from hpctl.vocabulary.registration import JobRegistration, parse_registration_comment
from hpctl.vocabulary.slurm_facts import ENDED_BADLY, SlurmJob

_REQUEUED_REASONS: Final = ("BeginTime", "None", "", "NonZeroExitCode", "JobArrayTaskLimit")
"""Of a job that Slurm requeued. Other tasks of an array with `%k` may take its place at once."""


def plan_fault_affected_job_recoveries(
    view: PlanningView,
    policy: RecoveryPolicy,
    here: Mapping[NodeName, Sequence[SlurmJob]],
    now: datetime,
) -> tuple[list[JobRecoveryOpened | GateBlocked], list[ItemProcessingFailure]]:
    """Return the jobs hit by a node under treatment: recovered, or held because Slurm cannot."""
    decisions: dict[int, JobRecoveryOpened | GateBlocked] = {}
    flaws: dict[int, ItemProcessingFailure] = {}
    for node in sorted(here):
        cause = view.state.node_recovery(node)
        if cause is None or cause.is_for_capacity_change:
            continue
        for job in here[node]:
            if job.id in decisions or job.id in view.state.open_jobs or view.is_quarantined(job.id):
                continue
            decide = partial(
                _plan_fault_affected_job_recovery, cause=cause, view=view, policy=policy, now=now
            )
            decision = call_and_capture_failure("plan", job.id, decide, job)
            if isinstance(decision, ItemProcessingFailure):
                flaws[job.id] = decision
            elif decision is not None:
                decisions[job.id] = decision
    return [decisions[i] for i in sorted(decisions)], list(flaws.values())


def _plan_fault_affected_job_recovery(
    job: SlurmJob, cause: NodeRecovery, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> JobRecoveryOpened | GateBlocked | None:
    attempt = find_fault_affected_job_attempt(job, cause, view, policy)
    if is_acceptance_test_job(cause, job.name):
        return None
    if attempt is None or _is_job_attempt_already_handled(attempt, cause, view, policy, now):
        return None
    code = job.exit_code.partition(":")[0]
    if not job.running and code in {str(c) for c in policy.job.final_exit_codes}:
        text = f"job {job.shown} ended with exit code {code}: it asked not to be run again"
        return GateBlocked(now, str(job.id), "asked_not_to", text, cause.rule, known_as=job.shown)
    if not job.recoverable:
        text = (
            f"job {job.shown} cannot be started again by Slurm ({job.unrecoverable_reason});"
            f" {job.unrecoverable_advice}"
        )
        return GateBlocked(
            now, str(job.id), "not_recoverable", text, cause.rule, known_as=job.shown
        )
    bad = tuple(sorted(n for n in set(job.nodes) if view.state.is_node_in_recovery(n))) or (
        cause.node,
    )
    # A notice comes minutes before the instance goes: until then its jobs can save.
    well = cause.urgency is not Urgency.NOW or is_await_only_remedy_ladder(cause.ladder)
    alive = job.running and (bool(cause.by) or well)
    registered = parse_registration_comment(job.comment) or JobRegistration()
    return JobRecoveryOpened(
        at=now,
        recovery=make_recovery_id("j", job.id, attempt, cause.id, known=view.state),
        attempt=attempt,
        cause=cause.id,
        bad_nodes=bad,
        why=f"its node {cause.node}: {cause.meaning}",
        name=job.name,
        user=job.user,
        partition=job.partition,
        save_signal=registered.save_signal if alive else "",
        over_budget=""
        if cause.is_for_maintenance
        else _describe_exceeded_restart_budget(job, view, policy, now),
        # All of its nodes may be in the window: it saves and starts again elsewhere.
        supervised=choose_restart_method(registered).has_supervisor
        and job.running
        and not cause.is_for_maintenance,
        nodes=len(job.nodes) or job.wants,
        known_as=job.shown,
    )


def _is_job_attempt_already_handled(
    attempt: JobAttempt,
    cause: NodeRecovery,
    view: PlanningView,
    policy: RecoveryPolicy,
    now: datetime,
) -> bool:
    """Return whether this attempt, or a later one of the same job, was treated before.

    Slurm sets a new submit time when it requeues, so the restart count tells the attempts apart;
    ids are reused, but not within a day.
    """
    window = policy.job.restart_window_s
    for rec in view.state.jobs.values():
        if rec.attempt.job != attempt.job:
            continue
        if rec.has_ended_without_stopping_run and rec.cause != cause.id:
            # What its own supervisor fixed was no end of the run: the next node hits it again.
            continue
        lately = rec.cause == cause.id or now < add_seconds_within_bounds(rec.opened, window)
        if rec.attempt == attempt or (rec.attempt.restarts >= attempt.restarts and lately):
            return True
    return False


def find_fault_affected_job_attempt(
    job: SlurmJob, cause: NodeRecovery, view: PlanningView, policy: RecoveryPolicy
) -> JobAttempt | None:
    """Return the attempt of a job that a node's fault hit, or None where it hit none."""
    if job.running:
        may_run_on = not is_node_recovery_urgent(cause, view) or cause.phase not in (
            NodeRecoveryPhase.OPEN,
            NodeRecoveryPhase.CORDONED,
        )
        return None if may_run_on else job.attempt
    slack = policy.job.ended_before_fault_s
    if job.state in ENDED_BADLY:
        hit = job.end is None or add_seconds_within_bounds(
            job.end, slack
        ) >= find_node_fault_start_time(cause)
        return job.attempt if hit else None
    if (
        job.state == "PENDING"
        and job.restarts > 0
        and (job.has_launch_failed or job.reason in _REQUEUED_REASONS)
        and not job.is_start_postponed
        and not has_job_left_node_before_fault(job, cause, view, slack)
    ):
        # Slurm requeued it before we came: the run that was hit is the one before.
        return JobAttempt(job.id, job.submit, job.restarts - 1)
    return None


def _is_job_moved_for_maintenance(rec: JobRecovery, view: PlanningView) -> bool:
    """Return whether a maintenance window moved the job, which no budget of restarts counts."""
    cause = view.state.nodes.get(rec.cause)
    return cause is not None and cause.is_for_maintenance


def _describe_exceeded_restart_budget(
    job: SlurmJob, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> str:
    limit, window = policy.job.max_restarts, policy.job.restart_window_s
    recent = 0
    for rec in view.state.jobs.values():
        if rec.attempt.job == job.id and not rec.has_ended_without_stopping_run:
            counts = now < add_seconds_within_bounds(
                rec.opened, window
            ) and not _is_job_moved_for_maintenance(rec, view)
            recent += counts
    if recent < limit:
        return ""
    return (
        f"hpctl: restarted {recent} times in {window / 3600:g} h, its budget; held for you to look"
        f" (scontrol release {job.shown} lets it go on)"
    )

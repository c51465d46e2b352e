"""Which runs have gone wrong without a fault of their node, and in what way."""

from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.journal.events import JobReported
from hpctl.engine.view import (
    PlanningView,
    find_last_supervisor_report_of_job_run,
    has_lost_batch_script,
)
from hpctl.jobs.departures import has_recorded_preemption
from hpctl.toolkit.bounds import add_seconds_within_bounds, parse_count
from hpctl.vocabulary.identity import JobAttempt, NodeName
from hpctl.vocabulary.job_recovery import JobRecovery, RequestedAction
from hpctl.vocabulary.registration import (
    EffectiveJobPolicy,
    JobRegistration,
    parse_registration_comment,
)
from hpctl.vocabulary.run_policy import RESTARTS, RunAction, RunPolicy
from hpctl.vocabulary.slurm_facts import ENDED_BADLY, TIMED_OUT, SlurmJob, SlurmNode
from hpctl.vocabulary.trouble import UNSTARTED, Trouble, TroubleKind, classify_program_start_failure


def find_job_recovery_action(rec: JobRecovery) -> RunAction:
    """Return what was done about a trouble or a hit of a node."""
    if rec.trouble is not None:
        return rec.action
    return RunAction.HOLD if rec.over_budget else RunAction.REQUEUE


def find_failure_treated_by_recovery(rec: JobRecovery) -> Trouble:
    """Return the trouble that a job's recovery treats; for a node's fault, as the run felt it."""
    if rec.trouble is not None:
        return rec.trouble
    node = rec.bad_nodes[0] if rec.bad_nodes else None
    return Trouble(TroubleKind.NODE, rec.opened, rec.why, f"node {rec.cause}", node=node)


LAUNCH_REASON: Final = "JobLaunchFailure"
"""Of a job whose batch host was lost. Slurm gives it, too, to a job whose batch script itself was
ended by a signal; the exit code has the signal then."""

_DELAY_REASONS: Final = ("BeginTime", "None", "", "NonZeroExitCode")
"""Of a job that waits out the begin delay; the last until a scheduling pass looks at it."""


BOOTED_SIGNATURE: Final = "node booted"


_BOOTS_S, _REGISTERS_S = 900.0, 120.0
"""A boot, and a slurmd's start, are at most this long before the requeue that they cause."""


NODE_KINDS: Final = (TroubleKind.NODE, TroubleKind.PREEMPTED)


_FROM_OUTSIDE: Final = frozenset({1, 2, 3, 9, 15})
"""HUP, INT, QUIT, KILL, TERM: a shell ends with 128 more where its last program was so ended. Of
the others (SEGV, ABRT) a program dies by its own fault."""


class FailedJobRun(Struct, frozen=True):
    """A run that went wrong: which one, how, and what its supervisor has answered, if it has."""

    attempt: JobAttempt
    trouble: Trouble
    reported: JobReported | None = None
    queued: bool = False
    """It is back in the queue already: Slurm starts it, and only the time is decided."""


def find_failed_job_run(job: SlurmJob, view: PlanningView, now: datetime) -> FailedJobRun | None:
    """Return in what way a run went wrong; None where it did not."""
    wish = _find_newest_supervisor_request(job, view)
    if job.state == "PENDING":
        return _find_failed_run_before_requeue(job, view, now)
    if job.state == TIMED_OUT and wish is None:
        return _find_run_ended_by_time_limit(job, view, now)
    if job.running or job.state in (*ENDED_BADLY, TIMED_OUT):
        if wish is not None:
            return FailedJobRun(job.attempt, _get_failure_from_job_report(wish), wish)
        if job.state in ENDED_BADLY:
            return FailedJobRun(
                job.attempt,
                _find_run_end_cause(job, job.restarts, view, now),
                _find_supervisor_give_up_report(job, view),
            )
        if has_lost_batch_script(job, view):
            why = f"the node of its batch script, {job.batch_host}, is lost"
            trouble = Trouble(TroubleKind.NODE, now, why, "batch host lost", node=job.batch_host)
            return FailedJobRun(job.attempt, trouble)
    return None


def _find_run_ended_by_time_limit(
    job: SlurmJob, view: PlanningView, now: datetime
) -> FailedJobRun | None:
    """Return the case of a run that reached its time limit; None where its job stays ended."""
    registered = parse_registration_comment(job.comment)
    ruled = view.ruled.get(job.id, EffectiveJobPolicy())
    if registered is None or explain_no_restart_after_time_limit(job, registered, ruled.policy):
        return None
    trouble = Trouble(
        TroubleKind.TIME_LIMIT,
        job.end or now,
        "it reached its time limit",
        signature="time limit",
        progress=_find_newest_reported_checkpoint_step(job, view),
    )
    return FailedJobRun(job.attempt, trouble)


def explain_no_restart_after_time_limit(
    job: SlurmJob, registered: JobRegistration, policy: RunPolicy
) -> str:
    """Return why a job that reaches its time limit is not started again; "" where it is."""
    if not job.recoverable:
        cannot = f"Slurm cannot start it again ({job.unrecoverable_reason})"
        return f"{cannot}; {job.unrecoverable_advice}"
    if not registered.ckpt:
        return "it has no --checkpoint-dir, so a restart would begin at the beginning"
    if RESTARTS.isdisjoint(policy.treatment(TroubleKind.TIME_LIMIT).ladder):
        return "its policy restarts no run that reaches its time limit (`on.time_limit`)"
    return ""


def _find_newest_supervisor_request(job: SlurmJob, view: PlanningView) -> JobReported | None:
    """Return the newest report of this run, where it is a wish: a later report withdraws an older
    wish."""
    event = find_last_supervisor_report_of_job_run(job.id, job.restarts, view)
    return event if event is not None and event.report.wish is not RequestedAction.NONE else None


def _find_supervisor_give_up_report(job: SlurmJob, view: PlanningView) -> JobReported | None:
    """Return the report by which the supervisor of this run gave it up; None where there is
    none."""
    event = find_last_supervisor_report_of_job_run(job.id, job.restarts, view)
    return event if event is not None and event.report.action is RunAction.END else None


def _get_failure_from_job_report(event: JobReported) -> Trouble:
    """Return the trouble that it reported; a wish without a trouble is planned, as growing back
    is."""
    report = event.report
    why = report.why or "its supervisor gives its nodes back"
    return report.trouble or Trouble(TroubleKind.PREEMPTED, event.at, why, progress=report.progress)


def _find_failed_run_before_requeue(
    job: SlurmJob, view: PlanningView, now: datetime
) -> FailedJobRun | None:
    """Return why a job was requeued that waits out Slurm's begin delay: its supervisor, a node or
    its exit code.

    None where it was preempted or requeued by an operator, also after it had ended: that is no
    failure of the run, so it is not counted, not held and not started ahead of its delay.
    """
    delayed = job.eligible is not None and now < job.eligible and not job.is_start_postponed
    if job.restarts == 0 or job.completing or not delayed or job.reason not in _DELAY_REASONS:
        return None
    attempt = JobAttempt(job.id, job.submit, job.restarts - 1)
    event = find_last_supervisor_report_of_job_run(job.id, attempt.restarts, view)
    if event is not None and event.report.action in (RunAction.REQUEUE, RunAction.HOLD):
        return FailedJobRun(attempt, _get_failure_from_job_report(event), event, queued=True)
    trouble = _find_slurm_requeue_cause(job, attempt, view, now)
    if trouble is None:
        return None
    if event is not None and event.report.action is RunAction.END:
        return FailedJobRun(attempt, _get_failure_from_job_report(event), event, queued=True)
    return FailedJobRun(
        attempt,
        replace(trouble, progress=_find_newest_reported_checkpoint_step(job, view)),
        queued=True,
    )


def _find_slurm_requeue_cause(
    job: SlurmJob, attempt: JobAttempt, view: PlanningView, now: datetime
) -> Trouble | None:
    """Return why Slurm itself has requeued a job; None where another user or tool has."""
    if (
        job.ordered
        or has_recorded_preemption(job, view)
        or _was_job_canceled_before_run(attempt, view)
    ):
        return None
    lost = [n for n in job.nodes if (node := view.scheduler.nodes.get(n)) and node.down]
    if lost:
        why = f"Slurm took it off {','.join(sorted(lost))}, which is DOWN"
        return Trouble(TroubleKind.NODE, now, why, "node down", node=min(lost))
    booted = [
        n for n in job.nodes if _has_node_rebooted_during_job(job, view.scheduler.nodes.get(n))
    ]
    if booted:
        why = f"Slurm took it off {','.join(sorted(booted))}, which had booted"
        return Trouble(TroubleKind.NODE, now, why, BOOTED_SIGNATURE, node=min(booted))
    if _was_job_requeued_for_exit_code(job, view):
        return _find_run_end_cause(job, attempt.restarts, view, now)
    return None


def _was_job_canceled_before_run(attempt: JobAttempt, view: PlanningView) -> bool:
    """Return whether hpctl had canceled the job before this run of it began: a requeue of it is an
    order, and exit code and Reason are those of the run before."""
    return any(
        rec.attempt.job == attempt.job
        and rec.attempt.restarts == attempt.restarts - 1
        and rec.since > add_seconds_within_bounds(attempt.submit, -86400)
        and rec.action is RunAction.END
        for rec in view.state.jobs.values()
    )


def _was_job_requeued_for_exit_code(job: SlurmJob, view: PlanningView) -> bool:
    """Return whether slurm.conf's RequeueExit has Slurm requeue a job that ends with this code.

    A preempted script that ends within its grace time has a code as well.
    """
    code, _, _ = job.exit_code.partition(":")
    ended = job.exit_code not in ("", "0:0") and code.isdigit()
    return ended and job.preempted is None and parse_count(code) in view.requeue_codes


def _has_node_rebooted_during_job(job: SlurmJob, node: SlurmNode | None) -> bool:
    """Return whether a node came back without the job before slurmctld had called it DOWN: the
    slurmd registers after a boot, and slurmctld requeues at once what it no longer runs.

    The requeue sets a new submit time. A slurmd that started before the run is no such case.
    """
    if node is None or node.boot_time is None or node.slurmd_start is None:
        return False
    if job.ran_from is not None and node.slurmd_start <= job.ran_from:
        return False
    since, till = (
        add_seconds_within_bounds(job.submit, -_REGISTERS_S),
        add_seconds_within_bounds(job.submit, 1),
    )
    booted = add_seconds_within_bounds(job.submit, -_BOOTS_S) < node.boot_time <= till
    return booted and since < node.slurmd_start <= till


def _find_run_end_cause(job: SlurmJob, restarts: int, view: PlanningView, now: datetime) -> Trouble:
    """Return what a run of a job ended of: what its script has read in its log, where Slurm does
    not know better, else what Slurm's state and exit code say. `restarts`: which run."""
    seen = _derive_failure_from_job_state(job, view, now)
    event = find_last_supervisor_report_of_job_run(job.id, restarts, view)
    cause = (
        event.report.trouble if event is not None and event.report.is_cause_only_report else None
    )
    if cause is None or seen.kind in (TroubleKind.NODE, TroubleKind.CORRUPTION):
        return seen
    if seen.kind is TroubleKind.HOST_MEMORY and cause.kind is not TroubleKind.HOST_MEMORY:
        # Slurm counts the kills of the kernel; the log names the rank that was killed.
        place = f" on {cause.node}" if cause.node is not None else ""
        why = f"rank {cause.rank}{place}: {seen.why}" if cause.rank is not None else seen.why
        return replace(seen, why=why, node=cause.node, rank=cause.rank, evidence=cause.evidence)
    return replace(cause, progress=seen.progress if cause.progress is None else cause.progress)


def _derive_failure_from_job_state(job: SlurmJob, view: PlanningView, now: datetime) -> Trouble:
    """Return what Slurm's state and exit code say of a run that ended."""
    policy = view.ruled.get(job.id, EffectiveJobPolicy()).policy
    code, _, number = job.exit_code.partition(":")
    signalled = parse_count(number)
    exit_code = 128 + signalled if signalled else parse_count(code) if code.isdigit() else None
    node: NodeName | None = None
    progress = _find_newest_reported_checkpoint_step(job, view)
    if job.state == "OUT_OF_MEMORY":
        kind, why = TroubleKind.HOST_MEMORY, "Slurm killed it for its memory"
    elif job.state in ("NODE_FAIL", "BOOT_FAIL"):
        kind, why = TroubleKind.NODE, f"Slurm ended it as {job.state}"
    elif _has_job_lost_batch_host(job, view, exit_code):
        kind, why = TroubleKind.NODE, f"the node of its batch script, {job.batch_host}, was lost"
        node = job.batch_host
    elif exit_code in policy.corruption_exit_codes:
        kind, why = (
            TroubleKind.CORRUPTION,
            f"exit code {exit_code} is evidence of silent corruption",
        )
    elif signalled:
        kind = TroubleKind.KILLED if signalled in _FROM_OUTSIDE else TroubleKind.CRASH
        why = f"its script was ended by signal {signalled}"
    elif exit_code is not None and exit_code - 128 in _FROM_OUTSIDE:
        why = f"its script ended with exit code {exit_code}: signal {exit_code - 128} from outside"
        kind = TroubleKind.KILLED
    elif exit_code is not None and exit_code in UNSTARTED:
        # bash's own word, too, for the last command of a script that is there.
        again = job.restarts > 0 or progress is not None
        kind, why = classify_program_start_failure(
            f"{UNSTARTED[exit_code]} (exit code {exit_code})", again
        )
    else:
        kind, why = TroubleKind.CRASH, f"its script ended with exit code {exit_code}"
    return Trouble(
        kind,
        job.end or now,
        why,
        signature=f"{job.state} {job.exit_code}".strip(),
        node=node,
        exit_code=exit_code,
        progress=progress,
    )


def _has_job_lost_batch_host(job: SlurmJob, view: PlanningView, exit_code: int | None) -> bool:
    """Return whether the node of the batch script is DOWN, or was about to be, or left the job.

    Nodes and jobs are read side by side: a script that was killed on a closed node may be seen
    before the DOWN that killed it.
    """
    signalled = not job.exit_code.endswith(":0")
    if job.reason == LAUNCH_REASON and not (signalled and job.batch_host in job.nodes):
        return True
    host = view.scheduler.nodes.get(job.batch_host) if job.batch_host else None
    killed = exit_code is not None and exit_code - 128 in _FROM_OUTSIDE
    return host is not None and (host.down or (host.closed and killed))


def _find_newest_reported_checkpoint_step(job: SlurmJob, view: PlanningView) -> int | None:
    """Return the newest checkpoint that was reported; None where none was."""
    for event in reversed(view.state.reports.get(job.id, ())):
        found = event.report.progress
        if found is None and event.report.trouble is not None:
            found = event.report.trouble.progress
        if found is not None:
            return found
    return None

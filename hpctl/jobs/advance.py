"""What moves a job recovery: facts in, a move, a step or a wait out. Total over open phases."""

from datetime import datetime
from typing import Final

from msgspec import Struct

from hpctl.engine.job_deadlines import find_job_phase_deadline_s
from hpctl.engine.queue_wait import is_job_queued
from hpctl.engine.restart_time import CLOCK_MARGIN_S, find_user_postponed_begin_time
from hpctl.toolkit.bounds import EARLIEST, add_seconds_within_bounds
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.job_recovery import (
    BEFORE_STOP,
    REQUEUED_BEFORE_PROOF,
    JobRecovery,
    JobRecoveryPhase,
    JobRecoverySignal,
    JobReport,
    RequestedAction,
)
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import (
    Next,
    RecheckInterval,
    RecoveryDecisionContext,
    RecoveryPhaseMove,
    RecoveryStepRecord,
    StepKind,
    StepRetryRule,
    StepStartDecision,
    WaitDecision,
    extend_phase_deadline,
    format_call_outcome,
)
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.slurm_facts import ENDED_BADLY, TIMED_OUT, SlurmJob
from hpctl.vocabulary.trouble import TroubleKind


class JobRecoveryFacts(Struct, frozen=True):
    """What is known now of the job that a recovery treats.

    `cordoned`: its bad nodes are closed, so a requeue cannot land there again. `node_stops_it`: the
    node recovery will set the node DOWN, which stops the job; otherwise we requeue it.
    `called_off`: that node recovery has ended, and hpctl keeps none of the bad nodes closed.
    `remedied`: it has given the node back after something that no run there has outlived.
    `exclude`: its bad nodes that are under treatment now. `forgive`: nodes that hpctl excluded for
    this job before and that have healed since. `gone`: its bad nodes no longer hold it. `headless`:
    the node of its batch script is lost. `report`: the newest of its supervisor since the recovery
    opened. `asks`: what the run that follows wishes. `node_failed_since`: another node's recovery
    opened since the run that follows began. `hardware`: a node that it ran on is under treatment,
    so that no backoff is called for. `elastic`: its policy has a range of nodes.
    `able_since`: see `PlanningView`. `hangs`: it still makes no progress. `works`: it was seen at
    work since. `ready`: when slurmds take the credential of its next run. `pass_s`: so long after a
    begin time slurmctld has made its own pass, or the order to start must be repeated to cause one.
    """

    job: SlurmJob | None = None
    cordoned: bool = False
    node_stops_it: bool = False
    called_off: bool = False
    remedied: bool = False
    exclude: tuple[NodeName, ...] = ()
    forgive: tuple[NodeName, ...] = ()
    gone: bool = False
    headless: bool = False
    report: JobReport | None = None
    asks: str = ""
    node_failed_since: bool = False
    hardware: bool = False
    elastic: bool = False
    able_since: datetime | None = None
    ready: datetime = EARLIEST
    pass_s: float = CLOCK_MARGIN_S
    hangs: bool = False
    works: bool = False


_Case = RecoveryDecisionContext[JobRecovery, JobRecoveryFacts]


def advance_job_recovery(
    rec: JobRecovery, facts: JobRecoveryFacts, policy: RecoveryPolicy, now: datetime
) -> Next:
    """Return what the facts make of a job recovery: a move, a step, or waiting. Total, open
    phases."""
    job = policy.job
    completing = facts.job is not None and facts.job.completing
    since = _find_phase_deadline_start(rec, facts.job, now)
    deadline = add_seconds_within_bounds(
        since, find_job_phase_deadline_s(rec.phase, policy, completing=completing)
    )
    deadline = extend_phase_deadline(deadline, facts.able_since, policy.ages.silent_s)
    repeat = StepRetryRule(job.step_retry_s, job.step_attempts, job.step_retry_s)
    c = RecoveryDecisionContext(rec, facts, policy, now, deadline, repeat)
    over = _detect_missing_job(rec, facts) or (
        None if rec.note else _detect_job_end_or_restart(rec, facts)
    )
    return c.enforce_phase_deadline(over or PHASES[rec.phase](c), JobRecoverySignal.DEADLINE)


EXAMINE_S: Final = 60.0
"""slurmctld examines every pending job this often (`sched_interval`). Until it does so after an
update, the Reason is None."""


def _find_phase_deadline_start(rec: JobRecovery, job: SlurmJob | None, now: datetime) -> datetime:
    """Return the time from which the deadline of the phase counts."""
    if job is None or rec.phase is not JobRecoveryPhase.STARTING:
        return rec.since
    if is_job_queued(job, now):
        # Its turn in the queue may come in days, and a recovery that gave up could change nothing.
        return now
    if job.reason not in ("", "None") or not rec.steps:
        return rec.since
    examined = add_seconds_within_bounds(rec.steps[-1].started, EXAMINE_S)
    return max(rec.since, min(now, examined))


_REQUEUED: Final = frozenset(
    {JobRecoveryPhase.RELEASED, JobRecoveryPhase.STARTING, JobRecoveryPhase.PROVING}
)
"""Phases in which slurmctld has requeued the run, and may have died before it saved that."""


def _detect_missing_job(rec: JobRecovery, facts: JobRecoveryFacts) -> RecoveryPhaseMove | None:
    """Return whether there is nothing left to treat."""
    job = facts.job
    if job is None:
        return RecoveryPhaseMove(JobRecoverySignal.GONE, "slurmctld no longer knows the job")
    if job.submit < rec.attempt.submit or job.restarts < rec.attempt.restarts:
        return RecoveryPhaseMove(
            JobRecoverySignal.GONE, "the job id belongs to another submission now"
        )
    return None


def _detect_job_end_or_restart(
    rec: JobRecovery, facts: JobRecoveryFacts
) -> RecoveryPhaseMove | None:
    """Detect an end that may come in any phase, and a run that began, or came back, without our
    help."""
    job = facts.job
    assert job is not None  # _detect_missing_job has answered for a job that is gone
    if job.state == "COMPLETED" and not job.completing:
        return RecoveryPhaseMove(JobRecoverySignal.FINISHED, "the job completed")
    if job.state == "CANCELLED" and rec.action is RunAction.END:
        return RecoveryPhaseMove(JobRecoverySignal.GONE, "it is given up, and cancelled")
    at_limit = _has_reached_time_limit(rec, job)
    if job.state == TIMED_OUT and rec.phase is JobRecoveryPhase.PROVING and not at_limit:
        return RecoveryPhaseMove(
            JobRecoverySignal.FAILED_AGAIN, "it reached its time limit right after its restart"
        )
    if job.state in ("CANCELLED", TIMED_OUT, "DEADLINE", "PREEMPTED") and not at_limit:
        return RecoveryPhaseMove(
            JobRecoverySignal.GONE, f"the job ended as {job.state}: this recovery does not apply"
        )
    disturbed = rec.has_lost_node or _find_requeue_time(rec) is not None
    if facts.called_off and job.running and rec.phase in BEFORE_STOP and not disturbed:
        return RecoveryPhaseMove(
            JobRecoverySignal.CALLED_OFF, "its node's recovery ended, and the job runs"
        )
    later_run = job.restarts > rec.attempt.restarts
    if rec.phase is not JobRecoveryPhase.PROVING and later_run and job.state == "RUNNING":
        return RecoveryPhaseMove(
            JobRecoverySignal.RUNNING_SEEN, f"running on {','.join(job.nodes)}"
        )
    if _has_restart_uncounted_by_slurm(rec, facts, job):
        return RecoveryPhaseMove(
            JobRecoverySignal.RUNNING_SEEN, f"running on {','.join(job.nodes)}"
        )
    again = rec.phase in _REQUEUED and job.restarts == rec.attempt.restarts
    ended = at_limit or job.state in ENDED_BADLY or _is_running_state_stale(rec, facts, job)
    if again and ended and not job.completing:
        return RecoveryPhaseMove(
            JobRecoverySignal.STOP_WANTED,
            "slurmctld came back with a state from before the requeue",
        )
    return None


def _has_reached_time_limit(rec: JobRecovery, job: SlurmJob) -> bool:
    """Return whether the run ended at the time limit that is treated."""
    treated = rec.trouble is not None and rec.trouble.kind is TroubleKind.TIME_LIMIT
    return treated and job.state == TIMED_OUT and job.restarts == rec.attempt.restarts


def _has_restart_uncounted_by_slurm(
    rec: JobRecovery, facts: JobRecoveryFacts, job: SlurmJob
) -> bool:
    """Return whether the next run began without a count: slurmctld was killed before it had saved
    that the former one ran, so it came back with the job in the queue and never having run."""
    if (
        rec.phase not in (JobRecoveryPhase.RELEASED, JobRecoveryPhase.STARTING)
        or job.state != "RUNNING"
    ):
        return False
    queued = _find_requeue_time(rec)
    if queued is None or job.start is None or job.restarts != rec.attempt.restarts:
        return False
    bad = set(rec.bad_nodes).difference(facts.forgive)
    return job.start >= queued.replace(microsecond=0) and bad.isdisjoint(job.nodes)


def _is_running_state_stale(rec: JobRecovery, facts: JobRecoveryFacts, job: SlurmJob) -> bool:
    """Return whether slurmctld shows the run as running that was seen in the queue: it was killed
    before it had saved the requeue. It does not learn soon that the nodes have ended that run.

    The run is left untouched where another user or tool has its node by now, for it may have
    continued.
    """
    queued = _find_requeue_time(rec)
    if queued is None or job.start is None or not job.running:
        return False
    ours = facts.remedied or (facts.cordoned and not facts.called_off)
    return ours and job.start < queued.replace(microsecond=0)


def _find_requeue_time(rec: JobRecovery) -> datetime | None:
    """Return when the run was last seen back in the queue; None where it was not."""
    return max((m.at for m in rec.trail if m.signal == JobRecoverySignal.QUEUED), default=None)


def _advance_affected_job_recovery(c: _Case) -> Next:
    if c.rec.lift:
        return _advance_node_exclusion_removal(c)
    if c.rec.note:
        return _advance_preemption_comment_update(c)
    if c.rec.hang:
        return _advance_hung_job_recovery(c)
    if not c.facts.cordoned:
        return c.wait("its node is not closed to new work yet", RecheckInterval.SOON)
    job = c.facts.job
    if c.rec.supervised and job is not None and job.running and not c.facts.headless:
        return RecoveryPhaseMove(
            JobRecoverySignal.SUPERVISED, "its own supervisor restarts its step without the node"
        )
    if c.rec.save_signal and job is not None and job.running and c.policy.job.save_grace_s > 0:
        return RecoveryPhaseMove(
            JobRecoverySignal.SAVE_WANTED, f"the job asked to save at {c.rec.save_signal}"
        )
    if job is not None and job.state in (*ENDED_BADLY, TIMED_OUT):
        return RecoveryPhaseMove(JobRecoverySignal.STOP_WANTED, f"its run has ended as {job.state}")
    return RecoveryPhaseMove(JobRecoverySignal.STOP_WANTED, "it cannot go on where it is")


def _advance_node_exclusion_removal(c: _Case) -> Next:
    """Advance a job in HIT for no fault: an exclusion has outlived its node's treatment."""
    job = c.facts.job
    left = set(job.nodes_excluded_by_hpctl).intersection(c.rec.lift) if job is not None else set()
    if job is None or job.state != "PENDING" or not left:
        return RecoveryPhaseMove(
            JobRecoverySignal.CALLED_OFF, f"it may have {','.join(c.rec.lift)} again"
        )
    cannot = "slurmctld will not change its ExcNodeList"
    return c.take(StepKind.LIFT, str(job.id), JobRecoverySignal.REFUSED, cannot, nodes=c.rec.lift)


def _advance_preemption_comment_update(c: _Case) -> Next:
    """Advance a job in HIT for no fault: another job preempted it, which its Comment is to show."""
    job = c.facts.job
    assert job is not None  # _detect_missing_job has answered for a job that is gone
    if c.rec.note in job.comment:
        return RecoveryPhaseMove(JobRecoverySignal.CALLED_OFF, "Slurm starts it again")
    cannot = "slurmctld will not change its Comment"
    return c.take(StepKind.NOTE, str(job.id), JobRecoverySignal.CALLED_OFF, cannot, c.rec.note)


def _advance_hung_job_recovery(c: _Case) -> Next:
    """Advance a job in HIT for no fault but its own lack of progress: its stacks first, then what
    the policy says."""
    job, killed = c.facts.job, c.last(StepKind.SIGNAL)
    if job is None or not job.running:
        ended = "`hangs: cancel` ended it" if killed else "it ended before hpctl acted"
        return RecoveryPhaseMove(
            JobRecoverySignal.ENDED if killed else JobRecoverySignal.CALLED_OFF, ended
        )
    if killed is not None:
        return c.wait("it is being ended", RecheckInterval.SOON)
    if c.facts.works:
        return RecoveryPhaseMove(JobRecoverySignal.CALLED_OFF, "it makes progress again")
    if not c.facts.hangs:
        # As after a restart: this daemon has not watched it for long enough yet.
        if c.now >= c.deadline:
            return RecoveryPhaseMove(JobRecoverySignal.CALLED_OFF, "it was not seen to hang again")
        return c.wait("whether it hangs still is not known yet", RecheckInterval.SLOWLY)
    dumped, late = (
        c.last(StepKind.STACKS),
        add_seconds_within_bounds(c.rec.since, c.policy.hangs.dump_s),
    )
    if dumped is None:
        return StepStartDecision(
            StepKind.STACKS, str(job.id), 1, "before anything else is done to it"
        )
    if dumped.outcome is None and c.now < late:
        return WaitDecision(late, "the stacks of its ranks are dumped", RecheckInterval.SLOWLY)
    if c.rec.hang == "dump":
        dump = format_call_outcome(dumped.outcome) if dumped.outcome else ""
        kept = f"stacks: {dump}" if dumped.accepted else f"its stacks could not be dumped ({dump})"
        return RecoveryPhaseMove(JobRecoverySignal.CALLED_OFF, f"{kept}; it is left as it is")
    if c.rec.hang == "cancel":
        return StepStartDecision(StepKind.SIGNAL, "KILL", 1, "it hangs")
    return RecoveryPhaseMove(JobRecoverySignal.STOP_WANTED, "it hangs")


def _advance_node_removal_from_job(c: _Case) -> Next:
    job = c.facts.job
    if job is None or not job.running:
        return RecoveryPhaseMove(JobRecoverySignal.STOP_WANTED, "it did not outlive its node")
    if c.facts.headless:
        return RecoveryPhaseMove(
            JobRecoverySignal.STOP_WANTED, "the node of its batch script is lost"
        )
    if c.facts.gone:
        return RecoveryPhaseMove(JobRecoverySignal.EXCISED, f"it runs on {','.join(job.nodes)}")
    if c.facts.node_stops_it:
        return c.wait("its node is about to be set DOWN", RecheckInterval.SOON)
    return RecoveryPhaseMove(JobRecoverySignal.STOP_WANTED, "its node cannot be taken away from it")


def _advance_supervisor_monitoring(c: _Case) -> Next:
    job, report = c.facts.job, c.facts.report
    if job is None or not job.running:
        return RecoveryPhaseMove(JobRecoverySignal.STOP_WANTED, "it stopped before hpctl acted")
    if c.facts.headless:
        return RecoveryPhaseMove(
            JobRecoverySignal.STOP_WANTED, "the node of its batch script is lost"
        )
    if report is not None and report.wish is RequestedAction.REQUEUE:
        return RecoveryPhaseMove(
            JobRecoverySignal.STOP_WANTED, f"its supervisor asks for a requeue: {report.why}"
        )
    if report is not None:
        return RecoveryPhaseMove(
            JobRecoverySignal.WENT_ON, report.why or f"its supervisor answered with {report.action}"
        )
    grace = add_seconds_within_bounds(c.rec.since, c.policy.job.supervisor_grace_s)
    if c.now >= grace:
        silence = f"no report from its supervisor for {c.policy.job.supervisor_grace_s:g} s"
        return RecoveryPhaseMove(JobRecoverySignal.STOP_WANTED, silence)
    return WaitDecision(
        grace, "its supervisor has a moment to restart its step", RecheckInterval.SLOWLY
    )


def _advance_checkpoint_save(c: _Case) -> Next:
    if c.facts.job is None or not c.facts.job.running:
        return RecoveryPhaseMove(JobRecoverySignal.SAVE_OVER, "the job ended while saving")
    grace = add_seconds_within_bounds(c.rec.since, c.policy.job.save_grace_s)
    if c.now >= grace:
        return RecoveryPhaseMove(JobRecoverySignal.SAVE_OVER, "the grace to save is over")
    # A signal is felt each time: one in doubt counts as sent.
    if c.last(StepKind.SIGNAL) is None:
        return StepStartDecision(StepKind.SIGNAL, c.rec.save_signal, 1, "save a checkpoint")
    return WaitDecision(grace, f"the job saves ({c.rec.save_signal})", RecheckInterval.SOON)


def _advance_job_run_stop(c: _Case) -> Next:
    job = c.facts.job
    assert job is not None  # _detect_job_end_or_restart has answered for a job that is gone
    if c.rec.action is RunAction.END:
        return _cancel_abandoned_job_run(c)
    if job.completing:
        nodes = ",".join(job.completing_nodes)
        return c.wait(
            f"COMPLETING on {nodes}: requeueing now can crash slurmctld", RecheckInterval.SOON
        )
    if job.state == "PENDING":
        return RecoveryPhaseMove(JobRecoverySignal.QUEUED, "the job is back in the queue")
    if job.running and c.facts.node_stops_it:
        return c.wait("its node is about to be set DOWN, which requeues it", RecheckInterval.SOON)
    goes_on = _describe_later_supervisor_report(c.rec, c.facts)
    if goes_on:
        return RecoveryPhaseMove(JobRecoverySignal.WENT_ON, goes_on)
    cannot = "slurmctld will not requeue it"
    return c.take(StepKind.REQUEUE, str(job.id), JobRecoverySignal.REFUSED, cannot)


def _cancel_abandoned_job_run(c: _Case) -> Next:
    """Advance a run in STOPPING that is given up, in the queue or alive: no order of Slurm's makes
    it FAILED.

    Its dependents and who waits for it take CANCELLED for a failure.
    """
    if _is_recovery_step_accepted(c, StepKind.CANCEL):
        return c.wait("it is being cancelled", RecheckInterval.SOON)
    cannot = "slurmctld will not cancel it"
    return c.take(
        StepKind.CANCEL, str(c.rec.attempt.job), JobRecoverySignal.REFUSED, cannot, c.rec.why
    )


def _describe_later_supervisor_report(rec: JobRecovery, facts: JobRecoveryFacts) -> str:
    """Return what its supervisor reported since it was given up, or had wished to leave: "" if
    nothing.

    The requeue may be late: paused, or refused, or in doubt. A mere sign of life takes no wish
    back, and no report helps a run that has lost its batch script.
    """
    job, report = facts.job, facts.report
    its_own = rec.has_lost_node or rec.trouble is not None
    if not its_own or facts.headless or job is None or not job.running:
        return ""
    if (
        report is None
        or report.wish is not RequestedAction.NONE
        or not (report.trouble or report.why)
    ):
        return ""
    return report.why or f"its supervisor answered with {report.action}"


def _hold_or_release_job(c: _Case) -> Next:
    return _hold_job(c) if c.rec.over_budget else _release_job(c)


def _hold_job(c: _Case) -> Next:
    """Hold a job in RELEASED whose budget is spent."""
    if _is_recovery_step_accepted(c, StepKind.HOLD):
        return RecoveryPhaseMove(JobRecoverySignal.HELD, c.rec.over_budget)
    return _plan_recovery_step_attempt(c, StepKind.HOLD)


def _release_job(c: _Case) -> Next:
    """Start a job in RELEASED as soon as its last run has cleared."""
    wait_s = compute_remaining_backoff_s(c.rec, c.facts, c.now)
    if _is_recovery_step_accepted(c, StepKind.START_NOW):
        until = f"it backs off until {c.rec.start_at:%H:%M:%S} UTC" if wait_s > 0 else ""
        return RecoveryPhaseMove(
            JobRecoverySignal.STARTED, until or "its begin delay is gone, bad nodes are excluded"
        )
    if c.facts.job is not None and c.facts.job.completing:
        return c.wait("its last run is completing", RecheckInterval.SOON)
    put_off = _describe_begin_time_delay(c)
    if put_off:
        return RecoveryPhaseMove(JobRecoverySignal.STARTED, put_off)
    answer = _plan_recovery_step_attempt(c, StepKind.START_NOW)
    if not isinstance(answer, StepStartDecision):
        return answer
    # Its nodes kill a job that comes back in the second it was ended in. The order goes out before
    # that is over: a pass as the next second begins would miss one that waits for it.
    early_s = (c.facts.ready - c.now).total_seconds()
    return _make_job_start_step(c, answer.attempt, answer.why, max(wait_s, early_s))


def _plan_recovery_step_attempt(c: _Case, kind: StepKind) -> Next:
    """Return the step again, where its last attempt is of a phase before or may be repeated."""
    last, job = c.last(kind), str(c.rec.attempt.job)
    if last is not None and last.moves < len(c.rec.trail):
        return StepStartDecision(kind, job, last.attempt + 1, c.rec.over_budget)
    if last is not None and last.outcome is not None and last.outcome.code == "not_pending":
        return c.wait("no longer pending", RecheckInterval.SOON)
    cannot = f"slurmctld will not {kind} it"
    return c.take(kind, job, JobRecoverySignal.REFUSED, cannot, c.rec.over_budget)


def _is_recovery_step_accepted(c: _Case, kind: StepKind) -> bool:
    """Return whether slurmctld has accepted this step in this phase."""
    last = c.last(kind)
    return last is not None and last.moves == len(c.rec.trail) and last.accepted


def _make_job_start_step(
    c: _Case, attempt: int, why: str = "", after_s: float = 0.0
) -> StepStartDecision:
    """Return a START_NOW with what the facts say of where, and how large."""
    job, facts = str(c.rec.attempt.job), c.facts
    return StepStartDecision(
        StepKind.START_NOW, job, attempt, why, facts.exclude, facts.forgive, after_s, facts.elastic
    )


def compute_remaining_backoff_s(rec: JobRecovery, facts: JobRecoveryFacts, now: datetime) -> float:
    """Return seconds that the job has to wait still, from now. None for a fault of the hardware."""
    if rec.start_at is None or facts.hardware:
        return 0.0
    return max((rec.start_at - now).total_seconds(), 0.0)


_NEXT_SECOND_S: Final = 1.0
"""A start so much later is in a later second of the clock. slurmd counts whole seconds."""


def _was_ordered_early(c: _Case, start: RecoveryStepRecord, begins: datetime) -> bool:
    """Return whether a start was ordered for a begin time that was still to come.

    An order of RELEASED may be for any later time. One of STARTING is for the next second: where
    the job begins later than that, a person or Slurm has set its begin time since.
    """
    if start.started >= begins:
        return False
    if start.started < c.rec.since:
        return True
    soon = add_seconds_within_bounds(start.started, 2 * _NEXT_SECOND_S)
    return begins <= soon and start.attempt <= c.policy.job.step_attempts


def _advance_requeued_job_start(c: _Case) -> Next:
    job = c.facts.job
    assert job is not None
    if job.state in ENDED_BADLY and not job.completing:
        return RecoveryPhaseMove(
            JobRecoverySignal.REFUSED, f"it ended as {job.state} before it was seen running"
        )
    if job.completing:
        # It ran unseen, and was requeued again: slurmctld takes no start before that has cleared.
        return c.wait("its last run is completing", RecheckInterval.SOON)
    later_start = _delay_requeued_job_start(c)
    if later_start is not None:
        return later_start
    last = c.last(StepKind.START_NOW)
    # Not by the Reason: until the scheduler has looked, that says None, or why the last run ended.
    begin_delayed = job.eligible is not None and job.eligible > c.now
    if (
        begin_delayed
        and last is not None
        and c.now >= add_seconds_within_bounds(last.started, c.policy.job.step_retry_s)
    ):
        # The delay came back: the update reached slurmctld before COMPLETING had cleared.
        if last.attempt < c.policy.job.step_attempts:
            # It may have run unseen, and that run may have ended in this second (see _release_job).
            wait_s = 0.0 if c.facts.ready == EARLIEST else _NEXT_SECOND_S
            return _make_job_start_step(c, last.attempt + 1, "the delay came back", wait_s)
        return c.wait("Slurm keeps its begin delay and starts the job then", RecheckInterval.SOON)
    if job.eligible and last is not None and _was_ordered_early(c, last, job.eligible):
        missed = add_seconds_within_bounds(job.eligible, c.facts.pass_s)
        if c.now < missed:
            return WaitDecision(
                min(missed, c.deadline), "it starts with its begin time", RecheckInterval.SOON
            )
        # A pass that looked at the job before it was due called for no other.
        return _make_job_start_step(
            c, last.attempt + 1, "no scheduling pass came with its begin time"
        )
    healed = set(job.excluded).intersection(c.facts.forgive)
    if healed and last is not None:
        # A job that needs every node, or this very one, would wait forever without it.
        ready = add_seconds_within_bounds(last.started, c.policy.job.step_retry_s)
        if c.now < ready:
            return WaitDecision(ready, "its excluded node is back", RecheckInterval.SOON)
        return _make_job_start_step(c, last.attempt + 1, f"{','.join(sorted(healed))} has healed")
    waits = job.reason or job.state
    return c.wait(f"in the queue ({waits})", look=_choose_queue_poll_interval(job))


def _delay_requeued_job_start(c: _Case) -> Next | None:
    """Return what to do of a job that is not to start yet; None where it is."""
    put_off = _describe_begin_time_delay(c)
    return c.wait(put_off, RecheckInterval.SLOWLY) if put_off else _plan_job_start_backoff(c)


def _describe_begin_time_delay(c: _Case) -> str:
    """Return until when a person has put the job off; "" where none has."""
    until = find_user_postponed_begin_time(c.rec, c.facts.job, c.now)
    return f"a person has put it off until {until:%Y-%m-%d %H:%M:%S} UTC" if until else ""


def _plan_job_start_backoff(c: _Case) -> Next | None:
    """Wait for the backoff's end, and have slurmctld look at the job then: its own next pass may be
    half a minute later. None where there is no backoff, or it is over."""
    job, last = c.facts.job, c.last(StepKind.START_NOW)
    assert job is not None
    if c.rec.start_at is None or last is None or last.started >= c.rec.start_at:
        return None
    if compute_remaining_backoff_s(c.rec, c.facts, c.now) > 0:
        return WaitDecision(
            min(c.rec.start_at, c.deadline), f"backs off until {c.rec.start_at:%H:%M:%S}"
        )
    early = c.facts.hardware and c.now < c.rec.start_at
    over = job.eligible is not None and job.eligible <= c.now
    if (early and over) or last.attempt >= c.policy.job.step_attempts:
        return None
    ready = add_seconds_within_bounds(last.started, c.policy.job.step_retry_s)
    if early and c.now < ready:
        return WaitDecision(ready, "a node that it ran on is faulty: no backoff is called for")
    why = "no backoff for a fault of the hardware" if early else "its backoff is over"
    return _make_job_start_step(c, last.attempt + 1, why)


def _choose_queue_poll_interval(job: SlurmJob) -> RecheckInterval:
    """Return how soon to look again: a job that waits for nodes may wait for hours; one that waits
    for the pass, not long."""
    return (
        RecheckInterval.SOON if job.reason in ("", "None", "BeginTime") else RecheckInterval.SLOWLY
    )


def _advance_restart_verification(c: _Case) -> Next:
    job = c.facts.job
    assert job is not None
    if job.state in ENDED_BADLY:
        return RecoveryPhaseMove(
            JobRecoverySignal.FAILED_AGAIN,
            f"{job.state} with exit code {job.exit_code} after restart",
        )
    # A launch that a node refused is a restart, too: it came before the run that was seen.
    is_new_run = job.start is None or job.start > c.rec.since
    if job.restarts > c.rec.attempt.restarts + 1 and is_new_run:
        again = (
            JobRecoverySignal.REQUEUED_AGAIN
            if _can_restart_requeued_job_again(c)
            else JobRecoverySignal.FAILED_AGAIN
        )
        return RecoveryPhaseMove(again, REQUEUED_BEFORE_PROOF)
    if c.facts.asks:
        return RecoveryPhaseMove(JobRecoverySignal.FAILED_AGAIN, c.facts.asks)
    if job.running and job.configuring:
        return c.wait("its nodes are being made ready (CONFIGURING)", RecheckInterval.SLOWLY)
    # slurmctld sets the start again when nodes that it powered up for the job are ready.
    began = max(c.rec.since, job.start) if job.running and job.start else c.rec.since
    proved = add_seconds_within_bounds(began, c.policy.job.prove_s)
    if job.running and c.now >= proved:
        return RecoveryPhaseMove(
            JobRecoverySignal.PROVED, f"ran {c.policy.job.prove_s:g} s on {','.join(job.nodes)}"
        )
    return WaitDecision(proved if c.now < proved else c.deadline, "running again; proving itself")


_MOST_REQUEUES: Final = 2
"""How often a recovery starts a run that Slurm requeued before it had proved itself. A run that
comes back more often is left to Slurm, whose begin delay slows it down."""


def _can_restart_requeued_job_again(c: _Case) -> bool:
    """Return whether a run in PROVING that is back in the queue is started again by this recovery.

    slurmctld 24.11 requeues a run that has just begun when the former host of its batch script
    registers after a reboot, and any release does where a node refuses the launch. The job then
    waits 121 s for nothing. Where its program failed, or another node did, this recovery is over.
    """
    job = c.facts.job
    if job is None or job.state != "PENDING" or job.exit_code not in ("", "0:0"):
        return False
    if job.is_held or job.is_held_at_launch:
        return False
    before = sum(move.signal == JobRecoverySignal.REQUEUED_AGAIN for move in c.rec.trail)
    return before < _MOST_REQUEUES and not (c.facts.asks or c.facts.node_failed_since)


PHASES: Final = {
    JobRecoveryPhase.HIT: _advance_affected_job_recovery,
    JobRecoveryPhase.EXCISING: _advance_node_removal_from_job,
    JobRecoveryPhase.WATCHING: _advance_supervisor_monitoring,
    JobRecoveryPhase.SAVING: _advance_checkpoint_save,
    JobRecoveryPhase.STOPPING: _advance_job_run_stop,
    JobRecoveryPhase.RELEASED: _hold_or_release_job,
    JobRecoveryPhase.STARTING: _advance_requeued_job_start,
    JobRecoveryPhase.PROVING: _advance_restart_verification,
}

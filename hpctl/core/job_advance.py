"""What moves a job recovery: facts in, a move, a step or a wait out. Total over open phases."""

from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hpctl.core.bounds import EARLIEST, later
from hpctl.core.job_recovery import BEFORE_STOP, JobRecovery, JobReport, Phase, Signal, Wish
from hpctl.core.model import ENDED_BADLY, NodeName, Outcome, OutcomeKind, SlurmJob
from hpctl.core.policy import Policy
from hpctl.core.recovery import (
    Do,
    Look,
    Move,
    Next,
    Repeat,
    StepKind,
    Wait,
    attempt_step,
    in_time,
    last_step,
)


class JobFacts(Struct, frozen=True):
    """What is known now of the job that a recovery treats.

    `cordoned`: its bad nodes are closed, so a requeue cannot land there again. `node_stops_it`:
    the node recovery will set the node DOWN, which stops the job; otherwise we requeue it.
    `called_off`: that node recovery has ended, and hpctl keeps none of the bad nodes closed.
    `exclude`: its bad nodes that are under treatment now. `forgive`: nodes that hpctl excluded
    for this job before and that have healed since. `gone`: its bad nodes hold it no more.
    `headless`: the node of its batch script is lost. `report`: the newest of its supervisor
    since the recovery opened. `asks`: what the run that follows wishes. `hardware`: a node that it
    ran on is under treatment, so that no
    backoff is called for. `elastic`: its policy has a range of nodes. `able_since`: see `View`.
    `ready`: when slurmds take the credential of its next run.
    """

    job: SlurmJob | None = None
    cordoned: bool = False
    node_stops_it: bool = False
    called_off: bool = False
    exclude: tuple[NodeName, ...] = ()
    forgive: tuple[NodeName, ...] = ()
    gone: bool = False
    headless: bool = False
    report: JobReport | None = None
    asks: str = ""
    hardware: bool = False
    elastic: bool = False
    able_since: datetime | None = None
    ready: datetime = EARLIEST


def advance(rec: JobRecovery, facts: JobFacts, policy: Policy, now: datetime) -> Next:
    """What the facts make of a job recovery: a move, a step, or waiting. Total, open phases."""
    deadline = later(rec.since, deadline_s(rec.phase, policy))
    deadline = in_time(deadline, facts.able_since, policy.ages.silent_s)
    answer = _ended(rec, facts) or _PHASES[rec.phase](rec, facts, policy, now, deadline)
    if isinstance(answer, Wait):
        if now >= deadline:
            return Move(Signal.DEADLINE, f"{rec.phase} for too long: {answer.why}")
        return replace(answer, until=min(answer.until, deadline))
    return answer


def deadline_s(phase: Phase, policy: Policy) -> float:
    """How long a phase may last, in seconds."""
    job = policy.job
    return {
        Phase.HIT: job.stop_deadline_s,
        Phase.EXCISING: job.stop_deadline_s,
        Phase.WATCHING: job.supervisor_grace_s + job.step_retry_s,
        Phase.SAVING: job.save_grace_s + job.step_retry_s,
        Phase.STOPPING: job.stop_deadline_s,
        Phase.RELEASED: job.release_deadline_s,
        Phase.STARTING: job.start_deadline_s,
        Phase.PROVING: job.prove_deadline_s,
    }[phase]


_REQUEUED: Final = frozenset({Phase.RELEASED, Phase.STARTING, Phase.PROVING})
"""Phases in which slurmctld has requeued the run, and may have died before it saved that."""


def _ended(rec: JobRecovery, facts: JobFacts) -> Move | None:
    """Ends that may come in any phase, and a run that began, or came back, without our help."""
    job = facts.job
    if job is None:
        return Move(Signal.GONE, "slurmctld does not know the job any more")
    if job.submit < rec.attempt.submit or job.restarts < rec.attempt.restarts:
        return Move(Signal.GONE, "the job id belongs to another submission now")
    if job.state == "COMPLETED" and not job.completing:
        return Move(Signal.FINISHED, "the job completed")
    if job.state in ("CANCELLED", "TIMEOUT", "DEADLINE", "PREEMPTED"):
        return Move(Signal.GONE, f"the job ended as {job.state}: not ours to run again")
    if facts.called_off and job.running and rec.phase in BEFORE_STOP and not rec.crippled:
        return Move(Signal.CALLED_OFF, "its node's recovery ended, and the job runs")
    later_run = job.restarts > rec.attempt.restarts
    if rec.phase is not Phase.PROVING and later_run and job.state == "RUNNING":
        return Move(Signal.RUNNING_SEEN, f"running on {','.join(job.nodes)}")
    # A run that is there and runs is left alone: its node may be somebody else's by now.
    again = rec.phase in _REQUEUED and job.restarts == rec.attempt.restarts
    if again and job.state in ENDED_BADLY and not job.completing:
        return Move(Signal.STOP_WANTED, "slurmctld came back with a state from before the requeue")
    return None


def _repeat(policy: Policy) -> Repeat:
    return Repeat(policy.job.step_retry_s, policy.job.step_attempts, policy.job.step_retry_s)


def _hit(
    rec: JobRecovery, facts: JobFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    if not facts.cordoned:
        return Wait(deadline, "its node is not closed to new work yet", look=Look.SOON)
    job = facts.job
    if rec.supervised and job is not None and job.running and not facts.headless:
        return Move(Signal.SUPERVISED, "its own supervisor restarts its step without the node")
    if rec.save_signal and job is not None and job.running and policy.job.save_grace_s > 0:
        return Move(Signal.SAVE_WANTED, f"the job asked to save at {rec.save_signal}")
    return Move(Signal.STOP_WANTED, "it cannot go on where it is")


def _excising(
    rec: JobRecovery, facts: JobFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    job = facts.job
    if job is None or not job.running:
        return Move(Signal.STOP_WANTED, "it did not outlive its node")
    if facts.headless:
        return Move(Signal.STOP_WANTED, "the node of its batch script is lost")
    if facts.gone:
        return Move(Signal.EXCISED, f"it runs on {','.join(job.nodes)}")
    if facts.node_stops_it:
        return Wait(deadline, "its node is about to be set DOWN", look=Look.SOON)
    return Move(Signal.STOP_WANTED, "its node cannot be taken away from it")


def _watching(
    rec: JobRecovery, facts: JobFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    job, report = facts.job, facts.report
    if job is None or not job.running:
        return Move(Signal.STOP_WANTED, "it stopped by itself")
    if facts.headless:
        return Move(Signal.STOP_WANTED, "the node of its batch script is lost")
    if report is not None and report.wish is Wish.REQUEUE:
        return Move(Signal.STOP_WANTED, f"its supervisor asks for a requeue: {report.why}")
    if report is not None:
        return Move(Signal.WENT_ON, report.why or f"its supervisor answered with {report.action}")
    grace = later(rec.since, policy.job.supervisor_grace_s)
    if now >= grace:
        silence = f"no report from its supervisor for {policy.job.supervisor_grace_s:g} s"
        return Move(Signal.STOP_WANTED, silence)
    return Wait(grace, "its supervisor has a moment to restart its step", look=Look.SLOWLY)


def _saving(
    rec: JobRecovery, facts: JobFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    if facts.job is None or not facts.job.running:
        return Move(Signal.SAVE_OVER, "the job ended while saving")
    grace = later(rec.since, policy.job.save_grace_s)
    if now >= grace:
        return Move(Signal.SAVE_OVER, "the grace to save is over")
    # A signal is felt each time: one in doubt counts as sent.
    if last_step(rec.steps, StepKind.SIGNAL) is None:
        return Do(StepKind.SIGNAL, rec.save_signal, 1, "save a checkpoint")
    return Wait(grace, f"the job saves ({rec.save_signal})", look=Look.SOON)


def _stopping(
    rec: JobRecovery, facts: JobFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    job = facts.job
    assert job is not None  # _ended has answered for a job that is gone
    if job.completing:
        return Wait(deadline, "COMPLETING: requeueing now can crash slurmctld", look=Look.SOON)
    if job.state == "PENDING":
        return Move(Signal.QUEUED, "the job is back in the queue")
    if job.running and facts.node_stops_it:
        return Wait(deadline, "its node is about to be set DOWN, which requeues it", look=Look.SOON)
    goes_on = _goes_on(rec, facts)
    if goes_on:
        return Move(Signal.WENT_ON, goes_on)
    answer = attempt_step(rec.steps, StepKind.REQUEUE, str(job.id), _repeat(policy), now)
    if not isinstance(answer, Outcome):
        return answer
    return Move(Signal.REFUSED, f"slurmctld will not requeue it: {answer.code} {answer.detail}")


def _goes_on(rec: JobRecovery, facts: JobFacts) -> str:
    """What its supervisor reported since it was given up, or had wished to leave: "" if nothing.

    The requeue may be late: paused, or refused, or in doubt. A mere sign of life takes no wish
    back, and no report helps a run that has lost its batch script.
    """
    job, report = facts.job, facts.report
    its_own = rec.crippled or rec.trouble is not None
    if not its_own or facts.headless or job is None or not job.running:
        return ""
    if report is None or report.wish is not Wish.NONE or not (report.trouble or report.why):
        return ""
    return report.why or f"its supervisor answered with {report.action}"


def _released(
    rec: JobRecovery, facts: JobFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    step = _holding if rec.over_budget else _releasing
    return step(rec, facts, policy, now, deadline)


def _holding(
    rec: JobRecovery, facts: JobFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    """RELEASED with a budget spent: held."""
    if _accepted(rec, StepKind.HOLD):
        return Move(Signal.HELD, rec.over_budget)
    return _order(rec, StepKind.HOLD, policy, now, deadline)


def _releasing(
    rec: JobRecovery, facts: JobFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    """RELEASED otherwise: started as soon as its last run has cleared."""
    wait_s = _backoff_s(rec, facts, now)
    if _accepted(rec, StepKind.START_NOW):
        until = f"it backs off until {rec.start_at:%H:%M:%S} UTC" if wait_s > 0 else ""
        return Move(Signal.STARTED, until or "its begin delay is gone, bad nodes are excluded")
    if facts.job is not None and facts.job.completing:
        return Wait(deadline, "its last run is completing", look=Look.SOON)
    answer = _order(rec, StepKind.START_NOW, policy, now, deadline)
    if not isinstance(answer, Do):
        return answer
    if now < facts.ready:
        why = "its nodes kill a job that comes back in the second it was ended in"
        return Wait(facts.ready, why)
    return replace(_start(facts, answer), after_s=wait_s)


def _order(
    rec: JobRecovery, kind: StepKind, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    """The step again, where its last attempt is of a phase before or may be repeated."""
    last, job = last_step(rec.steps, kind), str(rec.attempt.job)
    if last is not None and last.started < rec.since:
        return Do(kind, job, last.attempt + 1, rec.over_budget)
    if last is not None and last.outcome is not None and last.outcome.code == "not_pending":
        return Wait(deadline, "no longer pending", look=Look.SOON)
    answer = attempt_step(rec.steps, kind, job, _repeat(policy), now, rec.over_budget)
    if not isinstance(answer, Outcome):
        return answer
    return Move(Signal.REFUSED, f"slurmctld will not {kind} it: {answer.code} {answer.detail}")


def _accepted(rec: JobRecovery, kind: StepKind) -> bool:
    """Whether slurmctld has accepted this step in this phase."""
    last = last_step(rec.steps, kind)
    return (
        last is not None
        and last.started >= rec.since
        and last.outcome is not None
        and last.outcome.kind is OutcomeKind.ACCEPTED
    )


def _start(facts: JobFacts, do: Do) -> Do:
    """A START_NOW with what the facts say of where, and how large."""
    return replace(do, exclude=facts.exclude, forgive=facts.forgive, elastic=facts.elastic)


def _backoff_s(rec: JobRecovery, facts: JobFacts, now: datetime) -> float:
    """Seconds that the job has to wait still, from now. None for a fault of the hardware."""
    if rec.start_at is None or facts.hardware:
        return 0.0
    return max((rec.start_at - now).total_seconds(), 0.0)


def _starting(
    rec: JobRecovery, facts: JobFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    job = facts.job
    assert job is not None
    if job.state in ENDED_BADLY and not job.completing:
        return Move(Signal.REFUSED, f"it ended as {job.state} before it was seen running")
    if job.completing:
        # It ran unseen, and was requeued again: slurmctld takes no start before that has cleared.
        return Wait(deadline, "its last run is completing", look=Look.SOON)
    backoff = _backing_off(rec, facts, policy, now, deadline)
    if backoff is not None:
        return backoff
    last = last_step(rec.steps, StepKind.START_NOW)
    # Not by the Reason: until the scheduler has looked, that says None, or why the last run ended.
    begin_delayed = job.eligible is not None and job.eligible > now
    if begin_delayed and last is not None and now >= later(last.started, policy.job.step_retry_s):
        # The delay came back: the update reached slurmctld before COMPLETING had cleared.
        if last.attempt < policy.job.step_attempts:
            again = last.attempt + 1
            why = "the delay came back"
            return _start(facts, Do(StepKind.START_NOW, str(job.id), again, why))
        return Wait(
            deadline, "Slurm keeps its begin delay; the job starts by itself", look=Look.SOON
        )
    healed = set(job.excluded).intersection(facts.forgive)
    if healed and last is not None and last.attempt < policy.job.step_attempts:
        # A job that needs every node, or this very one, would wait for ever without it.
        ready = later(last.started, policy.job.step_retry_s)
        if now < ready:
            return Wait(ready, "its excluded node is back", look=Look.SOON)
        why = f"{','.join(sorted(healed))} has healed"
        again = last.attempt + 1
        return _start(facts, Do(StepKind.START_NOW, str(job.id), again, why))
    waits = job.reason or job.state
    return Wait(deadline, f"in the queue ({waits})", look=_in_queue(job))


def _backing_off(
    rec: JobRecovery, facts: JobFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next | None:
    """Wait for the backoff's end, and have slurmctld look at the job then: by itself it would do
    so at its next pass, up to half a minute later. None where there is no backoff (any more)."""
    job, last = facts.job, last_step(rec.steps, StepKind.START_NOW)
    assert job is not None
    if rec.start_at is None or last is None or last.started >= rec.start_at:
        return None
    if _backoff_s(rec, facts, now) > 0:
        return Wait(min(rec.start_at, deadline), f"backs off until {rec.start_at:%H:%M:%S}")
    early = facts.hardware and now < rec.start_at
    over = job.eligible is not None and job.eligible <= now
    if (early and over) or last.attempt >= policy.job.step_attempts:
        return None
    ready = later(last.started, policy.job.step_retry_s)
    if early and now < ready:
        return Wait(ready, "a node that it ran on is faulty: no backoff is called for")
    why = "no backoff for a fault of the hardware" if early else "its backoff is over"
    again = last.attempt + 1
    return _start(facts, Do(StepKind.START_NOW, str(job.id), again, why))


def _in_queue(job: SlurmJob) -> Look:
    """A job that waits for nodes may wait for hours; one that waits for the pass, not long."""
    return Look.SOON if job.reason in ("", "None", "BeginTime") else Look.SLOWLY


def _proving(
    rec: JobRecovery, facts: JobFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    job = facts.job
    assert job is not None
    if job.state in ENDED_BADLY:
        return Move(
            Signal.FAILED_AGAIN, f"{job.state} with exit code {job.exit_code} after restart"
        )
    proved = later(rec.since, policy.job.prove_s)
    if job.restarts > rec.attempt.restarts + 1:
        return Move(Signal.FAILED_AGAIN, "requeued once more before it had proved itself")
    if facts.asks:
        return Move(Signal.FAILED_AGAIN, facts.asks)
    if job.running and now >= proved:
        return Move(Signal.PROVED, f"ran {policy.job.prove_s:g} s on {','.join(job.nodes)}")
    return Wait(proved if now < proved else deadline, "running again; proving itself")


_PHASES: Final = {
    Phase.HIT: _hit,
    Phase.EXCISING: _excising,
    Phase.WATCHING: _watching,
    Phase.SAVING: _saving,
    Phase.STOPPING: _stopping,
    Phase.RELEASED: _released,
    Phase.STARTING: _starting,
    Phase.PROVING: _proving,
}

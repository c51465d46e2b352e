"""What moves a node recovery: one pure function, one small one for each phase.

Looking comes before doing: a phase first asks whether its effect is already there to be seen,
and only then for the step. So a repeat, a restart and a second actor need no code of their own.
"""

from datetime import datetime
from typing import Final

from msgspec.structs import replace

from hpctl.core.bounds import later
from hpctl.core.model import (
    Assessment,
    Condition,
    Generation,
    InstanceStatus,
    Outcome,
    OutcomeKind,
    Remedy,
    Urgency,
    reason_owner,
)
from hpctl.core.node_actors import (
    NodeFacts,
    attempt,
    forgotten,
    marked,
    repeat,
    replacement_asked,
    returning,
    seized,
    unasked,
)
from hpctl.core.node_recovery import NodeRecovery, Phase, Signal
from hpctl.core.policy import Mode, Policy, Unrecoverable
from hpctl.core.recovery import (
    Do,
    Look,
    Move,
    Next,
    StepKind,
    Wait,
    answer_text,
    attempt_step,
    in_time,
    last_step,
    taken_over,
)


def advance(rec: NodeRecovery, facts: NodeFacts, policy: Policy, now: datetime) -> Next:
    """What the facts make of a recovery: a move, a step, or waiting. Total over open phases."""
    deadline = in_time(deadline_of(rec, policy), facts.able_since, policy.ages.silent_s)
    answer = marked(rec, facts, policy, now) or forgotten(rec, facts, policy, now)
    answer = answer or seized(rec, facts, policy) or _withdraw(rec, facts, policy, now)
    answer = answer or _PHASES[rec.phase](rec, facts, policy, now, deadline)
    if isinstance(answer, Wait):
        if now >= deadline:
            signal = Signal.REBOOT_IN_VAIN if _may_climb(rec) else Signal.DEADLINE
            return Move(signal, f"{rec.phase} for too long: {answer.why}")
        return replace(answer, until=min(answer.until, deadline))
    return answer


def _may_climb(rec: NodeRecovery) -> bool:
    """Whether a reboot of ours is what was waited for in vain, and a stronger remedy is left."""
    waited = rec.phase in (Phase.REMEDYING, Phase.REJOINING)
    ours = last_step(rec.steps, StepKind.REBOOT) is not None and rec.remedy is Remedy.REBOOT
    return waited and ours and rec.rung + 1 < len(rec.ladder)


def deadline_of(rec: NodeRecovery, policy: Policy) -> datetime:
    """When the phase that a recovery is in has lasted too long."""
    return later(rec.since, _deadline_s(rec, policy))


def _deadline_s(rec: NodeRecovery, policy: Policy) -> float:
    node = policy.node
    after_jobs = rec.urgency is Urgency.AFTER_JOBS
    waits_for_jobs = after_jobs or node.unrecoverable_jobs is Unrecoverable.WAIT
    reboot = last_step(rec.steps, StepKind.REBOOT) is not None and rec.remedy is not Remedy.REPLACE
    return {
        Phase.OPEN: node.cordon_deadline_s,
        Phase.CORDONED: node.vacate_after_jobs_deadline_s
        if waits_for_jobs
        else node.vacate_deadline_s,
        Phase.VACATED: node.replace_deadline_s,
        Phase.REMEDYING: node.reboot_deadline_s if reboot else node.replace_deadline_s,
        Phase.REJOINING: node.rejoin_deadline_s,
        Phase.VERIFYING: node.verify_deadline_s,
    }[rec.phase]


def _withdraw(rec: NodeRecovery, facts: NodeFacts, policy: Policy, now: datetime) -> Next | None:
    """Give the node back where its fault is a mass event's and no remedy has begun."""
    back = returning(rec)
    early = rec.phase in (Phase.OPEN, Phase.CORDONED, Phase.VACATED)
    if not early or facts.mark or not (facts.correlated or back):
        return None
    if rec.phase is Phase.OPEN:
        started = last_step(rec.steps, StepKind.DRAIN) is not None
        return None if started else Move(Signal.WITHDRAWN, facts.correlated)
    node = facts.slurm
    if back and node is not None and node.in_service:
        return Move(Signal.WITHDRAWN, facts.correlated or "given back")
    answer = attempt(rec, StepKind.RETURN, policy, now)
    if not isinstance(answer, Outcome):
        return answer
    return Move(Signal.NEEDS_HUMAN, f"slurmctld will not resume the node: {answer_text(answer)}")


def _open(
    rec: NodeRecovery, facts: NodeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    node = facts.slurm
    if node is not None and node.drained and reason_owner(node.reason) == rec.id:
        return Move(Signal.CORDON_SEEN, "slurmctld shows DRAIN with our Reason")
    if facts.mark and policy.mode is Mode.ASSIST:
        return Move(Signal.CORDON_SEEN, f"{facts.mark} closes it, and HyperPod acts on that")
    last = last_step(rec.steps, StepKind.DRAIN)
    outcome = last.outcome if last is not None else None
    if outcome is not None and outcome.kind is OutcomeKind.ACCEPTED and node is not None:
        # slurmctld drains before it answers, so this view is of a node that was drained: to
        # drain it again would be to overrule whoever was as quick as that.
        how = taken_over(node, rec.id)
        return Move(Signal.OPERATOR_TOOK_OVER, f"{how} at once")
    answer = attempt_step(rec.steps, StepKind.DRAIN, rec.node, repeat(policy), now, rec.meaning)
    if isinstance(answer, Do):
        return replace(answer, spare_mark=policy.mode is Mode.ASSIST)
    if isinstance(answer, Wait):
        return answer
    if answer.code == "foreign_drain":
        return Move(Signal.OPERATOR_TOOK_OVER, f"drained by somebody else: {answer.detail}")
    return Move(Signal.NEEDS_HUMAN, f"slurmctld will not drain the node: {answer_text(answer)}")


def _cordoned(
    rec: NodeRecovery, facts: NodeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    node = facts.slurm
    lost = node is not None and (node.down or not node.responding)
    if not facts.running and not facts.completing:
        return Move(Signal.JOBS_GONE, "no job holds the node")
    if rec.urgency is not Urgency.NOW and not facts.taken_away:
        return Wait(deadline, f"{len(facts.running)} job(s) may finish on the node")
    if node is not None and node.down and not facts.running:
        return Wait(deadline, "jobs are completing", look=Look.SOON)
    stay = [j for j in facts.running if not j.recoverable]
    if stay and policy.node.unrecoverable_jobs is Unrecoverable.WAIT and not lost:
        return Wait(deadline, f"job {stay[0].id} cannot be requeued (Requeue=0 or not a batch job)")
    blocked = [j for j in facts.running if j.recoverable and j.id not in facts.movable]
    if blocked:
        return Wait(deadline, f"job {blocked[0].id} is not ready to be stopped", look=Look.SOON)
    if not facts.running and not lost:
        return Wait(deadline, "jobs are completing", look=Look.SOON)
    ripe = later(rec.opened, policy.node.disturb_after_s)
    if now < ripe and not lost:
        return Wait(ripe, "a moment for other nodes to report the same", look=Look.SOON)
    # DOWN after DRAIN: slurmctld requeues the jobs at once and drops the node from their
    # completing set; DRAIN keeps it closed when its slurmd registers again (facts/recovery 2.4).
    # FAIL keeps it closed as well, and its Reason is left to the service that reads it.
    answer = attempt(rec, StepKind.DOWN, policy, now, rec.meaning, facts.mark)
    if isinstance(answer, Do):
        return replace(answer, reason=facts.mark)
    if isinstance(answer, Wait):
        return answer
    if answer.code == "not_ours":
        return Move(Signal.OPERATOR_TOOK_OVER, f"no longer drained by us: {answer.detail}")
    return Move(Signal.NEEDS_HUMAN, f"slurmctld will not set the node down: {answer_text(answer)}")


def _vacated(
    rec: NodeRecovery, facts: NodeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    if rec.rung >= len(rec.ladder):
        return Move(Signal.NEEDS_HUMAN, "every remedy of the ladder was tried")
    if rec.remedy is Remedy.AWAIT or facts.taken_away:
        return Move(Signal.REMEDY_ACCEPTED, "the provider takes the instance and brings another")
    if rec.remedy is Remedy.NONE:
        return Move(Signal.NOTHING_TO_REMEDY, "nothing has to be done to the instance")
    if rec.remedy is Remedy.ASK_HUMAN:
        return Move(Signal.NEEDS_HUMAN, f"{rec.rule} needs a person: {rec.meaning}")
    if facts.blocked:
        return Wait(deadline, facts.blocked)
    if not facts.provider_present:
        return Move(Signal.NEEDS_HUMAN, "no provider: reboot or replace the node, then return it")
    if policy.mode is Mode.OBSERVE:
        return Wait(deadline, "mode observe: nothing is done", look=Look.SLOWLY)
    if policy.mode is not Mode.OWN:
        return Move(Signal.REMEDY_ACCEPTED, f"mode {policy.mode}: left to HyperPod's own recovery")
    if not facts.provider_fresh:
        return Wait(deadline, "the cloud's view is too old to act on", look=Look.SLOWLY)
    return _remedy(rec, facts, policy, now, deadline)


def _remedy(
    rec: NodeRecovery, facts: NodeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    """Reboot or replace, by instance id: the id is the idempotency token the API lacks."""
    kind = StepKind.REPLACE if rec.remedy is Remedy.REPLACE else StepKind.REBOOT
    instance, last = facts.instance, last_step(rec.steps, kind)
    if instance is not None and instance.id != rec.generation.instance:
        return Move(Signal.REMEDY_ACCEPTED, f"the node is instance {instance.id} already")
    mine = last is not None and last.target == rec.generation.instance
    if mine and last is not None and last.outcome is not None and not last.in_doubt:
        if last.outcome.kind is OutcomeKind.ACCEPTED:
            return Move(Signal.REMEDY_ACCEPTED, f"the service accepted to {kind} {last.target}")
        if last.outcome.code == "InstanceIdInUse":
            return Move(Signal.REMEDY_ACCEPTED, "the service already acts on the instance")
    if kind is StepKind.REBOOT and mine and _rebooted(rec, facts):
        return Move(Signal.REMEDY_ACCEPTED, "the boot id changed since the reboot was asked for")
    if instance is None or instance.status not in (InstanceStatus.RUNNING, InstanceStatus.FAILURE):
        state = instance.status if instance else "not in the cloud's list"
        why = facts.unjoined or f"instance {rec.generation.instance} is {state}"
        return Wait(deadline, why, look=Look.SLOWLY)
    ripe = later(rec.opened, policy.node.remedy_after_s)
    if now < ripe and not rec.by:
        return Wait(ripe, "a moment for other nodes to report the same")
    answer = attempt_step(
        rec.steps, kind, rec.generation.instance, repeat(policy), now, rec.meaning
    )
    if not isinstance(answer, Outcome):
        return answer
    if answer.code == "InstanceIdNotFound":
        return Wait(deadline, f"{rec.generation.instance} is gone; its successor is not listed yet")
    if answer.transient and last is not None:
        # Throttling lasts minutes, an update of the cluster longer: the phase's deadline ends it.
        again = later(last.resolved or last.started, policy.node.doubt_window_s)
        if now < again:
            return Wait(again, f"cannot {kind} it for now: {answer_text(answer)}", look=Look.SLOWLY)
        return Do(kind, rec.generation.instance, last.attempt + 1, rec.meaning)
    return Move(
        Signal.NEEDS_HUMAN, f"cannot {kind} {rec.generation.instance}: {answer_text(answer)}"
    )


def _rebooted(rec: NodeRecovery, facts: NodeFacts) -> bool:
    heard = facts.heard
    return (
        heard is not None
        and heard.instance == rec.generation.instance
        and heard.boot != rec.generation.boot
    )


def _remedying(
    rec: NodeRecovery, facts: NodeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    fresh = new_generation(rec, facts)
    if fresh is not None:
        return Move(Signal.NEW_GENERATION_SEEN, f"instance {fresh.instance}, boot {fresh.boot}")
    message = (facts.instance.message if facts.instance else "") or unasked(rec, policy)
    return Wait(
        deadline, f"waiting for the node's new generation. {message}".strip(), look=Look.SLOWLY
    )


def new_generation(rec: NodeRecovery, facts: NodeFacts) -> Generation | None:
    """The generation that follows the one treated, if one is there to be seen.

    The agent's own word (new boot id, perhaps new instance id) is the proof, unless the cloud
    still calls that instance the old one.
    """
    heard, old = facts.heard, rec.generation
    if heard is None or heard == old or heard.boot == old.boot:
        return None
    if facts.instance is not None and facts.instance.id != heard.instance:
        return None
    if rec.remedy is Remedy.REPLACE and heard.instance == old.instance and facts.provider_present:
        return None
    return heard


def _rejoining(
    rec: NodeRecovery, facts: NodeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    again = new_generation(rec, facts)
    if again is not None:
        return Move(Signal.NEW_GENERATION_SEEN, f"instance {again.instance}, boot {again.boot}")
    node, instance = facts.slurm, facts.instance
    if facts.provider_present and (
        instance is None or instance.status is not InstanceStatus.RUNNING
    ):
        state = instance.status if instance else "missing"
        return Wait(deadline, f"the cloud calls the instance {state}", look=Look.SLOWLY)
    if node is None or node.down or not node.responding:
        return Wait(deadline, "its slurmd has not registered yet", look=Look.SLOWLY)
    return Move(Signal.REJOINED, "the cloud says Running, the agent reports, slurmd registered")


def _verifying(
    rec: NodeRecovery, facts: NodeFacts, policy: Policy, now: datetime, deadline: datetime
) -> Next:
    node, judged = facts.slurm, facts.assessment
    if node is not None and node.in_service:
        return Move(Signal.RETURN_SEEN, "slurmctld shows the node in service")
    if not returning(rec):
        if facts.heard != rec.generation or judged is None:
            return Wait(deadline, "waiting for the agent of this generation", look=Look.SLOWLY)
        new = not facts.mark and _since(judged, rec)
        if judged.condition is Condition.FAULTY and new:
            return Move(Signal.FAULT_AGAIN, f"still faulty: {judged.why}")
        if judged.condition is not Condition.HEALTHY and new:
            if replacement_asked(rec, policy):
                why = (
                    f"HyperPod's health agent asked for a replacement, and it is {judged.condition}"
                )
                return Move(Signal.FAULT_AGAIN, f"{why}: {judged.why}")
            return Wait(deadline, f"{judged.condition}: {judged.why}", look=Look.SLOWLY)
        healthy = later(rec.since, policy.node.verify_healthy_s)
        if now < healthy:
            return Wait(healthy, "healthy so far", look=Look.SLOWLY)
    answer = attempt(rec, StepKind.RETURN, policy, now)
    if not isinstance(answer, Outcome):
        return answer
    if answer.code == "not_ours":
        return Move(Signal.OPERATOR_TOOK_OVER, f"no longer ours to return: {answer.detail}")
    return Move(Signal.NEEDS_HUMAN, f"slurmctld will not resume the node: {answer_text(answer)}")


def _since(judged: Assessment, rec: NodeRecovery) -> bool:
    """Whether an assessment rests on anything newer than the recovery's own opening.

    A node returned by hand on the same boot still carries the findings it was drained for.
    """
    if judged.generation != rec.opened_for:
        return True
    return any(f.last > rec.opened for f in judged.findings)


_PHASES: Final = {
    Phase.OPEN: _open,
    Phase.CORDONED: _cordoned,
    Phase.VACATED: _vacated,
    Phase.REMEDYING: _remedying,
    Phase.REJOINING: _rejoining,
    Phase.VERIFYING: _verifying,
}

"""What moves a node recovery: one pure function, one small one for each phase.

Looking comes before doing: a phase first asks whether its effect is already there to be seen,
and only then for the step. So a repeat, a restart and a second actor need no code of their own.
"""

from datetime import datetime
from typing import Final

from msgspec.structs import replace

from hpctl.engine.node_deadlines import (
    find_blocked_remedy_phase_deadline,
    find_node_recovery_phase_deadline,
)
from hpctl.engine.node_history import (
    ORDERS,
    find_last_instance_order,
    has_evidence_newer_than_recovery,
    has_unresolved_instance_order,
    is_node_being_returned,
    may_have_begun_remedy,
    suggest_hyperpod_remedy_command,
)
from hpctl.faults import health
from hpctl.nodes import maintenance
from hpctl.nodes.actors import (
    NodeCase,
    NodeFacts,
    attempt_node_step,
    detect_operator_takeover,
    end_interrupted_removal,
    handle_unlisted_node,
    is_replacement_still_requested,
    make_node_step_repeat_rule,
    record_health_agent_mark,
    resolve_step_answer,
    restore_drain_reason,
    restore_lost_drain,
)
from hpctl.nodes.before_remedy import NOTHING_BEFORE, PreRemedySteps
from hpctl.nodes.by_hand import explain_manual_order_refusal, resolve_refused_manual_order
from hpctl.nodes.testing import NO_TESTING, NodeTestFunctions
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary import reset_order
from hpctl.vocabulary.assessment import NodeCondition, Remedy, Urgency
from hpctl.vocabulary.cloud_facts import GONE, InstanceStatus
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.node_recovery import (
    SCALE_DOWN,
    NodeRecovery,
    NodeRecoveryPhase,
    NodeRecoverySignal,
)
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy, UnrecoverableJobAction
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.recovery import (
    Next,
    RecheckInterval,
    RecoveryDecisionContext,
    RecoveryPhaseMove,
    StepKind,
    StepStartDecision,
    WaitDecision,
    describe_node_takeover,
    extend_phase_deadline,
    find_last_step_attempt,
    format_call_outcome,
)


def advance_node_recovery(  # noqa: PLR0913 -- pure: all that decides is an argument
    rec: NodeRecovery,
    facts: NodeFacts,
    policy: RecoveryPolicy,
    now: datetime,
    testing: NodeTestFunctions = NO_TESTING,
    before: PreRemedySteps = NOTHING_BEFORE,
) -> Next:
    """Return what the facts make of a recovery: a move, a step, or waiting. Total over open
    phases."""
    held = bool(facts.blocked) and rec.phase is NodeRecoveryPhase.VACATED
    ends = (
        find_blocked_remedy_phase_deadline(rec, policy)
        if held
        else find_node_recovery_phase_deadline(rec, policy)
    )
    deadline = extend_phase_deadline(ends, facts.able_since, policy.ages.silent_s)
    c = RecoveryDecisionContext(
        rec, facts, policy, now, deadline, make_node_step_repeat_rule(policy)
    )
    changed = maintenance.find_maintenance_move(c)
    if changed:
        return changed
    by_others = (
        handle_unlisted_node(c)
        or end_interrupted_removal(c)
        or record_health_agent_mark(c)
        or restore_lost_drain(c)
        or restore_drain_reason(c)
        or detect_operator_takeover(c)
    )
    answer = (
        by_others or _return_node_without_remedy(c) or _advance_recovery_phase(c, testing, before)
    )
    return maintenance.limit_answer_during_maintenance(c, answer) or c.enforce_phase_deadline(
        answer, _choose_phase_timeout_signal(c)
    )


def _advance_recovery_phase(
    c: NodeCase, testing: NodeTestFunctions, before: PreRemedySteps
) -> Next:
    """Return what the phase of a recovery asks for."""
    phase = c.rec.phase
    if phase is NodeRecoveryPhase.VERIFYING:
        found = _detect_fault_after_maintenance(c) if c.rec.is_for_maintenance else None
        return found or _advance_node_verification(c, testing)
    if phase is NodeRecoveryPhase.VACATED:
        return _advance_vacated_node(c, before)
    if phase is NodeRecoveryPhase.ACCEPTING:
        return testing.accept(c)
    if phase is NodeRecoveryPhase.UNRESERVING:
        return testing.unreserve(c)
    return _PHASES[phase](c)


def _choose_phase_timeout_signal(c: NodeCase) -> NodeRecoverySignal:
    """Return what a wait that was too long means: a reset or reboot of ours in vain, where a
    stronger remedy is left. Of a node that Slurm has powered down it says nothing."""
    rec, node = c.rec, c.facts.slurm
    if node is not None and node.is_powered_down:
        return NodeRecoverySignal.DEADLINE
    waited = rec.phase in (
        NodeRecoveryPhase.REMEDYING,
        NodeRecoveryPhase.REJOINING,
    ) and rec.rung + 1 < len(rec.ladder)
    kind, signal = _OURS.get(rec.remedy, (None, NodeRecoverySignal.DEADLINE))
    ours = kind is not None and find_last_step_attempt(rec.steps, kind) is not None
    return signal if waited and ours else NodeRecoverySignal.DEADLINE


_OURS: Final = {
    Remedy.RESET_GPU: (StepKind.RESET, NodeRecoverySignal.RESET_IN_VAIN),
    Remedy.REBOOT: (StepKind.REBOOT, NodeRecoverySignal.REBOOT_IN_VAIN),
}


def _return_node_without_remedy(c: NodeCase) -> Next | None:
    """Give the node back where its fault is a mass event's and no remedy has begun, or where an
    order by hand is withdrawn or refused."""
    rec, facts, back = c.rec, c.facts, is_node_being_returned(c.rec)
    why = facts.correlated or facts.withdrawn or explain_manual_order_refusal(c)
    early = rec.phase in (
        NodeRecoveryPhase.OPEN,
        NodeRecoveryPhase.CORDONED,
        NodeRecoveryPhase.VACATED,
    )
    node = facts.slurm
    if not early or facts.mark or not (why or back) or may_have_begun_remedy(rec):
        return None
    if rec.phase is NodeRecoveryPhase.OPEN:
        started = c.last(StepKind.DRAIN) is not None
        if rec.rule == SCALE_DOWN and node is not None and not node.drained:
            started = False  # What drains it later all the same is undone then.
        return None if started else RecoveryPhaseMove(NodeRecoverySignal.WITHDRAWN, why)
    if rec.rule == SCALE_DOWN and _detect_deletion_order_outcome(c):
        return None
    if back and (node is None or not node.closed):
        return RecoveryPhaseMove(NodeRecoverySignal.WITHDRAWN, why or "given back")
    if c.policy.attended and node is not None and not node.responding:
        return RecoveryPhaseMove(
            NodeRecoverySignal.WITHDRAWN, f"{why}; its slurmd does not answer: it stays drained"
        )
    return resolve_step_answer(
        attempt_node_step(c, StepKind.RETURN), "resume the node", "no longer ours to return"
    )


def _advance_open_recovery(c: NodeCase) -> Next:
    node = c.facts.slurm
    if node is not None and node.drained and parse_recovery_id_from_reason(node.reason) == c.rec.id:
        return RecoveryPhaseMove(
            NodeRecoverySignal.CORDON_SEEN, "slurmctld shows DRAIN with our Reason"
        )
    if c.facts.mark and c.policy.mode is OperatingMode.ASSIST:
        return RecoveryPhaseMove(
            NodeRecoverySignal.CORDON_SEEN, f"{c.facts.mark} closes it, and HyperPod acts on that"
        )
    last = c.last(StepKind.DRAIN)
    if last is not None and last.accepted and node is not None:
        # slurmctld drains before it answers, so this view is of a node that was drained: to drain
        # it again would overrule an operator who acted since.
        how = describe_node_takeover(node, c.rec.id)
        return RecoveryPhaseMove(NodeRecoverySignal.OPERATOR_TOOK_OVER, f"{how} at once")
    answer = c.attempt(StepKind.DRAIN, c.rec.node, c.rec.meaning)
    if isinstance(answer, StepStartDecision):
        return replace(answer, spare_mark=c.policy.mode is OperatingMode.ASSIST)
    return resolve_step_answer(answer, "drain the node", "drained by another operator or tool")


def _advance_cordoned_node(c: NodeCase) -> Next:
    node = c.facts.slurm
    lost = node is not None and (node.down or not node.responding)
    if c.rec.is_for_maintenance:
        return _advance_maintenance_cordon(c)
    if not c.facts.running and not c.facts.completing:
        return RecoveryPhaseMove(NodeRecoverySignal.JOBS_GONE, "no job holds the node")
    if c.policy.attended and c.rec.urgency is Urgency.NOW:
        return RecoveryPhaseMove(NodeRecoverySignal.JOBS_GONE, "its jobs are not waited for")
    return _wait_for_node_jobs(c, lost=lost) or _set_node_down(c, lost=lost)


def _advance_maintenance_cordon(c: NodeCase) -> Next:
    """Wait for the jobs, which their own recoveries move, and for the window to begin and end."""
    if c.facts.running:
        first = c.facts.running[0].shown
        return c.wait(f"job {first} is on the node", RecheckInterval.SLOWLY)
    if c.facts.completing:
        return c.wait("jobs are completing", RecheckInterval.SLOWLY)
    if c.facts.begins is not None and not c.rec.was_in_maintenance:
        at = c.facts.begins
        return WaitDecision(at, f"a maintenance window begins at {at:%Y-%m-%d %H:%M:%S} UTC")
    return RecoveryPhaseMove(
        NodeRecoverySignal.JOBS_GONE, "no job holds the node, and no maintenance window"
    )


def _wait_for_node_jobs(c: NodeCase, *, lost: bool) -> WaitDecision | None:
    """Wait for the jobs on the node that may end, or must before it is set DOWN. None: for none."""
    node, running = c.facts.slurm, c.facts.running
    patient = c.rec.urgency is not Urgency.NOW and not c.facts.taken_away
    if patient and running:
        return c.wait(f"{len(running)} job(s) may finish on the node")
    if not running and node is not None and node.down:
        return c.wait("jobs are completing", RecheckInterval.SOON)
    if not running and (patient or not lost) and not c.facts.stuck:
        return c.wait(
            "jobs are completing", RecheckInterval.SLOWLY if patient else RecheckInterval.SOON
        )
    stay = [j for j in running if not j.recoverable]
    if stay and c.policy.node.unrecoverable_jobs is UnrecoverableJobAction.WAIT and not lost:
        return c.wait(f"job {stay[0].shown} cannot be requeued (Requeue=0 or not a batch job)")
    blocked = [j for j in running if j.recoverable and j.id not in c.facts.movable]
    if blocked:
        return c.wait(f"job {blocked[0].shown} is not ready to be stopped", RecheckInterval.SOON)
    return None


def _set_node_down(c: NodeCase, *, lost: bool) -> Next:
    """End what holds the node."""
    ripe = add_seconds_within_bounds(c.rec.opened, c.policy.node.disturb_after_s)
    if c.now < ripe and not lost:
        return WaitDecision(
            ripe, "a moment for other nodes to report the same", RecheckInterval.SOON
        )
    # DOWN after DRAIN: slurmctld requeues the jobs at once and drops the node from their
    # completing set; DRAIN keeps it closed when its slurmd registers again (facts/recovery 2.4).
    # FAIL keeps it closed as well, and its Reason is left to the service that reads it.
    answer = attempt_node_step(c, StepKind.DOWN, c.rec.meaning, c.facts.mark)
    if isinstance(answer, StepStartDecision):
        return replace(answer, reason=c.facts.mark)
    return resolve_step_answer(answer, "set the node down", "no longer drained by us")


def _advance_vacated_node(c: NodeCase, before: PreRemedySteps) -> Next:
    if c.rec.rung >= len(c.rec.ladder):
        return RecoveryPhaseMove(
            NodeRecoverySignal.NEEDS_HUMAN, "every remedy of the ladder was tried"
        )
    booted = _adopt_generation_after_maintenance(c)
    if booted is not None:
        return booted
    leaves = c.facts.taken_away and c.rec.remedy is not Remedy.DELETE
    if c.rec.remedy is Remedy.AWAIT or leaves:
        return RecoveryPhaseMove(
            NodeRecoverySignal.REMEDY_ACCEPTED, "the provider takes the instance and brings another"
        )
    if c.rec.remedy is Remedy.NONE:
        return RecoveryPhaseMove(
            NodeRecoverySignal.NOTHING_TO_REMEDY, "nothing has to be done to the instance"
        )
    if c.rec.remedy is Remedy.ASK_HUMAN:
        return RecoveryPhaseMove(
            NodeRecoverySignal.NEEDS_HUMAN, f"{c.rec.rule} needs a person: {c.rec.meaning}"
        )
    if c.facts.blocked:
        return c.wait(c.facts.blocked)
    if c.facts.was_blocked:
        return RecoveryPhaseMove(
            NodeRecoverySignal.REMEDY_ALLOWED, "no gate blocks its remedy any longer"
        )
    return before.come_before_remedy(c) or _order_remedy(c)


def _order_remedy(c: NodeCase) -> Next:
    """Have the remedy ordered by hpctl, HyperPod or an operator, as the mode says."""
    if c.rec.remedy is Remedy.RESET_GPU and c.policy.mode is OperatingMode.OWN:
        return _order_gpu_reset(c)
    if not c.facts.provider_present:
        return RecoveryPhaseMove(
            NodeRecoverySignal.NEEDS_HUMAN,
            "no provider: reboot or replace the node, then return it",
        )
    if c.policy.mode is OperatingMode.OBSERVE:
        return c.wait("mode observe: nothing is done", RecheckInterval.SLOWLY)
    if c.policy.mode is not OperatingMode.OWN and c.rec.remedy is not Remedy.DELETE:
        why = f"mode {c.policy.mode}: left to HyperPod's own recovery"
        return RecoveryPhaseMove(NodeRecoverySignal.REMEDY_ACCEPTED, why)
    mine = find_last_instance_order(c.rec)
    if mine is not None and mine.accepted:
        why = f"the service accepted to {mine.kind} {mine.target}"
        return RecoveryPhaseMove(NodeRecoverySignal.REMEDY_ACCEPTED, why)
    if not c.facts.provider_fresh:
        return c.wait("the cloud's view is too old to act on", RecheckInterval.SLOWLY)
    return _order_instance_remedy(c)


def _order_gpu_reset(c: NodeCase) -> Next:
    """Have the node's agent reset its GPUs: ordered once, in doubt never again."""
    rec, facts, last = c.rec, c.facts, c.last(StepKind.RESET)
    if last is not None and (last.accepted or last.in_doubt):
        return RecoveryPhaseMove(
            NodeRecoverySignal.REMEDY_ACCEPTED, "the order waits for the node's agent"
        )
    if find_new_generation(rec, facts) is not None:
        return RecoveryPhaseMove(NodeRecoverySignal.REMEDY_ACCEPTED, "the node has booted since")
    if facts.running:
        return c.wait(f"job {facts.running[0].shown} runs on the node's GPUs")
    ripe = add_seconds_within_bounds(rec.opened, c.policy.node.remedy_after_s)
    if c.now < ripe and not rec.by:
        return WaitDecision(ripe, "a moment for other nodes to report the same")
    answer = c.attempt(StepKind.RESET, rec.node, rec.meaning)
    if isinstance(answer, Outcome):
        return RecoveryPhaseMove(
            NodeRecoverySignal.RESET_IN_VAIN, f"not ordered: {format_call_outcome(answer)}"
        )
    if not isinstance(answer, StepStartDecision):
        return answer
    judged = facts.assessment.findings if facts.assessment else ()
    until = add_seconds_within_bounds(c.now, health.ORDER_S).timestamp()
    gpus = health.list_faulty_gpus((*rec.findings, *judged))
    return replace(answer, order=reset_order.GpuResetOrder(rec.id, rec.generation, until, gpus))


def _order_instance_remedy(c: NodeCase) -> Next:
    """Reboot, replace or delete, by instance id: the id is the idempotency token the API lacks."""
    answer = _detect_remedy_order_effect(c) or resolve_refused_manual_order(c)
    if answer:
        return answer
    kind, sick, instance = ORDERS[c.rec.remedy], c.rec.generation.instance, c.facts.instance
    takes = (InstanceStatus.RUNNING, InstanceStatus.FAILURE)
    waits = instance is None or instance.status not in takes
    if waits and kind is not StepKind.REMOVE:
        state = instance.status if instance else "not in the cloud's list"
        return c.wait(c.facts.unjoined or f"instance {sick} is {state}", RecheckInterval.SLOWLY)
    ripe = add_seconds_within_bounds(c.rec.opened, c.policy.node.remedy_after_s)
    if c.now < ripe and not c.rec.by:
        return WaitDecision(ripe, "a moment for other nodes to report the same")
    if c.facts.withdrawn and may_have_begun_remedy(c.rec):
        return c.wait(f"in doubt, and not asked again: {c.facts.withdrawn}", RecheckInterval.SLOWLY)
    sent = c.attempt(kind, sick, c.rec.meaning)
    return _handle_remedy_order_refusal(c, kind, sent) if isinstance(sent, Outcome) else sent


def _detect_remedy_order_effect(c: NodeCase) -> RecoveryPhaseMove | None:
    """Return what shows that the service has the order, or acts on the instance already."""
    sick, instance, mine = (
        c.rec.generation.instance,
        c.facts.instance,
        find_last_instance_order(c.rec),
    )
    if c.rec.remedy is Remedy.DELETE:
        return _detect_deletion_order_outcome(c)
    if instance is not None and instance.id != sick:
        return RecoveryPhaseMove(
            NodeRecoverySignal.REMEDY_ACCEPTED, f"the node is instance {instance.id} already"
        )
    ours = mine is not None and (mine.in_doubt or not c.policy.attended)
    if ours and c.rec.remedy is Remedy.REBOOT and _has_new_boot(c.rec, c.facts):
        return RecoveryPhaseMove(
            NodeRecoverySignal.REMEDY_ACCEPTED, "the boot id changed since the reboot was asked for"
        )
    in_use = mine and not mine.in_doubt and mine.outcome and mine.outcome.code == "InstanceIdInUse"
    if in_use and not c.policy.attended:
        return RecoveryPhaseMove(
            NodeRecoverySignal.REMEDY_ACCEPTED, "the service already acts on the instance"
        )
    return None


def _detect_deletion_order_outcome(c: NodeCase) -> RecoveryPhaseMove | None:
    """Return what shows that an instance was deleted, or never will be, by an order in doubt."""
    left, listed = _handle_deleted_instance(c), c.facts.listed
    if left is not None and left.signal is NodeRecoverySignal.INSTANCE_GONE:
        lost = "the reply was lost; " if find_last_instance_order(c.rec) else ""
        return RecoveryPhaseMove(NodeRecoverySignal.REMEDY_ACCEPTED, lost + left.why)
    going = listed is not None and listed.status is InstanceStatus.SHUTTING_DOWN
    if going and not c.policy.attended:
        return RecoveryPhaseMove(
            NodeRecoverySignal.REMEDY_ACCEPTED, f"{c.rec.generation.instance} is shutting down"
        )
    return left


def _handle_remedy_order_refusal(c: NodeCase, kind: StepKind, answer: Outcome) -> Next:
    """Handle an order that the service did not accept."""
    sick, last = c.rec.generation.instance, c.last(kind)
    if answer.code in GONE:
        return c.wait(f"{sick} is gone; its successor is not listed yet")
    if answer.transient and last is not None:
        # Throttling lasts minutes, an update of the cluster longer: the phase's deadline ends it.
        again = add_seconds_within_bounds(
            last.resolved or last.started, c.policy.node.doubt_window_s
        )
        if c.now < again:
            return WaitDecision(
                again,
                f"cannot {kind} it for now: {format_call_outcome(answer)}",
                RecheckInterval.SLOWLY,
            )
        return StepStartDecision(kind, sick, last.attempt + 1, c.rec.meaning)
    if c.rec.remedy is Remedy.DELETE and has_unresolved_instance_order(c.rec):
        return c.wait(f"it is unknown whether {sick} is being deleted", RecheckInterval.SLOWLY)
    return RecoveryPhaseMove(
        NodeRecoverySignal.NEEDS_HUMAN, f"cannot {kind} {sick}: {format_call_outcome(answer)}"
    )


def _handle_deleted_instance(c: NodeCase) -> RecoveryPhaseMove | None:
    """Handle the end of a deletion: its instance is no longer listed, or another one took its
    place."""
    sick, instance = c.rec.generation.instance, c.facts.instance
    if not c.facts.provider_fresh:
        return None
    if not c.policy.attended and c.facts.listed is None:
        return RecoveryPhaseMove(NodeRecoverySignal.INSTANCE_GONE, f"{sick} is no longer listed")
    if not c.policy.attended:
        return None
    if instance is None and find_last_instance_order(c.rec) is not None:
        return RecoveryPhaseMove(NodeRecoverySignal.INSTANCE_GONE, f"{sick} is no longer listed")
    if instance is not None and instance.id != sick:
        why = f"it was replaced, not deleted: {instance.id} is in its place"
        return RecoveryPhaseMove(NodeRecoverySignal.NEEDS_HUMAN, why)
    return None


def _has_new_boot(rec: NodeRecovery, facts: NodeFacts) -> bool:
    heard, old = facts.heard, rec.generation
    return heard is not None and heard.instance == old.instance and heard.boot != old.boot


def _advance_running_remedy(c: NodeCase) -> Next:
    node = c.facts.slurm
    at_once = c.policy.attended and c.rec.urgency is Urgency.NOW and c.facts.running
    if (
        at_once
        and not describe_node_takeover(node, c.rec.id)
        and node is not None
        and not node.down
    ):
        # Only now that the service has accepted: what it refuses ends no job.
        return resolve_step_answer(
            attempt_node_step(c, StepKind.DOWN, c.rec.meaning), "set the node down", "taken over"
        )
    if c.rec.remedy is Remedy.DELETE:
        return _handle_deleted_instance(c) or c.wait(
            f"{c.rec.generation.instance} is listed", RecheckInterval.SLOWLY
        )
    fresh = find_new_generation(c.rec, c.facts)
    if fresh is not None:
        return RecoveryPhaseMove(
            NodeRecoverySignal.NEW_GENERATION_SEEN, f"instance {fresh.instance}, boot {fresh.boot}"
        )
    reset = c.facts.reset
    if reset is not None and c.rec.remedy is Remedy.RESET_GPU:
        done = reset.code == health.RESET_DONE
        why = reset.detail if done else f"{reset.code}: {reset.detail}"
        return RecoveryPhaseMove(
            NodeRecoverySignal.RESET_SEEN if done else NodeRecoverySignal.RESET_IN_VAIN, why
        )
    message = (
        c.facts.instance.message if c.facts.instance else ""
    ) or suggest_hyperpod_remedy_command(c.rec, c.policy)
    return c.wait(
        f"waiting for the node's new generation. {message}".strip(), RecheckInterval.SLOWLY
    )


def find_new_generation(rec: NodeRecovery, facts: NodeFacts) -> NodeGeneration | None:
    """Return the generation that follows the one treated, if one is there to be seen.

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


def _adopt_generation_after_maintenance(c: NodeCase) -> RecoveryPhaseMove | None:
    """Take over the generation that an admin's work has left behind."""
    fresh = find_new_generation(c.rec, c.facts) if c.rec.is_for_maintenance else None
    if fresh is None:
        return None
    return RecoveryPhaseMove(
        NodeRecoverySignal.NEW_GENERATION_SEEN, f"instance {fresh.instance}, boot {fresh.boot}"
    )


def _detect_fault_after_maintenance(c: NodeCase) -> Next | None:
    """Find a boot, or a fault, that keeps a node from serving after a maintenance window.

    A fault counts whenever it began. It is treated by a separate recovery, under the gates.
    """
    judged, node = c.facts.assessment, c.facts.slurm
    if node is not None and node.in_service:
        return None
    booted = _adopt_generation_after_maintenance(c)
    if booted is not None:
        return booted
    if judged is not None and judged.condition is NodeCondition.FAULTY:
        return RecoveryPhaseMove(NodeRecoverySignal.FAULT_FOUND, judged.why)
    if judged is not None and judged.condition is not NodeCondition.HEALTHY:
        return c.wait(f"{judged.condition}: {judged.why}", RecheckInterval.SLOWLY)
    if node is None or not node.responding:
        return c.wait("its slurmd does not answer", RecheckInterval.SLOWLY)
    return None


def _advance_rejoining_node(c: NodeCase) -> Next:
    again = find_new_generation(c.rec, c.facts)
    if again is not None:
        return RecoveryPhaseMove(
            NodeRecoverySignal.NEW_GENERATION_SEEN, f"instance {again.instance}, boot {again.boot}"
        )
    node, instance = c.facts.slurm, c.facts.instance
    state = instance.status if instance else "missing"
    if c.facts.provider_present and state != InstanceStatus.RUNNING:
        return c.wait(f"the cloud calls the instance {state}", RecheckInterval.SLOWLY)
    if node is not None and node.is_powered_down:
        return c.wait(_POWERED_DOWN, RecheckInterval.SLOWLY)
    if node is None or not node.responding or (node.down and not _has_slurmd_registered_again(c)):
        return c.wait("its slurmd has not registered yet", RecheckInterval.SLOWLY)
    return RecoveryPhaseMove(
        NodeRecoverySignal.REJOINED, "the cloud says Running, the agent reports, slurmd registered"
    )


def _has_slurmd_registered_again(c: NodeCase) -> bool:
    """Return whether another slurmd has registered for a node that was set DOWN: with
    ReturnToService 0 or 1 slurmctld leaves it so, and only a RESUME ends that."""
    node, ordered = c.facts.slurm, c.last(ORDERS.get(c.rec.remedy, StepKind.REBOOT))
    if not c.policy.attended or node is None or node.slurmd_start is None or ordered is None:
        return False
    return node.slurmd_start > ordered.started


def _advance_node_verification(c: NodeCase, testing: NodeTestFunctions) -> Next:
    node, judged = c.facts.slurm, c.facts.assessment
    if node is not None and node.in_service:
        return RecoveryPhaseMove(
            NodeRecoverySignal.RETURN_SEEN, "slurmctld shows the node in service"
        )
    if not is_node_being_returned(c.rec):
        if c.facts.heard != c.rec.generation or judged is None:
            return c.wait("waiting for the agent of this generation", RecheckInterval.SLOWLY)
        new = not c.facts.mark and has_evidence_newer_than_recovery(judged, c.rec)
        if judged.condition is NodeCondition.FAULTY and new:
            return RecoveryPhaseMove(NodeRecoverySignal.FAULT_AGAIN, f"still faulty: {judged.why}")
        if node is not None and node.is_powered_down:
            return _return_powered_down_node(c, testing)
        if judged.condition is not NodeCondition.HEALTHY and new:
            if is_replacement_still_requested(c.rec, c.policy):
                why = f"asked for a replacement, and it is {judged.condition}: {judged.why}"
                return RecoveryPhaseMove(
                    NodeRecoverySignal.FAULT_AGAIN, f"HyperPod's health agent {why}"
                )
            return c.wait(f"{judged.condition}: {judged.why}", RecheckInterval.SLOWLY)
        healthy = add_seconds_within_bounds(c.rec.since, c.policy.node.verify_healthy_s)
        if c.now < healthy:
            return WaitDecision(healthy, "healthy so far", RecheckInterval.SLOWLY)
        before = testing.come_before_service(c)
        if before is not None:
            return before
    return resolve_step_answer(
        attempt_node_step(c, StepKind.RETURN), "resume the node", "no longer ours to return"
    )


_POWERED_DOWN: Final = "Slurm has powered the node down: `scontrol update` State=POWER_UP starts it"


def _return_powered_down_node(c: NodeCase, testing: NodeTestFunctions) -> Next:
    """Give back a remedied node that Slurm has powered down while it was verified.

    Slurm starts no drained node, so nothing else would come of it. The RESUME does not start it
    either: when a job does, it boots, and its agent reports before the job's first step.
    """
    if testing.come_before_service(c) is not None:
        return c.wait(f"its test waits. {_POWERED_DOWN}", RecheckInterval.SLOWLY)
    return resolve_step_answer(
        attempt_node_step(c, StepKind.RETURN), "resume the node", "no longer ours to return"
    )


_PHASES: Final = {
    NodeRecoveryPhase.OPEN: _advance_open_recovery,
    NodeRecoveryPhase.CORDONED: _advance_cordoned_node,
    NodeRecoveryPhase.REMEDYING: _advance_running_remedy,
    NodeRecoveryPhase.REJOINING: _advance_rejoining_node,
}

"""What an operator who waits for an order gets of it: a refusal at once, and no second reboot.

`Policy.attended` is true in a command that carries an order out itself. At a daemon no operator
waits: it waits out what is refused for now and repeats what is in doubt.
"""

from typing import Final

from hpctl.engine.node_history import find_last_instance_order, has_unresolved_instance_order
from hpctl.nodes.actors import NodeCase
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.assessment import Remedy
from hpctl.vocabulary.cloud_facts import BAD_STATUS, GONE, IN_USE, MOVED_BY_OTHERS, InstanceStatus
from hpctl.vocabulary.node_recovery import SCALE_DOWN, NodeRecoveryPhase, NodeRecoverySignal
from hpctl.vocabulary.outcome import OutcomeKind
from hpctl.vocabulary.recovery import (
    Next,
    RecheckInterval,
    RecoveryPhaseMove,
    StepKind,
    WaitDecision,
    format_call_outcome,
)

MOVING: Final = IN_USE | BAD_STATUS
"""A node refused with one of these may be about to go by another's order: no job starts there."""


def explain_manual_order_refusal(c: NodeCase) -> str:
    """Return why the service refused an order by hand, or a removal, where the node is as it was;
    "" elsewhere.

    Such a node is returned to service. After an order in doubt a refusal proves nothing, and a node
    on which another operation works may be about to go.
    """
    ends = c.policy.attended or c.rec.rule == SCALE_DOWN
    if not ends or c.rec.phase is not NodeRecoveryPhase.VACATED:
        return ""
    step = find_last_instance_order(c.rec)
    if step is None or step.outcome is None or step.outcome.kind is not OutcomeKind.REJECTED:
        return ""
    if not c.policy.attended and (step.outcome.transient or step.outcome.code in GONE):
        return ""
    if has_unresolved_instance_order(c.rec) or step.outcome.code in MOVING:
        return ""
    return f"cannot {step.kind} {step.target}: {format_call_outcome(step.outcome)}"


def resolve_refused_manual_order(c: NodeCase) -> Next | None:
    """Return what an attended order that was not accepted comes to; None where it is sent now."""
    step = find_last_instance_order(c.rec)
    if not c.policy.attended or step is None:
        return None
    what = f"{step.kind} {step.target}"
    if not step.in_doubt and step.outcome is not None:
        if has_unresolved_instance_order(c.rec) and step.outcome.code in IN_USE | GONE:
            why = "the reply was lost; the service reports that it is under way"
            return RecoveryPhaseMove(NodeRecoverySignal.REMEDY_ACCEPTED, why)
        return RecoveryPhaseMove(
            NodeRecoverySignal.NEEDS_HUMAN, f"cannot {what}: {format_call_outcome(step.outcome)}"
        )
    sign = _describe_manual_order_effect(c)
    if sign:
        return RecoveryPhaseMove(NodeRecoverySignal.REMEDY_ACCEPTED, f"the reply was lost; {sign}")
    # An accepted reboot leaves no trace in the API, and a second one would hit fresh work.
    most = 1 if step.kind is StepKind.REBOOT else 2
    if step.attempt < most:
        return None
    until = add_seconds_within_bounds(step.resolved or step.started, c.policy.node.doubt_window_s)
    if c.now < until:
        return WaitDecision(
            until, f"it is unknown whether the service accepted to {what}", RecheckInterval.SLOWLY
        )
    detail = step.outcome.detail if step.outcome else "there was no reply"
    return RecoveryPhaseMove(
        NodeRecoverySignal.NEEDS_HUMAN, f"it is unknown whether the service accepted: {detail}"
    )


def _describe_manual_order_effect(c: NodeCase) -> str:
    """Return what the instance shows of an order whose reply was lost; empty for nothing."""
    instance = c.facts.instance
    if instance is None:
        return ""
    if c.rec.remedy is Remedy.DELETE:
        # It may have been Pending all along.
        shows = instance.status is InstanceStatus.SHUTTING_DOWN
    else:
        untouched = {InstanceStatus.RUNNING, InstanceStatus.FAILURE, *MOVED_BY_OTHERS}
        shows = instance.status not in untouched
    return f"the instance is {instance.status}" if shows else ""

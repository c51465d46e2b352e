"""What a recovery does while an admin keeps its node in a maintenance reservation: it looks on.

What is seen still moves it, so that a step in doubt is settled. Nothing is done to the node,
nothing seen there is held against it, and no deadline runs.
"""

from typing import Final

from hpctl.engine.maintenance import LOOK_S
from hpctl.nodes.actors import NodeCase
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.node_recovery import TEST_ASKS, NodeRecoverySignal
from hpctl.vocabulary.recovery import (
    Next,
    RecheckInterval,
    RecoveryPhaseMove,
    StepKind,
    StepStartDecision,
    WaitDecision,
)

_PUT_OFF: Final = frozenset(
    {
        NodeRecoverySignal.NEEDS_HUMAN,
        NodeRecoverySignal.FAULT_AGAIN,
        NodeRecoverySignal.RESET_IN_VAIN,
        NodeRecoverySignal.REBOOT_IN_VAIN,
        NodeRecoverySignal.TEST_FAILED,
        NodeRecoverySignal.UNTESTED,
        *TEST_ASKS,
    }
)
"""Conclusions that what the admin does to the node may cause."""

_OUR_OWN: Final = (StepKind.END_TEST, StepKind.UNRESERVE)
"""Steps that concern only a job and a reservation of hpctl."""


_BEFORE_THE_END: Final = (
    NodeRecoverySignal.CORDON_SEEN,
    NodeRecoverySignal.NODE_GONE,
    NodeRecoverySignal.MARKED,
    NodeRecoverySignal.OPERATOR_TOOK_OVER,
)


def _should_apply_answer_during_maintenance(answer: Next) -> bool:
    """Return whether it closes the node before the maintenance ends, or says who has the node."""
    if isinstance(answer, RecoveryPhaseMove):
        return answer.signal in _BEFORE_THE_END
    return isinstance(answer, StepStartDecision) and answer.kind is StepKind.DRAIN


def find_maintenance_move(c: NodeCase) -> RecoveryPhaseMove | None:
    """Return the beginning or the end of the maintenance, once for each."""
    held = bool(c.facts.maintenance)
    if held == c.rec.is_in_maintenance:
        return None
    if held:
        return RecoveryPhaseMove(NodeRecoverySignal.MAINTENANCE_BEGAN, c.facts.maintenance)
    return RecoveryPhaseMove(
        NodeRecoverySignal.MAINTENANCE_ENDED, "no maintenance reservation holds the node"
    )


def limit_answer_during_maintenance(c: NodeCase, answer: Next) -> Next | None:
    """Return what is left of an answer while the maintenance lasts; None where there is none."""
    if not c.facts.maintenance:
        return None
    if c.rec.is_for_maintenance and not _should_apply_answer_during_maintenance(answer):
        return WaitDecision(
            add_seconds_within_bounds(c.now, LOOK_S), c.facts.maintenance, RecheckInterval.SLOWLY
        )
    if c.rec.is_for_maintenance:
        return answer
    seen = isinstance(answer, RecoveryPhaseMove) and answer.signal not in _PUT_OFF
    own = isinstance(answer, StepStartDecision) and answer.kind in _OUR_OWN
    if seen or own:
        return answer
    return WaitDecision(
        add_seconds_within_bounds(c.now, LOOK_S), c.facts.maintenance, RecheckInterval.SLOWLY
    )

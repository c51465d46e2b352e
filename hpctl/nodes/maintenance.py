"""What a recovery does while an admin keeps its node in a maintenance reservation: it looks on.

What is seen still moves it, so that a step in doubt is settled. Nothing is done to the node,
nothing seen there is held against it, and no deadline runs.
"""

from typing import Final

from hpctl.engine.maintenance import LOOK_S
from hpctl.nodes.actors import NodeCase
from hpctl.toolkit.bounds import add_seconds
from hpctl.vocabulary.node_recovery import TEST_ASKS, NodeSignal
from hpctl.vocabulary.recovery import (
    Next,
    PhaseMove,
    RecheckInterval,
    StartStep,
    StepKind,
    WaitUntil,
)

_PUT_OFF: Final = frozenset(
    {
        NodeSignal.NEEDS_HUMAN,
        NodeSignal.FAULT_AGAIN,
        NodeSignal.RESET_IN_VAIN,
        NodeSignal.REBOOT_IN_VAIN,
        NodeSignal.TEST_FAILED,
        NodeSignal.UNTESTED,
        *TEST_ASKS,
    }
)
"""Conclusions that what the admin does to the node may cause."""

_OUR_OWN: Final = (StepKind.END_TEST, StepKind.UNRESERVE)
"""Steps that concern only a job and a reservation of hpctl."""


_BEFORE_THE_END: Final = (
    NodeSignal.CORDON_SEEN,
    NodeSignal.NODE_GONE,
    NodeSignal.MARKED,
    NodeSignal.OPERATOR_TOOK_OVER,
)


def _should_act_during_maintenance(answer: Next) -> bool:
    """Return whether it closes the node before the maintenance ends, or says who has the node."""
    if isinstance(answer, PhaseMove):
        return answer.signal in _BEFORE_THE_END
    return isinstance(answer, StartStep) and answer.kind is StepKind.DRAIN


def find_maintenance_move(c: NodeCase) -> PhaseMove | None:
    """Return the beginning or the end of the maintenance, once for each."""
    held = bool(c.facts.maintenance)
    if held == c.rec.in_maintenance:
        return None
    if held:
        return PhaseMove(NodeSignal.MAINTENANCE_BEGAN, c.facts.maintenance)
    return PhaseMove(NodeSignal.MAINTENANCE_ENDED, "no maintenance reservation holds the node")


def wait_for_maintenance_end(c: NodeCase, answer: Next) -> Next | None:
    """Return what is left of an answer while the maintenance lasts; None where there is none."""
    if not c.facts.maintenance:
        return None
    if c.rec.is_for_maintenance and not _should_act_during_maintenance(answer):
        return WaitUntil(add_seconds(c.now, LOOK_S), c.facts.maintenance, RecheckInterval.SLOWLY)
    if c.rec.is_for_maintenance:
        return answer
    seen = isinstance(answer, PhaseMove) and answer.signal not in _PUT_OFF
    own = isinstance(answer, StartStep) and answer.kind in _OUR_OWN
    if seen or own:
        return answer
    return WaitUntil(add_seconds(c.now, LOOK_S), c.facts.maintenance, RecheckInterval.SLOWLY)

"""Removals that an earlier version wrote as changes of capacity, read as node recoveries.

A removal was a change (`ChangeOpened` of kind `remove`) with its own phases and signals, and so
was the return of a node that a removal had left closed. Such events are no longer written; those
that journals hold are read as follows.

- A removal is the node recovery in the matching phase.
- One that gives its node back has ended, and so has a return: a node that still has such a Reason
  is given back by a separate recovery. What was written of them later changes nothing.
- A fault's recovery could open beside a removal of the same node: it ends the removal.
"""

from datetime import datetime
from typing import Final

from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.change import ChangeKind, ChangeOpened
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, NodeName
from hpctl.vocabulary.node_recovery import (
    REMOVAL_OVER,
    SCALE_DOWN,
    NodeRecovery,
    NodeRecoveryPhase,
    NodeRecoverySignal,
)

KINDS: Final = frozenset({ChangeKind.REMOVE, ChangeKind.RETURN})
"""The changes that are node recoveries by now."""

_LEFT: Final = (NodeRecoverySignal.REMEDY_ACCEPTED, NodeRecoverySignal.INSTANCE_GONE)
_SIGNALS: Final[dict[tuple[NodeRecoveryPhase, str], tuple[NodeRecoverySignal, ...]]] = {
    (NodeRecoveryPhase.OPEN, "closed_seen"): (
        NodeRecoverySignal.CORDON_SEEN,
        NodeRecoverySignal.JOBS_GONE,
    ),
    (NodeRecoveryPhase.OPEN, "in_use"): (NodeRecoverySignal.WITHDRAWN,),
    (NodeRecoveryPhase.OPEN, "refused"): (NodeRecoverySignal.NEEDS_HUMAN,),
    (NodeRecoveryPhase.VACATED, "in_use"): (NodeRecoverySignal.WITHDRAWN,),
    (NodeRecoveryPhase.VACATED, "refused"): (NodeRecoverySignal.WITHDRAWN,),
    (NodeRecoveryPhase.VACATED, "order_taken"): (NodeRecoverySignal.REMEDY_ACCEPTED,),
    (NodeRecoveryPhase.VACATED, "gone"): _LEFT,
    (NodeRecoveryPhase.REMEDYING, "gone"): (NodeRecoverySignal.INSTANCE_GONE,),
}


def convert_old_node_removal_opening(e: ChangeOpened) -> NodeRecovery:
    """Return the node recovery that an earlier version opened as a change."""
    node, instance = e.node or NodeName(""), e.instance or InstanceId("")
    removes = e.kind is ChangeKind.REMOVE
    generation = NodeGeneration(node, instance, BootId(""))
    return NodeRecovery(
        id=e.recovery,
        opened_for=generation,
        generation=generation,
        rule=SCALE_DOWN if removes else REMOVAL_OVER,
        meaning="scale down" if removes else "a removal of it is over",
        urgency=Urgency.AFTER_JOBS,
        ladder=(Remedy.DELETE if removes else Remedy.NONE,),
        opened=e.at,
        phase=NodeRecoveryPhase.OPEN if removes else NodeRecoveryPhase.RETURNED,
        since=e.at,
        why=e.why,
        by="hpctl",
        group=e.group,
        was_change=True,
    )


def convert_old_node_removal_signal(rec: NodeRecovery, seen: str) -> tuple[str, ...]:
    """Return the signals of a node recovery that a signal in the journal amounts to."""
    if not rec.was_change:
        return (seen,)
    return () if rec.ended else _SIGNALS.get((rec.phase, seen), (seen,))


def end_superseded_node_removal(rec: NodeRecovery, at: datetime) -> NodeRecovery:
    """Return a removal that ends because its node is treated for another reason."""
    return rec.on(NodeRecoverySignal.OPERATOR_TOOK_OVER, at, "another recovery treats the node")

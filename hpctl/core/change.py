"""A durable change of the capacity at hand: a group grows, a node leaves, spares are set apart.

Built like a recovery: every phase change is in TRANSITIONS, an unknown pair raises, every phase
has a deadline (`change_advance`), and a change that has ended never acts again. Nothing here opens
one: `plan_capacity` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from hpctl.core.compat import StrEnum
from hpctl.core.model import InstanceId, NodeName, OutcomeKind, RecoveryId
from hpctl.core.recovery import IllegalSignal, StepKind, StepRecord, Trail


class Kind(StrEnum):
    """What changes."""

    ADD = "add"
    """A group gets more instances."""
    REMOVE = "remove"
    """One idle node's instance leaves its group."""
    RETURN = "return"
    """A node name that was closed for a removal stands for another instance by now."""
    SPARES = "spares"
    """A reservation holds other nodes than before."""


class Phase(StrEnum):
    """Where a change stands. The last three are ends."""

    OPEN = "open"
    ARRIVING = "arriving"
    CLOSED = "closed"
    LEAVING = "leaving"
    GIVING_BACK = "giving_back"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDS: Final = frozenset({Phase.DONE, Phase.FAILED, Phase.CANCELLED})


class Signal(StrEnum):
    """An observed fact that moves a change."""

    ORDER_TAKEN = "order_taken"
    ARRIVED = "arrived"
    CLOSED_SEEN = "closed_seen"
    GONE = "gone"
    SET_SEEN = "set_seen"
    IN_USE = "in_use"
    BACK = "back"
    REFUSED = "refused"
    DEADLINE = "deadline"
    OPERATOR_TOOK_OVER = "operator_took_over"


TRANSITIONS: Final[Mapping[tuple[Kind, Phase, Signal], Phase]] = {
    (Kind.ADD, Phase.OPEN, Signal.ORDER_TAKEN): Phase.ARRIVING,
    (Kind.ADD, Phase.OPEN, Signal.REFUSED): Phase.FAILED,
    (Kind.ADD, Phase.OPEN, Signal.DEADLINE): Phase.FAILED,
    (Kind.ADD, Phase.ARRIVING, Signal.ARRIVED): Phase.DONE,
    (Kind.ADD, Phase.ARRIVING, Signal.REFUSED): Phase.FAILED,
    (Kind.ADD, Phase.ARRIVING, Signal.DEADLINE): Phase.FAILED,
    (Kind.REMOVE, Phase.OPEN, Signal.IN_USE): Phase.CANCELLED,
    (Kind.REMOVE, Phase.OPEN, Signal.CLOSED_SEEN): Phase.CLOSED,
    (Kind.REMOVE, Phase.OPEN, Signal.REFUSED): Phase.FAILED,
    (Kind.REMOVE, Phase.OPEN, Signal.DEADLINE): Phase.GIVING_BACK,
    (Kind.REMOVE, Phase.CLOSED, Signal.IN_USE): Phase.GIVING_BACK,
    (Kind.REMOVE, Phase.CLOSED, Signal.ORDER_TAKEN): Phase.LEAVING,
    (Kind.REMOVE, Phase.CLOSED, Signal.GONE): Phase.DONE,
    (Kind.REMOVE, Phase.CLOSED, Signal.REFUSED): Phase.GIVING_BACK,
    (Kind.REMOVE, Phase.CLOSED, Signal.DEADLINE): Phase.FAILED,
    (Kind.REMOVE, Phase.LEAVING, Signal.GONE): Phase.DONE,
    (Kind.REMOVE, Phase.LEAVING, Signal.DEADLINE): Phase.FAILED,
    (Kind.REMOVE, Phase.GIVING_BACK, Signal.BACK): Phase.CANCELLED,
    (Kind.REMOVE, Phase.GIVING_BACK, Signal.GONE): Phase.DONE,
    (Kind.REMOVE, Phase.GIVING_BACK, Signal.REFUSED): Phase.FAILED,
    (Kind.REMOVE, Phase.GIVING_BACK, Signal.DEADLINE): Phase.FAILED,
    # Whoever takes a node over that we have closed keeps it; the instance is not ours any more.
    **{
        (Kind.REMOVE, phase, Signal.OPERATOR_TOOK_OVER): Phase.CANCELLED
        for phase in (Phase.OPEN, Phase.CLOSED, Phase.GIVING_BACK)
    },
    (Kind.RETURN, Phase.OPEN, Signal.BACK): Phase.DONE,
    (Kind.RETURN, Phase.OPEN, Signal.REFUSED): Phase.FAILED,
    (Kind.RETURN, Phase.OPEN, Signal.DEADLINE): Phase.FAILED,
    (Kind.SPARES, Phase.OPEN, Signal.SET_SEEN): Phase.DONE,
    (Kind.SPARES, Phase.OPEN, Signal.REFUSED): Phase.FAILED,
    (Kind.SPARES, Phase.OPEN, Signal.DEADLINE): Phase.FAILED,
}


@dataclass(frozen=True, slots=True)
class ChangeOpened:
    """`plan_capacity` decided on a change.

    ADD: `count` instances more in `group`, which has `size` then. REMOVE: `node` and its
    `instance` leave. RETURN: `node` is closed with the Reason of the removal `cause`. SPARES:
    the group's reservation holds `nodes` from now on; `released` is how many of them were given
    up for the job recovery `cause`.
    """

    at: datetime
    recovery: RecoveryId
    kind: Kind
    group: str
    why: str
    count: int = 0
    size: int = 0
    node: NodeName | None = None
    instance: InstanceId | None = None
    nodes: tuple[NodeName, ...] = ()
    released: tuple[NodeName, ...] = ()
    cause: RecoveryId | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One change as the journal tells it."""

    opened: ChangeOpened
    phase: Phase
    since: datetime
    steps: tuple[StepRecord, ...] = ()
    trail: tuple[Trail, ...] = ()

    @property
    def id(self) -> RecoveryId:
        """Its id, which is the client token of its order too."""
        return self.opened.recovery

    @property
    def ended(self) -> bool:
        """Closed for ever."""
        return self.phase in ENDS

    @property
    def key(self) -> str:
        """What at most one open change may be about."""
        about = self.opened
        return f"{about.kind} {about.node or about.group}"

    def on(self, signal: Signal, at: datetime, why: str) -> Change:
        """The change after a signal. Raises IllegalSignal for what is not in the table."""
        phase = TRANSITIONS.get((self.opened.kind, self.phase, signal))
        if phase is None:
            raise IllegalSignal(f"{self.id}: {signal} in phase {self.phase}")
        trail = (*self.trail, Trail(at, signal, phase, why))
        return replace(self, phase=phase, since=at, trail=trail)


def ordered(change: Change) -> bool:
    """Whether its instances may be coming or going: an order was taken, or nobody can say.

    A later refusal takes no doubt away: `NodeIdInUse` is what a deletion under way looks like.
    """
    kind = StepKind.ADD if change.opened.kind is Kind.ADD else StepKind.REMOVE
    return any(
        s.in_doubt or (s.outcome is not None and s.outcome.kind is OutcomeKind.ACCEPTED)
        for s in change.steps
        if s.kind is kind
    )


def open_change(event: ChangeOpened) -> Change:
    """A change at its beginning."""
    return Change(event, Phase.OPEN, event.at)

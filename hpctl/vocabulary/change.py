"""A durable change of capacity: its value and its table."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.identity import InstanceId, NodeName, RecoveryId
from hpctl.vocabulary.model import Finding
from hpctl.vocabulary.node_recovery import SCALE_DOWN, NodePhase, NodeRecovery
from hpctl.vocabulary.recovery import StepKind, StepRecord, TransitionRecord, find_next_phase


class ChangeKind(StrEnum):
    """What changes."""

    ADD = "add"
    """A group gets more instances."""
    REMOVE = "remove"
    """One idle node's instance leaves its group. A node recovery; a change in old journals."""
    RETURN = "return"
    """A node that was closed for a removal is given back. A node recovery; a change in old
    journals."""
    SPARES = "spares"
    """A reservation holds other nodes than before."""
    BURN_IN = "burn_in"
    """An idle node is tested until a user wants it."""
    MAINTENANCE = "maintenance"
    """A reservation with the flag MAINT keeps nodes for an admin. The nodes are verified after."""


class ChangePhase(StrEnum):
    """The phase of a change. The last three are ends. SCHEDULED, BEGUN and ENDING are of
    maintenance windows."""

    OPEN = "open"
    ARRIVING = "arriving"
    TESTING = "testing"
    CLOSED = "closed"
    LEAVING = "leaving"
    GIVING_BACK = "giving_back"
    SCHEDULED = "scheduled"
    BEGUN = "begun"
    ENDING = "ending"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDS: Final = frozenset({ChangePhase.DONE, ChangePhase.FAILED, ChangePhase.CANCELLED})


class ChangeSignal(StrEnum):
    """An observed fact that moves a change."""

    ORDER_TAKEN = "order_taken"
    ARRIVED = "arrived"
    GONE = "gone"
    SET_SEEN = "set_seen"
    IN_USE = "in_use"
    TESTED = "tested"
    REFUSED = "refused"
    DEADLINE = "deadline"
    RESERVED = "reserved"
    BEGAN = "began"
    CHANGED = "changed"
    END_ASKED = "end_asked"


TRANSITIONS: Final[Mapping[tuple[ChangeKind, ChangePhase, ChangeSignal], ChangePhase]] = {
    (ChangeKind.ADD, ChangePhase.OPEN, ChangeSignal.ORDER_TAKEN): ChangePhase.ARRIVING,
    (ChangeKind.ADD, ChangePhase.OPEN, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (ChangeKind.ADD, ChangePhase.OPEN, ChangeSignal.DEADLINE): ChangePhase.FAILED,
    (ChangeKind.ADD, ChangePhase.ARRIVING, ChangeSignal.ARRIVED): ChangePhase.DONE,
    (ChangeKind.ADD, ChangePhase.ARRIVING, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (ChangeKind.ADD, ChangePhase.ARRIVING, ChangeSignal.DEADLINE): ChangePhase.FAILED,
    (ChangeKind.BURN_IN, ChangePhase.OPEN, ChangeSignal.ORDER_TAKEN): ChangePhase.TESTING,
    (ChangeKind.BURN_IN, ChangePhase.OPEN, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (ChangeKind.BURN_IN, ChangePhase.OPEN, ChangeSignal.IN_USE): ChangePhase.LEAVING,
    (ChangeKind.BURN_IN, ChangePhase.OPEN, ChangeSignal.DEADLINE): ChangePhase.LEAVING,
    (ChangeKind.BURN_IN, ChangePhase.TESTING, ChangeSignal.TESTED): ChangePhase.DONE,
    (ChangeKind.BURN_IN, ChangePhase.TESTING, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (ChangeKind.BURN_IN, ChangePhase.TESTING, ChangeSignal.IN_USE): ChangePhase.LEAVING,
    (ChangeKind.BURN_IN, ChangePhase.TESTING, ChangeSignal.DEADLINE): ChangePhase.LEAVING,
    (ChangeKind.BURN_IN, ChangePhase.LEAVING, ChangeSignal.GONE): ChangePhase.CANCELLED,
    (ChangeKind.BURN_IN, ChangePhase.LEAVING, ChangeSignal.DEADLINE): ChangePhase.FAILED,
    (ChangeKind.SPARES, ChangePhase.OPEN, ChangeSignal.SET_SEEN): ChangePhase.DONE,
    (ChangeKind.SPARES, ChangePhase.OPEN, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (ChangeKind.SPARES, ChangePhase.OPEN, ChangeSignal.DEADLINE): ChangePhase.FAILED,
    (ChangeKind.MAINTENANCE, ChangePhase.OPEN, ChangeSignal.RESERVED): ChangePhase.SCHEDULED,
    (ChangeKind.MAINTENANCE, ChangePhase.OPEN, ChangeSignal.REFUSED): ChangePhase.FAILED,
    (ChangeKind.MAINTENANCE, ChangePhase.OPEN, ChangeSignal.DEADLINE): ChangePhase.FAILED,
    (ChangeKind.MAINTENANCE, ChangePhase.OPEN, ChangeSignal.END_ASKED): ChangePhase.ENDING,
    (ChangeKind.MAINTENANCE, ChangePhase.SCHEDULED, ChangeSignal.BEGAN): ChangePhase.BEGUN,
    (ChangeKind.MAINTENANCE, ChangePhase.SCHEDULED, ChangeSignal.GONE): ChangePhase.CANCELLED,
    # An admin changed the reservation: another change follows it.
    (ChangeKind.MAINTENANCE, ChangePhase.SCHEDULED, ChangeSignal.CHANGED): ChangePhase.CANCELLED,
    (ChangeKind.MAINTENANCE, ChangePhase.SCHEDULED, ChangeSignal.END_ASKED): ChangePhase.ENDING,
    (ChangeKind.MAINTENANCE, ChangePhase.BEGUN, ChangeSignal.CHANGED): ChangePhase.DONE,
    (ChangeKind.MAINTENANCE, ChangePhase.BEGUN, ChangeSignal.GONE): ChangePhase.DONE,
    (ChangeKind.MAINTENANCE, ChangePhase.BEGUN, ChangeSignal.END_ASKED): ChangePhase.ENDING,
    (ChangeKind.MAINTENANCE, ChangePhase.ENDING, ChangeSignal.GONE): ChangePhase.DONE,
    (ChangeKind.MAINTENANCE, ChangePhase.ENDING, ChangeSignal.REFUSED): ChangePhase.FAILED,
}


class ChangeOpened(Struct, frozen=True):
    """`plan_capacity` decided on a change.

    ADD: `count` instances more in `group`, which has `size` then. SPARES: the group's reservation
    holds `nodes` from now on; `released` is how many of them were given up for the job recovery
    `cause`. BURN_IN: the idle `node` is tested in partition `group`. MAINTENANCE: the reservation
    `group` keeps `nodes` from `start` until `end`; `by` asked for it, or `own` is false and an
    admin made it; it follows the change `cause` where an admin changed it. In old journals, REMOVE:
    `node` and its `instance` leave; RETURN: `node` has the Reason of the removal `cause`.
    """

    at: datetime
    recovery: RecoveryId
    kind: ChangeKind
    group: str
    why: str
    count: int = 0
    size: int = 0
    node: NodeName | None = None
    instance: InstanceId | None = None
    nodes: tuple[NodeName, ...] = ()
    released: tuple[NodeName, ...] = ()
    cause: RecoveryId | None = None
    start: datetime | None = None
    end: datetime | None = None
    by: str = ""
    own: bool = True


class ClusterChange(Struct, frozen=True):
    """One change as the journal tells it."""

    opened: ChangeOpened
    phase: ChangePhase
    since: datetime
    steps: tuple[StepRecord, ...] = ()
    trail: tuple[TransitionRecord, ...] = ()
    tests: tuple[Finding, ...] = ()
    """What failed in its burn-in."""

    @property
    def id(self) -> RecoveryId:
        """Return its id, which is the client token of its order too."""
        return self.opened.recovery

    @property
    def ended(self) -> bool:
        """Return whether it is closed; a closed change never opens again."""
        return self.phase in ENDS

    @property
    def key(self) -> str:
        """Return what at most one open change may be about."""
        about = self.opened
        return f"{about.kind} {about.node or about.group}"

    def on(self, seen: str, at: datetime, why: str, _: object = None) -> ClusterChange:
        """Return the change after a signal. Raises IllegalSignal for what is not in the table."""
        signal = ChangeSignal(seen)
        phase = find_next_phase(TRANSITIONS, self.id, self.opened.kind, self.phase, signal)
        trail = (*self.trail, TransitionRecord(at, signal, phase, why))
        return replace(self, phase=phase, since=at, trail=trail)


def is_awaiting_instances(change: ClusterChange) -> bool:
    """Return whether instances may be coming: an order was taken, or its outcome is unknown."""
    return any(s.in_doubt or s.accepted for s in change.steps if s.kind is StepKind.ADD)


_PHASES: Final[Mapping[NodePhase, ChangePhase]] = {
    NodePhase.OPEN: ChangePhase.OPEN,
    NodePhase.CORDONED: ChangePhase.CLOSED,
    NodePhase.VACATED: ChangePhase.CLOSED,
    NodePhase.REMEDYING: ChangePhase.LEAVING,
    NodePhase.REMOVED: ChangePhase.DONE,
    NodePhase.RETURNED: ChangePhase.DONE,
    NodePhase.ESCALATED: ChangePhase.FAILED,
    NodePhase.CANCELLED: ChangePhase.CANCELLED,
}


def find_removal_phase(rec: NodeRecovery) -> ChangePhase:
    """Return the phase of a group's change of size that a node recovery carries out."""
    drained = rec.phase in (NodePhase.CORDONED, NodePhase.VACATED)
    if drained and rec.steps and rec.steps[-1].kind is StepKind.RETURN:
        return ChangePhase.GIVING_BACK
    return _PHASES.get(rec.phase, ChangePhase.GIVING_BACK)


def find_removal_kind(rec: NodeRecovery) -> ChangeKind:
    """Return what changes by a node recovery of capacity's."""
    return ChangeKind.REMOVE if rec.rule == SCALE_DOWN else ChangeKind.RETURN


def is_maintenance_window(change: ClusterChange) -> bool:
    """Return whether it is a maintenance window."""
    return change.opened.kind is ChangeKind.MAINTENANCE


def has_window_begun(window: ClusterChange) -> bool:
    """Return whether a maintenance window has begun, whatever became of it since."""
    return any(move.signal == ChangeSignal.BEGAN for move in window.trail)


def open_change(event: ChangeOpened) -> ClusterChange:
    """Return a change at its beginning."""
    return ClusterChange(event, ChangePhase.OPEN, event.at)

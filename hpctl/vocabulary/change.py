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
from hpctl.vocabulary.node_recovery import SCALE_DOWN, NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.recovery import (
    RecoveryStepRecord,
    RecoveryTransitionRecord,
    StepKind,
    find_phase_after_signal,
)


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


class ClusterChangePhase(StrEnum):
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


ENDS: Final = frozenset(
    {ClusterChangePhase.DONE, ClusterChangePhase.FAILED, ClusterChangePhase.CANCELLED}
)


class ClusterChangeSignal(StrEnum):
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


TRANSITIONS: Final[
    Mapping[tuple[ChangeKind, ClusterChangePhase, ClusterChangeSignal], ClusterChangePhase]
] = {
    (
        ChangeKind.ADD,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.ORDER_TAKEN,
    ): ClusterChangePhase.ARRIVING,
    (
        ChangeKind.ADD,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.REFUSED,
    ): ClusterChangePhase.FAILED,
    (
        ChangeKind.ADD,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.DEADLINE,
    ): ClusterChangePhase.FAILED,
    (
        ChangeKind.ADD,
        ClusterChangePhase.ARRIVING,
        ClusterChangeSignal.ARRIVED,
    ): ClusterChangePhase.DONE,
    (
        ChangeKind.ADD,
        ClusterChangePhase.ARRIVING,
        ClusterChangeSignal.REFUSED,
    ): ClusterChangePhase.FAILED,
    (
        ChangeKind.ADD,
        ClusterChangePhase.ARRIVING,
        ClusterChangeSignal.DEADLINE,
    ): ClusterChangePhase.FAILED,
    (
        ChangeKind.BURN_IN,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.ORDER_TAKEN,
    ): ClusterChangePhase.TESTING,
    (
        ChangeKind.BURN_IN,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.REFUSED,
    ): ClusterChangePhase.FAILED,
    (
        ChangeKind.BURN_IN,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.IN_USE,
    ): ClusterChangePhase.LEAVING,
    (
        ChangeKind.BURN_IN,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.DEADLINE,
    ): ClusterChangePhase.LEAVING,
    (
        ChangeKind.BURN_IN,
        ClusterChangePhase.TESTING,
        ClusterChangeSignal.TESTED,
    ): ClusterChangePhase.DONE,
    (
        ChangeKind.BURN_IN,
        ClusterChangePhase.TESTING,
        ClusterChangeSignal.REFUSED,
    ): ClusterChangePhase.FAILED,
    (
        ChangeKind.BURN_IN,
        ClusterChangePhase.TESTING,
        ClusterChangeSignal.IN_USE,
    ): ClusterChangePhase.LEAVING,
    (
        ChangeKind.BURN_IN,
        ClusterChangePhase.TESTING,
        ClusterChangeSignal.DEADLINE,
    ): ClusterChangePhase.LEAVING,
    (
        ChangeKind.BURN_IN,
        ClusterChangePhase.LEAVING,
        ClusterChangeSignal.GONE,
    ): ClusterChangePhase.CANCELLED,
    (
        ChangeKind.BURN_IN,
        ClusterChangePhase.LEAVING,
        ClusterChangeSignal.DEADLINE,
    ): ClusterChangePhase.FAILED,
    (
        ChangeKind.SPARES,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.SET_SEEN,
    ): ClusterChangePhase.DONE,
    (
        ChangeKind.SPARES,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.REFUSED,
    ): ClusterChangePhase.FAILED,
    (
        ChangeKind.SPARES,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.DEADLINE,
    ): ClusterChangePhase.FAILED,
    (
        ChangeKind.MAINTENANCE,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.RESERVED,
    ): ClusterChangePhase.SCHEDULED,
    (
        ChangeKind.MAINTENANCE,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.REFUSED,
    ): ClusterChangePhase.FAILED,
    (
        ChangeKind.MAINTENANCE,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.DEADLINE,
    ): ClusterChangePhase.FAILED,
    (
        ChangeKind.MAINTENANCE,
        ClusterChangePhase.OPEN,
        ClusterChangeSignal.END_ASKED,
    ): ClusterChangePhase.ENDING,
    (
        ChangeKind.MAINTENANCE,
        ClusterChangePhase.SCHEDULED,
        ClusterChangeSignal.BEGAN,
    ): ClusterChangePhase.BEGUN,
    (
        ChangeKind.MAINTENANCE,
        ClusterChangePhase.SCHEDULED,
        ClusterChangeSignal.GONE,
    ): ClusterChangePhase.CANCELLED,
    # An admin changed the reservation: another change follows it.
    (
        ChangeKind.MAINTENANCE,
        ClusterChangePhase.SCHEDULED,
        ClusterChangeSignal.CHANGED,
    ): ClusterChangePhase.CANCELLED,
    (
        ChangeKind.MAINTENANCE,
        ClusterChangePhase.SCHEDULED,
        ClusterChangeSignal.END_ASKED,
    ): ClusterChangePhase.ENDING,
    (
        ChangeKind.MAINTENANCE,
        ClusterChangePhase.BEGUN,
        ClusterChangeSignal.CHANGED,
    ): ClusterChangePhase.DONE,
    (
        ChangeKind.MAINTENANCE,
        ClusterChangePhase.BEGUN,
        ClusterChangeSignal.GONE,
    ): ClusterChangePhase.DONE,
    (
        ChangeKind.MAINTENANCE,
        ClusterChangePhase.BEGUN,
        ClusterChangeSignal.END_ASKED,
    ): ClusterChangePhase.ENDING,
    (
        ChangeKind.MAINTENANCE,
        ClusterChangePhase.ENDING,
        ClusterChangeSignal.GONE,
    ): ClusterChangePhase.DONE,
    (
        ChangeKind.MAINTENANCE,
        ClusterChangePhase.ENDING,
        ClusterChangeSignal.REFUSED,
    ): ClusterChangePhase.FAILED,
}


class ChangeOpened(Struct, frozen=True):
    """`plan_all_capacity_changes` decided on a change.

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
    phase: ClusterChangePhase
    since: datetime
    steps: tuple[RecoveryStepRecord, ...] = ()
    trail: tuple[RecoveryTransitionRecord, ...] = ()
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
        """Return the change after a signal. Raises IllegalRecoverySignalError for what is not in
        the table."""
        signal = ClusterChangeSignal(seen)
        phase = find_phase_after_signal(TRANSITIONS, self.id, self.opened.kind, self.phase, signal)
        trail = (*self.trail, RecoveryTransitionRecord(at, signal, phase, why))
        return replace(self, phase=phase, since=at, trail=trail)


def is_change_awaiting_instances(change: ClusterChange) -> bool:
    """Return whether instances may be coming: an order was taken, or its outcome is unknown."""
    return any(s.in_doubt or s.accepted for s in change.steps if s.kind is StepKind.ADD)


_PHASES: Final[Mapping[NodeRecoveryPhase, ClusterChangePhase]] = {
    NodeRecoveryPhase.OPEN: ClusterChangePhase.OPEN,
    NodeRecoveryPhase.CORDONED: ClusterChangePhase.CLOSED,
    NodeRecoveryPhase.VACATED: ClusterChangePhase.CLOSED,
    NodeRecoveryPhase.REMEDYING: ClusterChangePhase.LEAVING,
    NodeRecoveryPhase.REMOVED: ClusterChangePhase.DONE,
    NodeRecoveryPhase.RETURNED: ClusterChangePhase.DONE,
    NodeRecoveryPhase.ESCALATED: ClusterChangePhase.FAILED,
    NodeRecoveryPhase.CANCELLED: ClusterChangePhase.CANCELLED,
}


def find_node_removal_phase(rec: NodeRecovery) -> ClusterChangePhase:
    """Return the phase of a group's change of size that a node recovery carries out."""
    drained = rec.phase in (NodeRecoveryPhase.CORDONED, NodeRecoveryPhase.VACATED)
    if drained and rec.steps and rec.steps[-1].kind is StepKind.RETURN:
        return ClusterChangePhase.GIVING_BACK
    return _PHASES.get(rec.phase, ClusterChangePhase.GIVING_BACK)


def find_node_removal_kind(rec: NodeRecovery) -> ChangeKind:
    """Return what changes by a node recovery of capacity's."""
    return ChangeKind.REMOVE if rec.rule == SCALE_DOWN else ChangeKind.RETURN


def is_maintenance_window(change: ClusterChange) -> bool:
    """Return whether it is a maintenance window."""
    return change.opened.kind is ChangeKind.MAINTENANCE


def has_maintenance_window_begun(window: ClusterChange) -> bool:
    """Return whether a maintenance window has begun, whatever became of it since."""
    return any(move.signal == ClusterChangeSignal.BEGAN for move in window.trail)


def create_cluster_change(event: ChangeOpened) -> ClusterChange:
    """Return a change at its beginning."""
    return ClusterChange(event, ClusterChangePhase.OPEN, event.at)

"""Which nodes an admin keeps in a maintenance reservation, by Slurm's reservations and flags.

slurmctld sets and clears a node's flag MAINTENANCE every 5 s, so a reservation that has just begun
is seen in the list of reservations first. That list costs a separate request and is read only
while a node is faulty or treated, or bears the flag.
"""

import time
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final, Protocol

from msgspec.structs import replace

from hpctl.engine import test_reservation
from hpctl.engine.view import PlanningView
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary import spares_reservation
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmNode, SlurmReservation

FRESH_S: Final = 2.0
"""A list so old will do for the next step of a recovery."""

KNOWN_S: Final = 30.0
"""A list so old will do for what is shown."""

LOOK_S: Final = 5.0
"""How often slurmctld looks which reservations have begun or ended."""

_FLAGS: Final = frozenset({"MAINT", "MAINTENANCE"})
_OWN: Final = (test_reservation.PREFIX, spares_reservation.RESERVATION)


def is_node_in_maintenance(node: SlurmNode) -> bool:
    """Return whether slurmctld shows that a maintenance reservation holds a node."""
    return not _FLAGS.isdisjoint(node.flags)


def find_maintenance_reservations(
    slurm: SchedulerView, lead_s: float, now: datetime
) -> dict[NodeName, SlurmReservation]:
    """Return the maintenance reservation of each node that one holds now or within `lead_s`
    seconds.

    Of several, the one that ends last. hpctl's own reservations are none. Where the reservations
    were not asked for, a node with the flag has one without a name; else the flag, which may be
    late, counts for nothing.
    """
    if slurm.reservations is None:
        flagged_nodes = (node.name for node in slurm.nodes.values() if is_node_in_maintenance(node))
        return {name: SlurmReservation("", (name,), maintenance=True) for name in flagged_nodes}
    found: dict[NodeName, SlurmReservation] = {}
    for one in slurm.reservations.values():
        if not _is_maintenance_due(one, lead_s, now):
            continue
        for name in one.nodes:
            other = found.get(name)
            if other is None or _is_reservation_ending_later(one, other):
                found[name] = one
    return found


def is_hpctl_reservation(one: SlurmReservation) -> bool:
    """Return whether hpctl made a reservation, for a test or for spares, and acts in it."""
    return one.name.startswith(_OWN)


def _is_maintenance_due(one: SlurmReservation, lead_s: float, now: datetime) -> bool:
    if not one.maintenance or is_hpctl_reservation(one):
        return False
    begun = one.start is None or add_seconds_within_bounds(one.start, -lead_s) <= now
    return begun and (one.end is None or now < one.end)


def _is_reservation_ending_later(one: SlurmReservation, other: SlurmReservation) -> bool:
    if other.end is None or one.end is None:
        return one.end is None
    return one.end > other.end


def find_reservation_blocking_recovery(
    rec: NodeRecovery, view: PlanningView
) -> SlurmReservation | None:
    """Return the maintenance reservation that keeps hpctl from a node under treatment.

    A recovery that makes room for a maintenance window lasts until the window has begun.
    """
    held = view.begun if rec.is_for_maintenance else view.maintenance
    return held.get(rec.node)


def describe_maintenance_reservation(one: SlurmReservation, now: datetime) -> str:
    """Return which maintenance reservation holds a node, from when and until when."""
    name = f"the maintenance reservation {one.name}" if one.name else "a maintenance reservation"
    until = f" until {one.end:%Y-%m-%d %H:%M:%S} UTC" if one.end is not None else ""
    if one.start is not None and now < one.start:
        return f"{name} begins at {one.start:%Y-%m-%d %H:%M:%S} UTC and holds the node{until}"
    return f"{name} holds the node{until}"


class ReservationSource(Protocol):
    """Slurm, as far as its reservations go."""

    def reservations(self) -> Mapping[str, SlurmReservation]:
        """Return all reservations by name. Raises Unavailable."""


class ReservationReader:
    """Slurm's reservations, read as often as what is about to be done needs."""

    def __init__(self, source: ReservationSource) -> None:
        self._source = source
        self._found: Mapping[str, SlurmReservation] | None = None
        self._read_at = float("-inf")
        self._concerned: frozenset[NodeName] = frozenset()

    def read(self) -> Mapping[str, SlurmReservation]:
        """Return the reservations now. Raises Unavailable."""
        found = self._source.reservations()
        self._found, self._read_at = found, time.monotonic()
        return found

    def attach(
        self, slurm: SchedulerView, concerned: Collection[NodeName], *, watched: bool = False
    ) -> SchedulerView:
        """Return the view with reservations as fresh as needed. Raises Unavailable.

        `concerned`: nodes that are faulty or treated. One that is new to this list has them read at
        once: its recovery is about to open. `watched`: a maintenance window is open.
        """
        age = time.monotonic() - self._read_at
        new = not self._concerned.issuperset(concerned)
        shown = watched or any(map(is_node_in_maintenance, slurm.nodes.values()))
        if new or (concerned and age > FRESH_S) or (shown and age > KNOWN_S):
            self.read()
        elif not concerned and not shown and age > KNOWN_S:
            self._found = None
        self._concerned = frozenset(concerned)
        return replace(slurm, reservations=self._found)

"""Which nodes are kept as spares, and when one is released. Pure.

Spares are K idle healthy nodes of a group in a reservation of Slurm's, so that no other job takes
them. A job whose recovery is about to start it again, and that finds too few free nodes, gets as
many of them as it has lost. When nodes are idle again the reservation is filled up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from hpctl.core.bounds import later
from hpctl.core.capacity import RESERVATION, idle, nodes_of, partitions_of
from hpctl.core.change import ChangeOpened, Kind, Phase
from hpctl.core.job_recovery import JobRecovery
from hpctl.core.job_recovery import Phase as JobPhase
from hpctl.core.model import NodeName, SlurmNode
from hpctl.core.node_recovery import Phase as NodePhase
from hpctl.core.policy import Policy
from hpctl.core.recovery import recovery_id
from hpctl.core.view import View, restart_at

REFUSED_S: Final = 30.0
"""How long a refused reservation is left alone."""

_ABOUT_TO_START: Final = (JobPhase.RELEASED, JobPhase.STARTING)


def spare_changes(view: View, policy: Policy, now: datetime) -> Iterator[ChangeOpened]:
    """The reservations that should hold other nodes than they do."""
    # What was kept for a group that the configuration names no more is let go.
    ours = [
        name.removeprefix(RESERVATION) for name in view.reservations if name.startswith(RESERVATION)
    ]
    for group, count in {**dict.fromkeys(ours, 0), **policy.spares}.items():
        if f"{Kind.SPARES} {group}" in view.state.open_changes:
            continue
        change = _change(group, count, view, now)
        if change is not None:
            yield change


def _change(group: str, count: int, view: View, now: datetime) -> ChangeOpened | None:
    held = view.reservations.get(RESERVATION + group, ())
    nodes = {node.name: node for node, _ in nodes_of(group, view)}
    ready = [n for n in held if n in nodes and idle(nodes[n], view, reserved=True)]
    good = [n for n in held if n in ready or (n in nodes and _returning(nodes[n], view))]
    victim = _victim(group, ready, view, now)
    released: Sequence[NodeName] = ()
    cause = None
    if victim is not None:
        cause, released = victim
    keep = max(0, count - _owed(group, view) - len(released))
    stays = [n for n in good if n not in released]
    elsewhere = {n for name, names in view.reservations.items() for n in names} - set(held)
    free = sorted(
        n for n, node in nodes.items() if n not in held and n not in elsewhere and idle(node, view)
    )
    back = sorted(n for n, node in nodes.items() if n not in held and _returning(node, view))
    wanted = tuple(sorted([*stays, *free, *back][:keep]))
    if set(wanted) == set(held) or (not released and _refused(group, wanted, view, now)):
        return None
    why = _why(count, held, wanted, released, cause.attempt.job if cause else None)
    return ChangeOpened(
        at=now,
        recovery=recovery_id("k", group, wanted, held, len(view.state.changes), known=view.state),
        kind=Kind.SPARES,
        group=group,
        why=why,
        nodes=wanted,
        released=tuple(released),
        cause=cause.id if cause else None,
    )


def _returning(node: SlurmNode, view: View) -> bool:
    """Whether a node is about to be given back: reserved now, no job that waits is quicker."""
    rid = view.state.open_nodes.get(node.name)
    verifying = rid is not None and view.state.nodes[rid].phase is NodePhase.VERIFYING
    return verifying and node.drained and not node.down


def _why(
    count: int,
    held: Sequence[NodeName],
    wanted: Sequence[NodeName],
    released: Sequence[NodeName],
    job: int | None,
) -> str:
    if released:
        return f"{','.join(released)} released to job {job}"
    lost = [n for n in held if n not in wanted]
    if lost:
        return f"{','.join(lost)} is no spare any more; {len(wanted)} of {count} kept"
    return f"{len(wanted)} of {count} kept"


def _victim(
    group: str, good: Sequence[NodeName], view: View, now: datetime
) -> tuple[JobRecovery, list[NodeName]] | None:
    """The first job that is about to start and short of nodes, and the spares that it gets."""
    partitions = set(partitions_of(group, view))
    # The flag RESERVED comes seconds after the reservation.
    reserved = {n for names in view.reservations.values() for n in names}
    for rid in sorted(view.state.open_jobs.values()):
        rec = view.state.jobs[rid]
        job = view.scheduler.jobs.get(rec.attempt.job)
        if rec.phase not in _ABOUT_TO_START or job is None or job.state != "PENDING":
            continue
        theirs = set(job.partition.split(","))
        if job.completing or rec.over_budget or not theirs & partitions:
            continue
        # START_NOW waits for the same.
        if rec.phase is JobPhase.RELEASED and now < restart_at(rec, view):
            continue
        if rec.start_at is not None and now < rec.start_at:
            continue
        lost = len(set(rec.bad_nodes) | set(rec.exclude)) - _released(rec, view)
        barred = {*job.excluded, *rec.bad_nodes, *rec.exclude}
        free = sum(
            n.name not in barred | reserved and bool(theirs & set(n.partitions)) and idle(n, view)
            for n in view.scheduler.nodes.values()
        )
        fit = [n for n in good if n not in barred]
        take = min(lost, max(job.wants, 1) - free, len(fit))
        if take > 0:
            return rec, fit[:take]
    return None


def _released(rec: JobRecovery, view: View) -> int:
    """How many spares this recovery has had already."""
    mine = (c for c in view.state.changes.values() if c.opened.cause == rec.id)
    return sum(len(c.opened.released) for c in mine if c.phase is not Phase.FAILED)


def _owed(group: str, view: View) -> int:
    """Spares that were released to jobs which have not started yet: not to be taken back."""
    waiting = {
        rid
        for rid in view.state.open_jobs.values()
        if view.state.jobs[rid].phase in _ABOUT_TO_START
    }
    return sum(
        len(c.opened.released)
        for c in view.state.changes.values()
        if c.opened.group == group and c.opened.cause in waiting and c.phase is not Phase.FAILED
    )


def _refused(group: str, wanted: Sequence[NodeName], view: View, now: datetime) -> bool:
    """Whether this was refused a moment ago."""
    return any(
        c.phase is Phase.FAILED
        and c.opened.group == group
        and set(c.opened.nodes) == set(wanted)
        and now < later(c.since, REFUSED_S)
        for c in view.state.changes.values()
        if c.opened.kind is Kind.SPARES
    )

"""Which nodes a group gives up: the service itself would take any.

UpdateCluster with a lower count ends instances at random, with whatever runs there. So nodes are
chosen here, what is broken first and then what is idle, and go by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpctl.clusters.names import NOT_FOUND, UNKNOWN, NodeRow, natural
from hpctl.clusters.order_plan import PREFIX
from hpctl.errors import HpctlError

GOING = ("ShuttingDown", "NotFound")


@dataclass(frozen=True, slots=True)
class Pick:
    """A node that is to go, and why it is this one. `rank` 0 goes first."""

    row: NodeRow
    rank: int
    why: str


def judged(row: NodeRow) -> Pick:
    """How readily a node is given up."""
    if not row.instance_id:
        return Pick(row, 0, "no instance yet")
    if row.status != "Running":
        return Pick(row, 0, f"{row.status} in HyperPod")
    if row.slurm_reason.startswith(f"{PREFIX}delete:"):
        return Pick(row, 1, "an earlier command has drained it for this")
    if row.health == "faulty":
        return Pick(row, 2, f"faulty: {row.health_why}")
    if row.jobs:
        return Pick(row, 6, f"{len(row.jobs)} job(s) run there")
    closed = {"DRAIN", "FAIL", "NOT_RESPONDING"} & set(row.slurm_flags)
    if row.slurm_state == "DOWN" or closed:
        return Pick(row, 3, f"{'+'.join([row.slurm_state, *sorted(closed)])} in Slurm, no job")
    if row.slurm_state == NOT_FOUND:
        return Pick(row, 3, "Slurm does not know it")
    if row.slurm_state == UNKNOWN:
        return Pick(row, 5, "nobody knows what runs there")
    return Pick(row, 4, "idle" if row.slurm_state == "IDLE" else f"{row.slurm_state}, no job")


def pick(rows: Sequence[NodeRow], group: str, target: int, count: int) -> tuple[Pick, ...]:
    """The nodes to give up so that a group of `target` has `count`: broken, then idle, the last
    name first; with jobs at last.

    Fewer, perhaps none, where some are going already: whether `target` tells of those, nobody can
    say, and no group may end with less than was asked for.
    """
    own = [judged(r) for r in rows if r.group == group and r.status not in GOING]
    own.sort(key=lambda p: natural(p.row.node or p.row.logical_id), reverse=True)
    own.sort(key=lambda p: (p.rank, len(p.row.jobs)))
    return tuple(own[: max(0, min(target, len(own)) - count)])


def named(rows: Sequence[NodeRow], group: str) -> tuple[Pick, ...]:
    """Nodes that somebody chose. Raises HpctlError where one is not of the group."""
    for row in rows:
        if row.group != group:
            raise HpctlError(
                f"{row.shown} is in group {row.group}, not {group}; nothing was done",
                "`hpctl cluster delete-nodes` removes nodes of any group",
            )
    return tuple(judged(row) for row in rows)

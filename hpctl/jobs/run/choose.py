"""Which nodes of the allocation the next step gets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hpctl.core.model import NodeName, SlurmNode, reason_owner

NOT_NOW = frozenset({"FAIL", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_ISSUED", "INVALID_REG"})


@dataclass(frozen=True, slots=True)
class Fitness:
    """The allocation's nodes, those that may run a step and those that may not, with why."""

    healthy: tuple[NodeName, ...]
    unfit: Mapping[NodeName, str]


def fitness(
    allocated: Sequence[NodeName],
    states: Mapping[NodeName, SlurmNode],
    suspects: Mapping[NodeName, str],
) -> Fitness:
    """Sort the nodes. `suspects` are those of which the supervisor itself knows something.

    A node that slurmctld does not describe is not known to be healthy. One that an operator
    drains runs its jobs to their end, and this is one of them; one that hpctl drained is sick.
    """
    unfit: dict[NodeName, str] = {}
    for name in allocated:
        why = _unfit(states.get(name)) or suspects.get(name)
        if why:
            unfit[name] = why
    return Fitness(tuple(name for name in allocated if name not in unfit), unfit)


def choose(
    healthy: Sequence[NodeName],
    size: int,
    before: Collection[NodeName] = (),
    avoid: Iterable[NodeName] = (),
    exclude: Collection[NodeName] = (),
) -> tuple[NodeName, ...]:
    """`size` nodes, or fewer where there are not so many; the allocation's order.

    Never one of `exclude`. Those of the step `before` come first: their page caches and local
    checkpoints are warm. Those to `avoid` come last: they have been in trouble with this job.
    """
    known, bad = set(before), set(avoid)
    ranked = sorted(
        (name for name in healthy if name not in exclude),
        key=lambda name: (name in bad, name not in known, healthy.index(name)),
    )
    taken = set(ranked[:size])
    return tuple(name for name in healthy if name in taken)


def _unfit(node: SlurmNode | None) -> str:
    if node is None:
        return "slurmctld does not know it"
    if node.down:
        return f"DOWN: {node.reason}" if node.reason else "DOWN"
    if not node.responding:
        return "not responding"
    if node.drained and reason_owner(node.reason) is not None:
        return f"drained: {node.reason}"
    flags = sorted(node.flags & NOT_NOW)
    return flags[0] if flags else ""

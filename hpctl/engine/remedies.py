"""Which remedies of open recoveries may begin. Pure: a view, a policy and a time in, values out.

A proven fault closes its node at once. What a remedy costs comes later, and has separate limits:
REMEDY_GATES are asked before the first reset, reboot or replacement of each recovery. A recovery
takes a slot with its remedy and keeps it until it ends; one that waits for jobs, or for a slot,
takes none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct, field

from hpctl.engine.gates import (
    count_consecutive_launch_failures,
    count_nodes_per_partition,
    find_drained_nodes_without_recovery,
    find_mass_event_recoveries,
    is_target_approved_by_operator,
)
from hpctl.engine.view import PlanningView, is_provider_reclaiming_instance
from hpctl.faults.catalogue import OWN_HARDWARE
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.assessment import Remedy
from hpctl.vocabulary.cloud_facts import InstanceStatus
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.node_recovery import (
    FELT,
    NodeRecovery,
    NodeRecoveryPhase,
    is_await_only_remedy_ladder,
)
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy

SHOWN: Final = 4
"""So many of what takes the slots are named."""
_ORDERED: Final = frozenset({Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE})


class RemedyBudgetUse(Struct):
    """What the remedies under way have taken of the budgets; grows as more are let through."""

    nodes: int = 0
    partition_nodes: Mapping[str, int] = field(default_factory=dict)
    kept_out: frozenset[NodeName] = frozenset()
    """Nodes that hpctl has closed and that nothing treats: each counts as one remedy."""
    holders: list[NodeRecovery] = field(default_factory=list)
    """The recoveries that hold a slot."""
    by_partition: dict[str, int] = field(default_factory=dict)
    last_hour: int = 0
    """How many remedies began within an hour."""

    def add(self, rec: NodeRecovery, view: PlanningView) -> None:
        """Give one more recovery a slot."""
        self.holders.append(rec)
        self._count_node_partitions(rec.node, view)

    def count_nodes_left_drained(self, view: PlanningView) -> None:
        """Count the nodes that are left closed."""
        for name in self.kept_out:
            self._count_node_partitions(name, view)

    def _count_node_partitions(self, name: NodeName, view: PlanningView) -> None:
        node = view.scheduler.nodes.get(name)
        for partition in node.partitions if node is not None else ():
            self.by_partition[partition] = self.by_partition.get(partition, 0) + 1


def count_remedy_budget_use(view: PlanningView, now: datetime) -> RemedyBudgetUse:
    """Count what is under way before any further remedies are let through."""
    state = view.state
    slots = RemedyBudgetUse(
        nodes=len(view.scheduler.nodes),
        partition_nodes=count_nodes_per_partition(view),
        kept_out=find_drained_nodes_without_recovery(view),
    )
    slots.count_nodes_left_drained(view)
    for rid in state.open_nodes.values():
        rec = state.nodes[rid]
        if has_recovery_begun_remedy(rec):
            slots.add(rec, view)
    for rec in state.nodes.values():
        began = find_remedy_start(rec)
        if began is not None and not rec.by and now < add_seconds_within_bounds(began, 3600):
            slots.last_hour += 1
    return slots


def has_recovery_begun_remedy(rec: NodeRecovery) -> bool:
    """Return whether the remedy of an open recovery has begun."""
    return not rec.ended and not rec.is_for_capacity_change and find_remedy_start(rec) is not None


def find_remedy_start(rec: NodeRecovery) -> datetime | None:
    """Return when the first remedy of a recovery began, by its own order or by the provider's."""
    times = [step.started for step in rec.steps if step.kind in FELT]
    times += [move.at for move in rec.trail if move.phase == NodeRecoveryPhase.REMEDYING]
    return min(times, default=None)


RemedyGate = Callable[
    [NodeRecovery, PlanningView, RemedyBudgetUse, RecoveryPolicy, datetime], str | None
]


def explain_remedy_block_by_budget(
    rec: NodeRecovery,
    view: PlanningView,
    slots: RemedyBudgetUse,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """Enough remedies are under way, by cluster, partition and hour."""
    b = policy.budgets
    limit = max(b.open_min, math.floor(b.open_fraction * slots.nodes))
    taken = len(slots.holders) + len(slots.kept_out)
    if taken >= limit:
        return f"{_describe_budget_use(slots)}; the budget is {limit}"
    node = view.scheduler.nodes.get(rec.node)
    for partition in node.partitions if node is not None else ():
        size = slots.partition_nodes.get(partition, 0)
        limit = max(b.partition_min, math.floor(b.partition_fraction * size))
        if slots.by_partition.get(partition, 0) >= limit:
            return f"{_describe_budget_use(slots)}; the budget of partition {partition} is {limit}"
    if slots.last_hour >= b.per_hour:
        return f"{slots.last_hour} remedies began within an hour; the budget is {b.per_hour}"
    return None


def _describe_budget_use(slots: RemedyBudgetUse) -> str:
    """Say which recoveries and nodes take the slots."""
    parts = []
    holders, kept_out = slots.holders, sorted(slots.kept_out)
    if holders:
        named = _format_abbreviated_name_list([f"{rec.id} of {rec.node}" for rec in holders])
        verb = "remedy is" if len(holders) == 1 else "remedies are"
        parts.append(f"{len(holders)} {verb} under way ({named})")
    if kept_out:
        verb = "node is" if len(kept_out) == 1 else "nodes are"
        parts.append(
            f"{len(kept_out)} {verb} left closed to a person"
            f" ({_format_abbreviated_name_list(kept_out)})"
        )
    return " and ".join(parts)


def _format_abbreviated_name_list(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def explain_remedy_block_by_repeated_recoveries(
    rec: NodeRecovery,
    view: PlanningView,
    slots: RemedyBudgetUse,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """The node was recovered too often lately."""
    b = policy.budgets
    # What was withdrawn gave it no remedy: it says something of a mass event, not of the node.
    earlier = [
        r
        for r in view.state.nodes.values()
        if r.node == rec.node
        and r.id != rec.id
        and not (r.by or r.withdrawn)
        and now < add_seconds_within_bounds(r.opened, b.offender_window_s)
    ]
    if len(earlier) < b.offender_recoveries:
        return None
    days = b.offender_window_s / 86400
    return f"recovered {len(earlier)} times in {days:g} days: a repeat offender"


def explain_remedy_block_by_launch_failures(
    rec: NodeRecovery,
    view: PlanningView,
    slots: RemedyBudgetUse,
    policy: RecoveryPolicy,
    now: datetime,
) -> str | None:
    """The last remedied instances did not return."""
    b = policy.budgets
    failures = count_consecutive_launch_failures(view.state, now, b.launch_window_s)
    if failures < b.launch_failures:
        return None
    return f"the last {failures} remedied instances did not come back: look at them first"


class NamedRemedyGate(Struct, frozen=True):
    """A gate of remedies. An approval of the node lifts it; an operator's order passes it."""

    name: str
    gate: RemedyGate
    approvable: bool = True


REMEDY_GATES: tuple[NamedRemedyGate, ...] = (
    NamedRemedyGate("budget", explain_remedy_block_by_budget),
    NamedRemedyGate("offender", explain_remedy_block_by_repeated_recoveries),
    NamedRemedyGate("launch_breaker", explain_remedy_block_by_launch_failures),
)


HOLDS_REMEDY: Final = frozenset({"correlated", *(row.name for row in REMEDY_GATES)})
"""The gates that may hold the remedy of an open recovery."""


class BlockedRemedy(Struct, frozen=True):
    """Why the remedy of an open recovery may not begin now; `gate` names what holds it."""

    gate: str
    why: str


def find_blocked_remedies(
    view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> dict[RecoveryId, BlockedRemedy]:
    """Return the open recoveries whose remedy must wait, and why.

    Those of a mass event's own hardware, in every mode. In mode own, where hpctl gives the orders,
    also those whose nodes are vacated and that a gate holds; the longest open goes first.
    """
    held = _find_remedies_blocked_by_mass_event(view, policy, now)
    waiting = [
        rec for rec in _list_actionable_recoveries(view) if _needs_remedy_slot(rec, view, policy)
    ]
    waiting = [rec for rec in waiting if rec.id not in held]
    if not waiting:
        return held
    slots = count_remedy_budget_use(view, now)
    for rec in sorted(waiting, key=lambda rec: (rec.opened, rec.id)):
        found = None
        if not is_target_approved_by_operator(rec.node, view, policy, rec.opened):
            found = _find_gate_blocking_remedy(rec, view, slots, policy, now)
        if found is not None:
            held[rec.id] = found
            continue
        slots.add(rec, view)
        slots.last_hour += 1
    return held


def _find_remedies_blocked_by_mass_event(
    view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> dict[RecoveryId, BlockedRemedy]:
    found = {}
    for rid, why in find_mass_event_recoveries(view, policy, now).items():
        if view.state.nodes[rid].rule in OWN_HARDWARE:
            found[rid] = BlockedRemedy("correlated", why)
    return found


def _find_gate_blocking_remedy(
    rec: NodeRecovery,
    view: PlanningView,
    slots: RemedyBudgetUse,
    policy: RecoveryPolicy,
    now: datetime,
) -> BlockedRemedy | None:
    for row in REMEDY_GATES:
        why = row.gate(rec, view, slots, policy, now)
        if why is not None:
            return BlockedRemedy(row.name, why)
    return None


def _list_actionable_recoveries(view: PlanningView) -> list[NodeRecovery]:
    """Return the open recoveries that may act: not in maintenance, and not quarantined."""
    names = [
        n for n in view.state.open_nodes if n not in view.maintenance and not view.is_quarantined(n)
    ]
    return [view.state.nodes[view.state.open_nodes[name]] for name in names]


def _needs_remedy_slot(rec: NodeRecovery, view: PlanningView, policy: RecoveryPolicy) -> bool:
    """Whether the next thing that a recovery does is its first remedy, which hpctl orders."""
    if (
        policy.mode is not OperatingMode.OWN
        or policy.attended
        or rec.by
        or is_await_only_remedy_ladder(rec.ladder)
    ):
        return False
    if (
        rec.phase is not NodeRecoveryPhase.VACATED
        or has_recovery_begun_remedy(rec)
        or is_provider_reclaiming_instance(rec.node, view)
    ):
        return False
    if rec.rung >= len(rec.ladder) or rec.remedy not in _ORDERED:
        return False
    if rec.remedy is Remedy.RESET_GPU:
        return True
    return view.provider.present and _can_provider_accept_instance_order(rec, view)


def _can_provider_accept_instance_order(rec: NodeRecovery, view: PlanningView) -> bool:
    """Whether the service would take an order for the instance now: else the recovery waits for
    that, for as long as a replacement may last, and another uses the slot meanwhile."""
    instance = view.instance(rec.node)
    if instance is None:
        return False
    ready = (InstanceStatus.RUNNING, InstanceStatus.FAILURE)
    return instance.status in ready or instance.id != rec.generation.instance

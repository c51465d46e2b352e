"""Which changes of capacity may open: the autoscaler's and the spares'. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from hpctl.core.autoscale import Decision, ScaleDown, ScaleUp, decide
from hpctl.core.bounds import later
from hpctl.core.capacity import scale_view, stopped
from hpctl.core.change import ChangeOpened, Kind, Phase, ordered
from hpctl.core.model import InstanceStatus, NodeName, RecoveryId, reason_owner
from hpctl.core.policy import Mode, Policy
from hpctl.core.recovery import recovery_id
from hpctl.core.spares import spare_changes
from hpctl.core.view import View
from hpctl.core.walls import Flaw, each


def plan_capacity(
    view: View, policy: Policy, now: datetime
) -> tuple[tuple[ChangeOpened, ...], tuple[Flaw, ...]]:
    """What opens now, and what could not be decided. Nothing in mode observe, on old facts, or
    where hpctl is stopped."""
    if policy.mode is Mode.OBSERVE or stopped(view, policy, now):
        return (), ()
    taken: set[NodeName] = set()

    def spares() -> list[ChangeOpened]:
        found = list(spare_changes(view, policy, now))
        taken.update(node for change in found for node in change.nodes)
        return found

    def scales() -> list[ChangeOpened]:
        return [
            change
            for decision in scale_decisions(view, policy, now)
            for change in _changes(decision, view, now)
            if change.node not in taken
        ]

    def removals() -> list[ChangeOpened]:
        return list(_returns(view, policy, now))

    parts = {"spares": spares, "autoscale": scales, "removals": removals}
    opens, flaws = each("plan", parts, str, lambda part: parts[part]())
    return tuple(change for part in opens for change in part), tuple(flaws)


def _returns(view: View, policy: Policy, now: datetime) -> Iterator[ChangeOpened]:
    """Nodes that still bear the Reason of a removal that is over, and that nobody deletes.

    Their machine is another one by now; or it stayed, and could not be given back at the time.
    """
    known = view.state.changes
    for node in view.scheduler.nodes.values():
        owner = reason_owner(node.reason) if node.drained and node.responding else None
        removal = known.get(owner) if owner is not None else None
        instance = view.instance(node.name)
        if removal is None or removal.opened.kind is not Kind.REMOVE or not removal.ended:
            continue
        if instance is None or instance.status is not InstanceStatus.RUNNING:
            continue
        another = instance.id != removal.opened.instance
        if not another and ordered(removal):
            continue
        if f"{Kind.RETURN} {node.name}" in view.state.open_changes:
            continue
        if _refused(removal.id, view, policy, now):
            continue
        was = f"no longer {removal.opened.instance}" if another else "and stays"
        yield ChangeOpened(
            at=now,
            recovery=recovery_id("s", Kind.RETURN, instance.id, now, len(known), known=view.state),
            kind=Kind.RETURN,
            group=instance.group,
            why=f"{node.name} is {instance.id} by now, {was}",
            node=node.name,
            instance=instance.id,
            cause=removal.id,
        )


def _refused(removal: RecoveryId, view: View, policy: Policy, now: datetime) -> bool:
    """Whether giving back that node was tried a while ago, in vain."""
    return any(
        c.phase is Phase.FAILED and now < later(c.since, policy.autoscale.cooldown_s)
        for c in view.state.changes.values()
        if c.opened.cause == removal
    )


def scale_decisions(view: View, policy: Policy, now: datetime) -> tuple[Decision, ...]:
    """What autoscaling answers for each group; what `hpctl autoscale explain` prints."""
    if not policy.autoscale.groups:
        return ()
    return decide(scale_view(view, policy, now), policy.autoscale, now)


def _changes(decision: Decision, view: View, now: datetime) -> Iterator[ChangeOpened]:
    number = len(view.state.changes)
    if isinstance(decision, ScaleUp):
        up = decision
        yield ChangeOpened(
            at=now,
            recovery=recovery_id("s", Kind.ADD, up.group, up.size, now, number, known=view.state),
            kind=Kind.ADD,
            group=up.group,
            why=up.why,
            count=up.count,
            size=up.size,
        )
    elif isinstance(decision, ScaleDown):
        for one in decision.nodes:
            yield ChangeOpened(
                at=now,
                recovery=recovery_id("s", Kind.REMOVE, one.instance, now, number, known=view.state),
                kind=Kind.REMOVE,
                group=decision.group,
                why=decision.why,
                node=one.node,
                instance=one.instance,
            )

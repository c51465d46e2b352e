"""Which idle node is tested next: the one with the worst forecast, then the oldest test. Pure.

A burn-in is a change like others: its job goes out as a journaled step, and is canceled as soon as
a user's job waits that could use the node. Slurm's own preemption needs nothing of it: without any,
as slurm.conf comes, the job is behind all others and its node is free within seconds.
"""

from collections.abc import Iterator
from datetime import datetime

from hpctl.core.bounds import EARLIEST, later
from hpctl.core.capacity import idle, wanted_by_others
from hpctl.core.change import Change, ChangeOpened, Kind, Phase
from hpctl.core.forecast import forecasts
from hpctl.core.model import NodeName, SlurmNode
from hpctl.core.policy import Policy
from hpctl.core.recovery import recovery_id
from hpctl.core.view import View, fresh


def burn_ins(view: View, policy: Policy, now: datetime) -> Iterator[ChangeOpened]:
    """The tests that begin now."""
    state, wanted = view.state, policy.idle
    running = sum(key.startswith(f"{Kind.BURN_IN} ") for key in state.open_changes)
    if wanted.every_s <= 0 or running >= wanted.at_once:
        return
    tested, tried = last_tests(view)
    reserved = {name for names in view.reservations.values() for name in names}
    due = {
        node.name: node
        for node in view.scheduler.nodes.values()
        if node.name not in reserved
        and now >= later(tried.get(node.name, EARLIEST), wanted.retry_s)
        and now >= later(tested.get(node.name, EARLIEST), wanted.every_s)
        and _free(node, view, policy, now)
    }
    if not due:
        return
    known = {*view.scheduler.nodes, *view.health}
    worst = {f.node: -f.week for f in forecasts(state, known, view.health, now, of=due)}
    ordered = sorted(due, key=lambda n: (worst[n], tested.get(n, EARLIEST), n))
    for name in ordered[: wanted.at_once - running]:
        instance, last = view.instance(name), tested.get(name)
        before = f"last tested {last:%Y-%m-%d %H:%M}" if last else "not tested yet"
        yield ChangeOpened(
            at=now,
            recovery=recovery_id("b", name, now, len(state.changes), known=state),
            kind=Kind.BURN_IN,
            group=due[name].partitions[0],
            why=f"idle; {before}; {-worst[name]:.1%} to break within 7 d",
            node=name,
            instance=instance.id if instance else view.health[name].generation.instance,
        )


def last_tests(view: View) -> tuple[dict[NodeName, datetime], dict[NodeName, datetime]]:
    """When each node was tested to the end, and when that was last tried: its present instance."""
    tested: dict[NodeName, datetime] = {}
    tried: dict[NodeName, datetime] = {}
    for change in view.state.changes.values():
        node = change.opened.node
        if change.opened.kind is Kind.BURN_IN and node is not None and _same(change, view):
            tried[node] = max(change.since, tried.get(node, EARLIEST))
            if change.phase is Phase.DONE:
                tested[node] = max(change.since, tested.get(node, EARLIEST))
    return tested, tried


def _same(change: Change, view: View) -> bool:
    health = view.health.get(change.opened.node) if change.opened.node else None
    return health is not None and health.generation.instance == change.opened.instance


def _free(node: SlurmNode, view: View, policy: Policy, now: datetime) -> bool:
    """Whether nobody uses a node, has set it apart, or waits for it; and its agent would tell."""
    health, instance = view.health.get(node.name), view.instance(node.name)
    busy = node.last_busy
    return (
        idle(node, view)
        and not view.aside(node.name)
        and node.name not in policy.node.protected
        and not (instance is not None and instance.protected)
        and bool(node.partitions)
        and (not policy.partitions or not policy.partitions.isdisjoint(node.partitions))
        and (busy is None or now >= later(busy, policy.idle.idle_s))
        and health is not None
        and fresh(health.last_heard, policy.ages.report_s, now)
        and not wanted_by_others(node.name, None, view, now)
    )

"""The changes of capacity as the engine drives them: see `hpctl.engine.kinds`."""

from collections import deque
from collections.abc import Iterator
from datetime import datetime

from hpctl.capacity.advance import advance
from hpctl.capacity.autoscale import Direction
from hpctl.capacity.facts import SCALES, change_facts, past
from hpctl.capacity.plan import RankRisks, plan_capacity
from hpctl.engine.journal.state import State
from hpctl.engine.kinds import Answer, Answers, JobsByNode, Kind, Plan
from hpctl.engine.view import View
from hpctl.vocabulary.change import Change
from hpctl.vocabulary.identity import RecoveryId
from hpctl.vocabulary.isolation import each
from hpctl.vocabulary.policy import Policy


def advance_changes(
    view: View,
    policy: Policy,
    here: JobsByNode,  # noqa: ARG001
    now: datetime,
) -> Answers:
    """What each open change of capacity does next."""

    def change(rec: Change) -> Answer:
        facts = change_facts(rec, view, policy, now)
        return Answer(rec.id, advance(rec, facts, policy, now))

    changes = [view.state.changes[i] for i in view.state.open_changes.values()]
    changes = [rec for rec in changes if not view.aside(rec.opened.node)]
    return each("advance", changes, lambda rec: rec.opened.node or rec.opened.group, change)


def make_capacity_kind(rank_risks: RankRisks) -> Kind:
    """Return the kind. `rank_risks` orders the nodes that a burn-in tests first."""

    def plan_changes(
        view: View,
        policy: Policy,
        here: JobsByNode,  # noqa: ARG001
        now: datetime,
    ) -> Plan:
        opens, flaws = plan_capacity(view, policy, now, rank_risks)
        return Plan(tuple(opens), (), tuple(flaws))

    return Kind(advance=advance_changes, plan_after=plan_changes, pair_instances=pair_instances)


def pair_instances(state: State) -> Iterator[tuple[RecoveryId, RecoveryId | None]]:
    """Each instance that was added, as `autoscale.budget_left` counts its hours: with the removal
    that ended them, or None while it lives."""
    scales = [past(c) for c in state.changes.values() if c.opened.kind in SCALES]
    living: dict[str, deque[RecoveryId]] = {}
    for one in sorted(scales, key=lambda p: p.at):
        here = living.setdefault(one.group, deque())
        if one.direction is Direction.UP:
            here.extend([one.id] * one.count)
        elif one.ended is not None:
            for _ in range(min(one.count, len(here))):
                yield here.popleft(), one.id
    for here in living.values():
        yield from ((rid, None) for rid in here)

"""The changes of capacity as the engine drives them: see `hpctl.engine.kinds`."""

from collections import deque
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from hpctl.capacity.advance import decide_next_capacity_change_step
from hpctl.capacity.autoscale import ScalingDirection
from hpctl.capacity.facts import collect_change_facts
from hpctl.capacity.history import read_scaling_history
from hpctl.capacity.plan import RankRisks, make_empty_node_risks, plan_all_capacity_changes
from hpctl.capacity.removals import (
    find_withdrawn_node_removals,
    list_ended_removal_undrain_candidates,
)
from hpctl.engine.journal.state import EngineState
from hpctl.engine.kinds import (
    Answers,
    JobsByNode,
    RecoveryAdvanceResult,
    RecoveryKind,
    RecoveryPlan,
)
from hpctl.engine.maintenance import LOOK_S, describe_maintenance_reservation
from hpctl.engine.test_results import ReadResults, return_empty_acceptance_test_results
from hpctl.engine.view import PlanningView
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.change import ClusterChange, is_maintenance_window
from hpctl.vocabulary.identity import RecoveryId
from hpctl.vocabulary.isolation import process_items_capturing_failures
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import (
    Next,
    RecheckInterval,
    StepKind,
    StepStartDecision,
    WaitDecision,
)


def make_capacity_recovery_kind(
    rank_risks: RankRisks = make_empty_node_risks,
    read_results: ReadResults = return_empty_acceptance_test_results,
) -> RecoveryKind:
    """Return the kind. `rank_risks` orders the nodes that a burn-in tests first; `read_results`
    returns the results of a burn-in."""

    def advance_capacity_changes(
        view: PlanningView,
        policy: RecoveryPolicy,
        here: JobsByNode,  # noqa: ARG001
        now: datetime,
    ) -> Answers:
        def advance_one_capacity_change(rec: ClusterChange) -> RecoveryAdvanceResult:
            facts = collect_change_facts(rec, view, policy, now, read_results)
            answer = decide_next_capacity_change_step(rec, facts, policy, now)
            return RecoveryAdvanceResult(
                rec.id, _defer_change_step_during_maintenance(rec, answer, view, now)
            )

        changes = [view.state.changes[i] for i in view.state.open_changes.values()]
        changes = [
            rec
            for rec in changes
            if not (view.is_quarantined(rec.opened.node) or is_maintenance_window(rec))
        ]
        return process_items_capturing_failures(
            "advance",
            changes,
            lambda rec: rec.opened.node or rec.opened.group,
            advance_one_capacity_change,
        )

    def plan_capacity_changes(
        view: PlanningView,
        policy: RecoveryPolicy,
        here: JobsByNode,  # noqa: ARG001
        now: datetime,
    ) -> RecoveryPlan:
        opens, flaws = plan_all_capacity_changes(view, policy, now, rank_risks)
        return RecoveryPlan(tuple(opens), (), tuple(flaws))

    return RecoveryKind(
        advance=advance_capacity_changes,
        find_candidates=list_ended_removal_undrain_candidates,
        plan_after=plan_capacity_changes,
        find_withdrawn=find_withdrawn_node_removals,
        pair_instances=pair_added_instances_with_removals,
    )


_OUR_OWN: Final = (StepKind.END_TEST, StepKind.RESERVE)
"""Steps that concern only a job or a reservation of hpctl."""


def _defer_change_step_during_maintenance(
    rec: ClusterChange, answer: Next, view: PlanningView, now: datetime
) -> Next:
    """Return the answer, or a wait in place of a step on a node in an admin's maintenance."""
    held_by = view.maintenance.get(rec.opened.node) if rec.opened.node is not None else None
    if held_by is None or not isinstance(answer, StepStartDecision) or answer.kind in _OUR_OWN:
        return answer
    return WaitDecision(
        add_seconds_within_bounds(now, LOOK_S),
        describe_maintenance_reservation(held_by, now),
        RecheckInterval.SLOWLY,
    )


def pair_added_instances_with_removals(
    state: EngineState,
) -> Iterator[tuple[RecoveryId, RecoveryId | None]]:
    """Each instance that was added, as `autoscale.budget_left` counts its hours: with the removal
    that ended them, or None while it lives."""
    living: dict[str, deque[RecoveryId]] = {}
    for one in read_scaling_history(state):
        here = living.setdefault(one.group, deque())
        if one.direction is ScalingDirection.UP:
            here.extend([one.id] * one.count)
        elif one.ended is not None:
            for _ in range(min(one.count, len(here))):
                yield here.popleft(), one.id
    for here in living.values():
        yield from ((rid, None) for rid in here)

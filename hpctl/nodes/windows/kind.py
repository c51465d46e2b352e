"""Maintenance windows as the engine drives them: see `hpctl.engine.kinds`."""

from datetime import datetime
from typing import Final

from hpctl.engine.kinds import (
    Answers,
    JobsByNode,
    RecoveryAdvanceResult,
    RecoveryKind,
    RecoveryPlan,
)
from hpctl.engine.view import PlanningView
from hpctl.nodes.windows.decide import (
    advance_window,
    find_window_candidates,
    make_admin_reservation_windows,
)
from hpctl.nodes.windows.requests import REQUESTS
from hpctl.vocabulary.change import ClusterChange
from hpctl.vocabulary.isolation import process_items_capturing_failures
from hpctl.vocabulary.policy import RecoveryPolicy


def advance_windows(
    view: PlanningView,
    policy: RecoveryPolicy,
    here: JobsByNode,  # noqa: ARG001
    now: datetime,
) -> Answers:
    """Return what each open window does next."""

    def answer_window(rec: ClusterChange) -> RecoveryAdvanceResult:
        return RecoveryAdvanceResult(rec.id, advance_window(rec, view, policy, now))

    return process_items_capturing_failures(
        "advance", view.state.windows, lambda rec: rec.opened.group, answer_window
    )


def plan_admin_windows(
    view: PlanningView,
    policy: RecoveryPolicy,
    here: JobsByNode,  # noqa: ARG001
    now: datetime,
) -> RecoveryPlan:
    """Follow the reservations that admins made or changed."""
    return RecoveryPlan(tuple(make_admin_reservation_windows(view, policy, now)))


WINDOWS: Final = RecoveryKind(
    advance=advance_windows,
    find_candidates=find_window_candidates,
    plan=plan_admin_windows,
    requests=REQUESTS,
)

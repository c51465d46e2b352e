"""Maintenance windows as the engine drives them: see `hpctl.engine.kinds`."""

from datetime import datetime
from typing import Final

from hpctl.engine.kinds import Answers, JobsByNode, RecoveryAnswer, RecoveryKind, RecoveryPlan
from hpctl.engine.view import PlanningView
from hpctl.nodes.windows.decide import (
    advance_window,
    find_admin_reservations,
    find_window_candidates,
)
from hpctl.nodes.windows.requests import REQUESTS
from hpctl.vocabulary.change import ClusterChange
from hpctl.vocabulary.isolation import isolate_each_call
from hpctl.vocabulary.policy import RecoveryPolicy


def advance_windows(
    view: PlanningView,
    policy: RecoveryPolicy,
    here: JobsByNode,  # noqa: ARG001
    now: datetime,
) -> Answers:
    """Return what each open window does next."""

    def answer_window(rec: ClusterChange) -> RecoveryAnswer:
        return RecoveryAnswer(rec.id, advance_window(rec, view, policy, now))

    return isolate_each_call(
        "advance", view.state.windows, lambda rec: rec.opened.group, answer_window
    )


def plan_admin_windows(
    view: PlanningView,
    policy: RecoveryPolicy,
    here: JobsByNode,  # noqa: ARG001
    now: datetime,
) -> RecoveryPlan:
    """Follow the reservations that admins made or changed."""
    return RecoveryPlan(tuple(find_admin_reservations(view, policy, now)))


WINDOWS: Final = RecoveryKind(
    advance=advance_windows,
    find_candidates=find_window_candidates,
    plan=plan_admin_windows,
    requests=REQUESTS,
)

"""When hpctl does something about a maintenance window: before it begins, and before it ends."""

from datetime import datetime, timedelta
from typing import Final

from hpctl.engine.journal.state import EngineState
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.change import ClusterChange, ClusterChangePhase
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.policy import RecoveryPolicy

END_LEAD_S: Final = 60.0
"""So long before a window ends its nodes are closed: none takes a job before it is verified."""

STOP_S: Final = 60.0
"""What a job may take to end, beside its grace to save."""

SAME: Final = timedelta(seconds=2)
"""Two times of a reservation that differ by less are one."""


def get_maintenance_window_lead_s(policy: RecoveryPolicy) -> float:
    """Return how many seconds before a window begins the jobs on its nodes are saved and moved."""
    return max(policy.node.maintenance_lead_s or 0.0, policy.job.save_grace_s + STOP_S)


def find_next_maintenance_window_action_time(
    window: ClusterChange, policy: RecoveryPolicy, now: datetime
) -> datetime | None:
    """Return when hpctl does something about a window that waits for a time; None: it has none."""
    start, end = window.opened.start, window.opened.end
    if start is None or end is None:
        return None
    times = (
        add_seconds_within_bounds(start, -get_maintenance_window_lead_s(policy)),
        start,
        add_seconds_within_bounds(end, -END_LEAD_S),
        end,
    )
    return min((at for at in times if at > now), default=None)


def find_nodes_of_due_maintenance_windows(
    state: EngineState, policy: RecoveryPolicy, now: datetime
) -> set[NodeName]:
    """Return the nodes of the windows that hpctl is doing something about now."""
    found: set[NodeName] = set()
    for window in state.windows:
        if _is_maintenance_window_due(window, policy, now):
            found.update(window.opened.nodes)
    return found


def _is_maintenance_window_due(
    window: ClusterChange, policy: RecoveryPolicy, now: datetime
) -> bool:
    start, end = window.opened.start, window.opened.end
    if window.phase in (ClusterChangePhase.OPEN, ClusterChangePhase.ENDING):
        return True
    if window.phase is ClusterChangePhase.SCHEDULED:
        return start is not None and now >= add_seconds_within_bounds(
            start, -get_maintenance_window_lead_s(policy)
        )
    return end is not None and now >= add_seconds_within_bounds(end, -END_LEAD_S)

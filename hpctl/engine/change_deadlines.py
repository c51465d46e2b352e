"""How long each phase of a change of capacity may last."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.change import ChangeKind, ClusterChange, ClusterChangePhase
from hpctl.vocabulary.policy import RecoveryPolicy

RESERVE_DEADLINE_S: Final = 60.0


def find_cluster_change_deadline(change: ClusterChange, policy: RecoveryPolicy) -> datetime:
    """Return when an open change has been in its phase for too long."""
    return add_seconds_within_bounds(change.since, _get_change_phase_timeout_s(change, policy))


def _get_change_phase_timeout_s(change: ClusterChange, policy: RecoveryPolicy) -> float:
    scale, node = policy.autoscale, policy.node
    if change.opened.kind is ChangeKind.BURN_IN and change.phase is not ClusterChangePhase.OPEN:
        test = policy.acceptance
        return test.limit_s(policy.idle.level) + test.result_s + node.doubt_window_s
    return {
        ClusterChangePhase.OPEN: RESERVE_DEADLINE_S
        if change.opened.kind is ChangeKind.SPARES
        else node.step_attempts * node.doubt_window_s,
        ClusterChangePhase.TESTING: policy.acceptance.limit_s(policy.idle.level),
        ClusterChangePhase.ARRIVING: scale.arrive_deadline_s,
    }[change.phase]

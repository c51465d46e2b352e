"""How the sizes of groups changed before: additions are changes, removals are node recoveries."""

from hpctl.capacity.autoscale import PastScalingChange, ScalingDirection
from hpctl.engine.journal.state import EngineState
from hpctl.engine.node_history import may_have_begun_remedy
from hpctl.vocabulary.change import (
    ChangeKind,
    ClusterChange,
    ClusterChangePhase,
    is_change_awaiting_instances,
)
from hpctl.vocabulary.node_recovery import SCALE_DOWN, NodeRecovery, NodeRecoveryPhase


def read_scaling_history(state: EngineState) -> tuple[PastScalingChange, ...]:
    """Return the changes of all groups' sizes, oldest first."""
    added = [
        _make_past_addition(c) for c in state.changes.values() if c.opened.kind is ChangeKind.ADD
    ]
    removed = [_make_past_removal(rec) for rec in list_scale_down_recoveries(state)]
    return tuple(sorted([*added, *removed], key=lambda past: past.at))


def list_scale_down_recoveries(state: EngineState) -> list[NodeRecovery]:
    """Return the recoveries that make a group smaller, oldest first."""
    return [rec for rec in state.nodes.values() if rec.rule == SCALE_DOWN]


def _make_past_addition(change: ClusterChange) -> PastScalingChange:
    about, done = change.opened, change.phase is ClusterChangePhase.DONE
    nothing = change.ended and not (is_change_awaiting_instances(change) or done)
    count, ended = 0 if nothing else about.count, change.since if change.ended else None
    failed = change.ended and not done
    return PastScalingChange(
        change.id, about.group, ScalingDirection.UP, count, about.at, ended, failed
    )


def _make_past_removal(rec: NodeRecovery) -> PastScalingChange:
    done = rec.phase is NodeRecoveryPhase.REMOVED
    # An instance that has left is one less, no matter who deleted it.
    nothing = rec.ended and not (may_have_begun_remedy(rec) or done)
    count, ended = 0 if nothing else 1, rec.since if rec.ended else None
    failed = rec.ended and not done
    return PastScalingChange(
        rec.id, rec.group, ScalingDirection.DOWN, count, rec.opened, ended, failed
    )

"""How the sizes of groups changed before: additions are changes, removals are node recoveries."""

from hpctl.capacity.autoscale import PastScaling, ScalingDirection
from hpctl.engine.journal.state import State
from hpctl.engine.node_history import may_have_begun_remedy
from hpctl.vocabulary.change import ChangeKind, ChangePhase, ClusterChange, expects_instances
from hpctl.vocabulary.node_recovery import SCALE_DOWN, NodePhase, NodeRecovery


def read_history(state: State) -> tuple[PastScaling, ...]:
    """Return the changes of all groups' sizes, oldest first."""
    added = [_read_addition(c) for c in state.changes.values() if c.opened.kind is ChangeKind.ADD]
    removed = [_read_removal(rec) for rec in find_removals(state)]
    return tuple(sorted([*added, *removed], key=lambda past: past.at))


def find_removals(state: State) -> list[NodeRecovery]:
    """Return the recoveries that make a group smaller, oldest first."""
    return [rec for rec in state.nodes.values() if rec.rule == SCALE_DOWN]


def _read_addition(change: ClusterChange) -> PastScaling:
    about, done = change.opened, change.phase is ChangePhase.DONE
    nothing = change.ended and not (expects_instances(change) or done)
    count, ended = 0 if nothing else about.count, change.since if change.ended else None
    failed = change.ended and not done
    return PastScaling(change.id, about.group, ScalingDirection.UP, count, about.at, ended, failed)


def _read_removal(rec: NodeRecovery) -> PastScaling:
    done = rec.phase is NodePhase.REMOVED
    # An instance that has left is one less, no matter who deleted it.
    nothing = rec.ended and not (may_have_begun_remedy(rec) or done)
    count, ended = 0 if nothing else 1, rec.since if rec.ended else None
    failed = rec.ended and not done
    return PastScaling(rec.id, rec.group, ScalingDirection.DOWN, count, rec.opened, ended, failed)

"""How the sizes of groups changed before: additions are changes, removals are node recoveries."""

from hpctl.capacity.autoscale import Direction, Past
from hpctl.engine.journal.state import State
from hpctl.engine.node_history import may_be_under_way
from hpctl.vocabulary.change import Change, ChangePhase, Kind, ordered
from hpctl.vocabulary.node_recovery import SCALE_DOWN, NodePhase, NodeRecovery


def read_history(state: State) -> tuple[Past, ...]:
    """Return the changes of all groups' sizes, oldest first."""
    added = [_addition(c) for c in state.changes.values() if c.opened.kind is Kind.ADD]
    removed = [_removal(rec) for rec in find_removals(state)]
    return tuple(sorted([*added, *removed], key=lambda past: past.at))


def find_removals(state: State) -> list[NodeRecovery]:
    """Return the recoveries that make a group smaller, oldest first."""
    return [rec for rec in state.nodes.values() if rec.rule == SCALE_DOWN]


def _addition(change: Change) -> Past:
    about, done = change.opened, change.phase is ChangePhase.DONE
    nothing = change.ended and not (ordered(change) or done)
    count, ended = 0 if nothing else about.count, change.since if change.ended else None
    failed = change.ended and not done
    return Past(change.id, about.group, Direction.UP, count, about.at, ended, failed)


def _removal(rec: NodeRecovery) -> Past:
    done = rec.phase is NodePhase.REMOVED
    # An instance that has left is one less, whoever deleted it.
    nothing = rec.ended and not (may_be_under_way(rec) or done)
    count, ended = 0 if nothing else 1, rec.since if rec.ended else None
    failed = rec.ended and not done
    return Past(rec.id, rec.group, Direction.DOWN, count, rec.opened, ended, failed)

"""What may be done to a node, decided from a fresh look at it. Pure, for every adapter.

Each rule answers an Outcome without sending anything, or None: send it.
"""

from __future__ import annotations

from hpctl.core.marks import MARKS, mark_of, spent
from hpctl.core.model import Outcome, RecoveryId, SlurmNode, reason_owner
from hpctl.core.reach import SLURMCTLD_REASONS

NO_SUCH_NODE = Outcome.rejected("no_such_node", "slurmctld has no node of this name")


def drain(node: SlurmNode | None, reason: str) -> Outcome | None:
    """A node that somebody else closed (DRAIN, FAIL, or DOWN by hand) is left to them.

    HyperPod's health agent is nobody: one that it marked is taken over. DRAIN clears its FAIL.
    """
    if node is None:
        return NO_SUCH_NODE
    bad = _bad_reason(reason)
    if bad is not None:
        return bad
    owner = reason_owner(node.reason)
    by_hand = node.down and bool(node.reason) and not node.reason.startswith(SLURMCTLD_REASONS)
    if owner is None and (node.closed or by_hand) and not mark_of(node):
        return Outcome.rejected("foreign_drain", f"{node.name} is closed: {node.reason}")
    if node.drained and owner is not None and owner == reason_owner(reason):
        return Outcome.accepted("it is drained already")
    return None


def drain_unmarked(node: SlurmNode | None, reason: str) -> Outcome | None:
    """As `drain`, for where HyperPod acts on its marks: a marked node is closed, and stays so."""
    if node is not None and mark_of(node):
        text = f"{node.name} is {_shown(node)}: HyperPod acts on that"
        return Outcome.rejected("marked", text, transient=True)
    return drain(node, reason)


def down(node: SlurmNode | None, reason: str) -> Outcome | None:
    """Only a node that is DRAIN with the same recovery's Reason, or that bears this very mark.

    DOWN leaves FAIL as it is.
    """
    if node is None:
        return NO_SUCH_NODE
    if reason in MARKS:
        return _down_marked(node, reason)
    bad = _bad_reason(reason)
    if bad is not None:
        return bad
    owner = reason_owner(node.reason)
    if not node.drained or owner is None or owner != reason_owner(reason):
        return Outcome.rejected("not_ours", f"{node.name} is {_shown(node)}")
    return Outcome.accepted("it is down already") if node.down else None


def _down_marked(node: SlurmNode, mark: str) -> Outcome | None:
    if not node.closed or mark_of(node) != mark:
        return Outcome.rejected("not_ours", f"{node.name} is {_shown(node)}")
    return Outcome.accepted("it is down already") if node.down else None


def give_back(node: SlurmNode | None, recovery: str) -> Outcome | None:
    """Only with that recovery's Reason, or a mark that is spent, and a slurmd that answers.

    RESUME makes a DOWN node IDLE, whether its slurmd is there or not.
    """
    if node is None:
        return NO_SUCH_NODE
    if node.in_service:
        return Outcome.accepted("it is in service already")
    done = bool(mark_of(node)) and spent(node)
    if not done and reason_owner(node.reason) != RecoveryId(recovery):
        return Outcome.rejected("not_ours", f"{node.name} is {_shown(node)}")
    if not node.responding:
        text = f"the slurmd of {node.name} does not answer: RESUME would offer it to jobs"
        return Outcome.rejected("not_responding", text, transient=True)
    return None


def _bad_reason(reason: str) -> Outcome | None:
    """Only Reasons that mark a node as ours, on one line."""
    if reason_owner(reason) is None or not reason.isprintable():
        return Outcome.rejected("bad_reason", f"not a Reason of ours: {reason!r}")
    return None


def _shown(node: SlurmNode) -> str:
    return "+".join([node.state, *sorted(node.flags)]) + (
        f" ({node.reason})" if node.reason else ""
    )

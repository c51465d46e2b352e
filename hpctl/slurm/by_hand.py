"""Drains of an operator's command: ours by the whole Reason, and never the daemon's.

The rules look at each node afresh and answer an Outcome without sending anything, or None.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpctl.core.model import NodeName, Outcome, SchedulerView, SlurmNode, reason_owner
from hpctl.core.reach import SLURMCTLD_REASONS
from hpctl.slurm.cli import CliScheduler
from hpctl.slurm.nodes import NO_SUCH_NODE


class SlurmByHand:
    """`hpctl.ports.ByHand` over Slurm's own commands."""

    def __init__(self, cli: CliScheduler) -> None:
        self._cli = cli

    def view(self) -> SchedulerView:
        """See ports.ByHand."""
        return self._cli.view()

    def close(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, Outcome]:
        """See ports.ByHand."""
        return self._cli.update(nodes, "DRAIN", close)

    def down(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, Outcome]:
        """See ports.ByHand."""
        return self._cli.update(nodes, "DOWN", down)

    def reopen(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, Outcome]:
        """See ports.ByHand."""
        return self._cli.update(nodes, "RESUME", reopen)


def close(node: SlurmNode | None, reason: str) -> Outcome | None:
    """A node that somebody closed (DRAIN, FAIL, or DOWN by hand) is closed: that is enough."""
    if node is None:
        return NO_SUCH_NODE
    if not reason.isprintable() or not reason or reason_owner(reason) is not None:
        return Outcome.rejected("bad_reason", f"not an operator's Reason: {reason!r}")
    if node.drained and _ours(node, reason):
        return Outcome.accepted("it is drained already")
    by_hand = node.down and bool(node.reason) and not node.reason.startswith(SLURMCTLD_REASONS)
    if node.closed or by_hand:
        return Outcome.rejected("closed", f"{node.name} is closed already: {node.reason}")
    return None


def down(node: SlurmNode | None, reason: str) -> Outcome | None:
    """Only a node that is DRAIN with this Reason."""
    if node is None:
        return NO_SUCH_NODE
    if not (node.drained and _ours(node, reason)):
        return Outcome.rejected("not_ours", f"{node.name} has another Reason: {node.reason}")
    return Outcome.accepted("it is down already") if node.down else None


def reopen(node: SlurmNode | None, reason: str) -> Outcome | None:
    """Only with this Reason, and a slurmd that answers: RESUME makes a dead node IDLE, too."""
    if node is None:
        return NO_SUCH_NODE
    if node.in_service:
        return Outcome.accepted("it is in service already")
    if not _ours(node, reason):
        return Outcome.rejected("not_ours", f"{node.name} has another Reason: {node.reason}")
    if not node.responding:
        text = f"the slurmd of {node.name} does not answer: RESUME would offer it to jobs"
        return Outcome.rejected("not_responding", text, transient=True)
    return None


def _ours(node: SlurmNode, reason: str) -> bool:
    """slurmctld appends ` : Not responding` and the like to a Reason."""
    return node.reason == reason or node.reason.startswith(f"{reason} : ")

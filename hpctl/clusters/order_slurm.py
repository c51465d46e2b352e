"""Slurm for an order that a command carries out: nodes are drained under an operator's Reason.

The Reason names verb and instance (`hpctl.clusters.node_order_plan.make_drain_reason`). It is not
the daemon's: a daemon of this cluster leaves such a node alone, and the next command finds in it
what was ordered. The loop is shown its own recovery's Reason instead, so that one table treats
every node.

A node that another operator or tool has closed is neither drained nor resumed; the loop is shown
a node that it drained itself. So it is of a node that Slurm does not list, and without Slurm.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from msgspec.structs import replace

from hpctl.clusters.node_order_plan import NodeOrderTarget
from hpctl.clusters.order_ports import SlurmNodeUpdater
from hpctl.faults.hma_marks import find_hma_reason_mark
from hpctl.slurm.cli import Rule
from hpctl.slurm.no_slurm import UnavailableSlurmScheduler
from hpctl.slurm.rules import (
    NO_SUCH_NODE,
    find_resume_outcome_without_sending,
    is_node_downed_by_admin,
)
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.reason import format_hpctl_node_reason, parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmNode

_BLOCKING = frozenset({"DRAIN", "FAIL", "MAINTENANCE", "MAINT"})
"""What another operator or tool sets on a node: an order continues under it."""


class NodeOrderScheduler(UnavailableSlurmScheduler):
    """`hpctl.vocabulary.ports.Scheduler` for the nodes of one order."""

    def __init__(
        self,
        targets: Mapping[NodeName, NodeOrderTarget],
        slurm: SlurmNodeUpdater | None,
        now: Callable[[], datetime],
    ) -> None:
        self._targets, self._slurm, self._now = targets, slurm, now
        self._closed = {n for n, t in targets.items() if t.adopted or t.under_way}
        self._downed: set[NodeName] = set()
        self._returned: set[NodeName] = set()
        self.closed_by_others: dict[NodeName, str] = {}
        """The nodes that another operator or tool has closed, with the Reason as it was."""

    def tracks(self, name: NodeName) -> bool:
        """Return whether Slurm tells anything of this node."""
        return self._slurm is not None and self._targets[name].before is not None

    def show(self, owners: Mapping[NodeName, RecoveryId]) -> SchedulerView:
        """Return Slurm as the loop sees it. `owners`: the open recoveries. Raises Unavailable."""
        seen = self._slurm.view() if self._slurm is not None else SchedulerView(self._now())
        nodes = dict(seen.nodes)
        for name in self._targets:
            node = seen.nodes.get(name)
            if not self.tracks(name):
                node = SlurmNode(name, "IDLE")
            if node is not None:
                nodes[name] = self._translate_node_state(node, owners.get(name))
        return replace(seen, as_of=self._now(), nodes=nodes)

    def _translate_node_state(self, node: SlurmNode, owner: RecoveryId | None) -> SlurmNode:
        name, plain = node.name, node.flags - _BLOCKING
        if owner is not None and name not in self._returned:
            if self._is_closed_for_order(node):
                state = "DOWN" if name in self._downed else node.state
                mine = format_hpctl_node_reason(owner, "an operator's order")
                return replace(node, state=state, flags=plain | {"DRAIN"}, reason=mine)
            if name in self._closed:
                return node
        state = "IDLE" if is_node_downed_by_admin(node) or name in self._downed else node.state
        return replace(node, state=state, flags=plain, reason="")

    def _is_closed_for_order(self, node: SlurmNode) -> bool:
        """Return whether a node is closed for this order, by its own drain or under another's."""
        name = node.name
        if not self.tracks(name):
            return name in self._closed
        if node.drained and has_drain_reason(node, self._targets[name].reason):
            return True
        if name not in self._closed or not (node.closed or is_node_downed_by_admin(node)):
            return False
        if find_hma_reason_mark(node):
            # HyperPod's health agent marked it meanwhile: evidence of a fault, no operator's word.
            self.closed_by_others.setdefault(name, node.reason)
        return name in self.closed_by_others

    def drain(
        self, nodes: Mapping[NodeName, str], *, spare_marks: bool = False
    ) -> Mapping[NodeName, Outcome]:
        """DRAIN each node that is open, with the operator's Reason."""
        answers = self._update_node_states(
            [n for n in nodes if self.tracks(n)], "DRAIN", decide_node_drain
        )
        for name in nodes:
            answer = answers.get(name, Outcome.accepted())
            if answer.code == "closed":
                self.closed_by_others[name] = answer.detail
                answer = Outcome.accepted(answer.detail)
            if answer.kind is OutcomeKind.ACCEPTED:
                self._closed.add(name)
            answers[name] = answer
        return answers

    def down(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, Outcome]:
        """Set DOWN each node that is drained with the operator's Reason."""
        mine = [n for n in nodes if self._has_own_drain_reason(n)]
        answers = self._update_node_states(mine, "DOWN", decide_node_down)
        for name in nodes:
            if name not in answers:
                self._downed.add(name)
                answers[name] = Outcome.accepted("closed by another operator or tool")
        return answers

    def resume_nodes(self, nodes: Mapping[NodeName, RecoveryId]) -> Mapping[NodeName, Outcome]:
        """RESUME each node that this order has drained."""
        mine = [n for n in nodes if self._has_own_drain_reason(n)]
        answers = self._update_node_states(mine, "RESUME", decide_node_resume)
        for name in nodes:
            if name not in answers:
                self._returned.add(name)
                answers[name] = Outcome.accepted("closed by another operator or tool")
        return answers

    def _has_own_drain_reason(self, name: NodeName) -> bool:
        return self.tracks(name) and name not in self.closed_by_others

    def _update_node_states(
        self, names: Sequence[NodeName], state: str, rule: Rule
    ) -> dict[NodeName, Outcome]:
        wanted = {name: self._targets[name].reason for name in names}
        return dict(self._slurm.update(wanted, state, rule)) if self._slurm and wanted else {}


def decide_node_drain(node: SlurmNode | None, reason: str) -> Outcome | None:
    """Decide a DRAIN: a node that is closed (DRAIN, FAIL, DOWN by hand) is left as it is."""
    if node is None:
        return NO_SUCH_NODE
    if not reason.isprintable() or not reason or parse_recovery_id_from_reason(reason) is not None:
        return Outcome.rejected("bad_reason", f"not an operator's Reason: {reason!r}")
    if node.drained and has_drain_reason(node, reason):
        return Outcome.accepted("it is drained already")
    if node.closed or is_node_downed_by_admin(node):
        return Outcome.rejected("closed", node.reason)
    return None


def decide_node_down(node: SlurmNode | None, reason: str) -> Outcome | None:
    """Decide a DOWN: only of a node that is DRAIN with this Reason."""
    if node is None:
        return NO_SUCH_NODE
    if not (node.drained and has_drain_reason(node, reason)):
        return Outcome.rejected("not_ours", f"{node.name} has another Reason: {node.reason}")
    return Outcome.accepted("it is down already") if node.down else None


def decide_node_resume(node: SlurmNode | None, reason: str) -> Outcome | None:
    """Decide a RESUME: only with this Reason, and a slurmd that answers."""
    if node is None:
        return NO_SUCH_NODE
    if not node.in_service and not has_drain_reason(node, reason):
        return Outcome.rejected("not_ours", f"{node.name} has another Reason: {node.reason}")
    return find_resume_outcome_without_sending(node)


def has_drain_reason(node: SlurmNode, reason: str) -> bool:
    """Return whether a node has this Reason; slurmctld appends ` : Not responding` and the like."""
    return node.reason == reason or node.reason.startswith(f"{reason} : ")

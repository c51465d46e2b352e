"""What an order for named nodes would do, and why it may not be given."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpctl.clusters.fleet import NOT_FOUND, UNKNOWN, NodeRow
from hpctl.clusters.order_call import choose_node_id_for_api_call
from hpctl.clusters.order_terms import NodeAction
from hpctl.clusters.progress import FAILURE
from hpctl.engine.instance_resolver import make_natural_sort_key
from hpctl.engine.view import group_jobs_by_node
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode

PREFIX = "operator:"
"""How the Reason of a node begins that an operator's command drained. Not the daemon's own."""


_MARK = re.compile(rf"{PREFIX}(replace|reboot|delete):(\S+) ")


ALLOWED = {
    NodeAction.REPLACE: ("Running", "Failure", "Failed"),
    NodeAction.REBOOT: ("Running",),
    NodeAction.DELETE: (),
}
"""The API's states in which a node takes an order; none named: any."""


class NodeOrderTarget(Struct, frozen=True):
    """One node of an order. `refusal` says why it may not be; `warning` what to know before.

    `instance` is the one that the order is for: its id, or the logical id of a place without one.
    `reason` is the Reason under which it is drained; empty where it need not or cannot be.
    `before` is the node as Slurm had it. `under_way`: an earlier command has ordered this, and
    what is left is to wait and to give the node back. `adopted`: it has drained it and may have
    ordered it. `slurmd`: when the slurmd began that was there at the drain, "" for unknown: another
    one has to register before the node is given back.
    """

    row: NodeRow
    instance: str
    jobs: tuple[SlurmJob, ...] = ()
    before: SlurmNode | None = None
    reason: str = ""
    refusal: str = ""
    warning: str = ""
    under_way: bool = False
    adopted: bool = False
    slurmd: str = ""


def choose_recovery_node_name(target: NodeOrderTarget) -> NodeName:
    """Return the name that a target's recovery has: Slurm's, or its place where it has none."""
    return NodeName(target.row.node or target.instance)


class NodeOrderPlan(Struct, frozen=True):
    """An order for nodes of a cluster, and who gives it. `refusal` is why none of it may be."""

    verb: NodeAction
    cluster: str
    targets: tuple[NodeOrderTarget, ...]
    refusal: str = ""
    arn: str = ""
    by: str = ""

    @property
    def is_refused(self) -> bool:
        """Return whether anything speaks against it: an order is given for all of its nodes or
        none."""
        return bool(self.refusal) or any(target.refusal for target in self.targets)


def make_drain_reason(verb: NodeAction, row: NodeRow, by: str, slurmd: str = "") -> str:
    """Return the Reason of a drain: what was ordered, for which instance, by whom.

    The instance makes it durable: a later reader of the node knows whether the order is done. Which
    slurmd was there then tells later whether the machine has come back or is only about to go.
    """
    return (
        f"{PREFIX}{verb}:{choose_node_id_for_api_call(row)}{f'@{slurmd}' if slurmd else ''} by {by}"
    )


def format_slurmd_start(node: SlurmNode) -> str:
    """Return when its slurmd began, as a Reason has it; "" for unknown."""
    return f"{node.slurmd_start:%Y%m%dT%H%M%S}" if node.slurmd_start else ""


def build_node_order_plan(  # noqa: PLR0913 -- each is a separate fact or choice, from another source
    verb: NodeAction,
    description: Mapping[str, Any],
    rows: Sequence[NodeRow],
    slurm: SchedulerView | None,
    *,
    by: str,
    daemon: bool = False,
) -> NodeOrderPlan:
    """Look at each node. `daemon`: hpctl's daemon lives, and treats what its Reasons name."""
    here: Mapping[NodeName, list[SlurmJob]] = {}
    if slurm is not None:
        here = group_jobs_by_node([NodeName(row.node) for row in rows], slurm.jobs)
    targets = []
    for row in rows:
        name = NodeName(row.node)
        jobs = [job for job in here.get(name, ()) if job.running or job.completing]
        targets.append(
            _plan_node_order_target(
                verb, row, jobs, slurm.nodes.get(name) if slurm else None, by, daemon
            )
        )
    status = str(description["ClusterStatus"])
    refusal = ""
    if status != "InService":
        refusal = f"the cluster is {status}: the service takes such orders only while InService"
    cluster, arn = str(description.get("ClusterName", "")), str(description.get("ClusterArn", ""))
    return NodeOrderPlan(verb, cluster, tuple(targets), refusal, arn, by)


def _plan_node_order_target(  # noqa: PLR0913 -- as `plan`, for one node
    verb: NodeAction,
    row: NodeRow,
    jobs: Sequence[SlurmJob],
    node: SlurmNode | None,
    by: str,
    daemon: bool,
) -> NodeOrderTarget:
    slurmd = format_slurmd_start(node) if node is not None and verb is not NodeAction.DELETE else ""
    reason = make_drain_reason(verb, row, by, slurmd) if node is not None else ""
    marked = _MARK.match(node.reason) if node is not None and node.drained else None
    if node is not None and marked and marked[1] == verb:
        # An earlier command's drain: its Reason continues, whichever command resumes the order.
        reason = node.reason.split(" : ")[0]
        instance, _, slurmd = marked[2].partition("@")
        if _is_node_order_pending(verb, row, instance, jobs):
            return NodeOrderTarget(
                row, instance, tuple(jobs), node, reason, under_way=True, slurmd=slurmd
            )
        refusal = _find_node_order_refusal(verb, row, node, daemon)
        successor = choose_node_id_for_api_call(row)
        other = f"it was drained for {instance}, which is gone: {successor} came in its place"
        warning = other if instance != choose_node_id_for_api_call(row) else ""
        return NodeOrderTarget(
            row,
            choose_node_id_for_api_call(row),
            tuple(jobs),
            node,
            reason,
            refusal,
            warning,
            adopted=True,
            slurmd=slurmd,
        )
    warning = ""
    if node is not None and node.drained:
        warning = f"it is drained already ({node.reason}) and stays so afterwards"
    elif row.role == "login":
        warning = "it is a login node: users who work there are disconnected"
    refusal = _find_node_order_refusal(verb, row, node, daemon)
    return NodeOrderTarget(
        row,
        choose_node_id_for_api_call(row),
        tuple(jobs),
        node,
        reason,
        refusal,
        warning,
        slurmd=slurmd,
    )


def _is_node_order_pending(
    verb: NodeAction, row: NodeRow, instance: str, jobs: Sequence[SlurmJob]
) -> bool:
    """Return whether the order that a Reason speaks of was taken, and is still to be waited for.

    A replacement that failed is over: its instance is replaced in its turn.
    A reboot leaves no trace but its Reason, and is ordered only where no job is left: to give the
    node back and reboot it again is safer than to reboot it twice.
    """
    if verb is NodeAction.REPLACE:
        if instance != choose_node_id_for_api_call(row):
            return row.status not in FAILURE
        return row.status not in ALLOWED[verb]
    return not jobs if verb is NodeAction.REBOOT else row.status == "ShuttingDown"


def _find_node_order_refusal(
    verb: NodeAction, row: NodeRow, node: SlurmNode | None, daemon: bool
) -> str:
    if row.role == "controller":
        return "it is the controller: the service neither replaces nor deletes it, and hpctl does"\
            " not reboot what Slurm runs on"  # fmt: skip
    if not row.role:
        where = "Slurm has it in no partition" if row.slurm_state != NOT_FOUND else "nor does Slurm"
        return f"the API does not say whether it is a controller, and {where}"
    if row.unread and row.slurm_state == NOT_FOUND:
        return f"jobs may run there: which Slurm node it is, is unknown: {row.unread}"
    owner = (
        parse_recovery_id_from_reason(node.reason) if node is not None and node.drained else None
    )
    if owner is not None and daemon:
        return f"hpctl's daemon treats it ({owner}): `hpctl cancel {owner}` first"
    if not row.instance_id and verb is not NodeAction.DELETE:
        return "it has no instance yet"
    if ALLOWED[verb] and row.status not in ALLOWED[verb]:
        wanted = " or ".join(ALLOWED[verb][:2])
        return f"it is {row.status}: the service wants {wanted} for this"
    return ""


GOING = ("ShuttingDown", "NotFound")


class RemovalCandidate(Struct, frozen=True):
    """A node that is to go, and why it is this one. `rank` 0 goes first."""

    row: NodeRow
    rank: int
    why: str


def rank_removal_candidate(row: NodeRow) -> RemovalCandidate:
    """Return how readily a node is given up."""
    if not row.instance_id:
        return RemovalCandidate(row, 0, "no instance yet")
    if row.status != "Running":
        return RemovalCandidate(row, 0, f"{row.status} in HyperPod")
    if row.slurm_reason.startswith(f"{PREFIX}delete:"):
        return RemovalCandidate(row, 1, "an earlier command has drained it for this")
    if row.health == "faulty":
        return RemovalCandidate(row, 2, f"faulty: {row.health_why}")
    if row.jobs:
        return RemovalCandidate(row, 6, f"{len(row.jobs)} job(s) run there")
    closed = {"DRAIN", "FAIL", "NOT_RESPONDING"} & set(row.slurm_flags)
    if row.slurm_state == "DOWN" or closed:
        return RemovalCandidate(
            row, 3, f"{'+'.join([row.slurm_state, *sorted(closed)])} in Slurm, no job"
        )
    if row.slurm_state == NOT_FOUND:
        return RemovalCandidate(row, 3, "Slurm does not know it")
    if row.slurm_state == UNKNOWN:
        return RemovalCandidate(row, 5, "what runs there is unknown")
    return RemovalCandidate(
        row, 4, "idle" if row.slurm_state == "IDLE" else f"{row.slurm_state}, no job"
    )


def pick_nodes_to_remove(
    rows: Sequence[NodeRow], group: str, target: int, count: int
) -> tuple[RemovalCandidate, ...]:
    """The nodes to give up so that a group of `target` has `count`: broken, then idle, the last
    name first; with jobs at last.

    Fewer, perhaps none, where some are going already: whether `target` includes those is
    unknown, and no group may end with less than was asked for.
    """
    own = [rank_removal_candidate(r) for r in rows if r.group == group and r.status not in GOING]
    own.sort(key=lambda p: make_natural_sort_key(p.row.node or p.row.logical_id), reverse=True)
    own.sort(key=lambda p: (p.rank, len(p.row.jobs)))
    return tuple(own[: max(0, min(target, len(own)) - count)])


def make_named_removal_candidates(
    rows: Sequence[NodeRow], group: str
) -> tuple[RemovalCandidate, ...]:
    """Return the nodes that a user chose. Raises HpctlError where one is not of the group."""
    for row in rows:
        if row.group != group:
            raise HpctlError(
                f"node {row.display_name} is in group {row.group}, not in group {group}; nothing "
                "was changed",
                "`hpctl cluster delete-nodes` removes nodes of any group",
            )
    return tuple(rank_removal_candidate(row) for row in rows)

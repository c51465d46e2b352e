"""What is out of service and why: each node that Slurm gives no work to, listed once. Pure.

Every such node gets the first account that one of ACCOUNTS has for it. The last of them answers for
every node, so the list is complete by construction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct

from hpctl.engine.journal.events import GateBlocked
from hpctl.engine.maintenance import describe_maintenance_reservation, is_node_in_maintenance
from hpctl.engine.power_saving import describe_node_power_saving, has_node_failed_to_resume
from hpctl.engine.untreated import (
    NodeWithoutActiveRecovery,
    find_event_resolving_unrecovered_node,
    find_instance_under_provider_change,
    find_nodes_without_active_recovery,
)
from hpctl.engine.view import RecoveryCandidate
from hpctl.engine.waiting import find_nodes_awaiting_operator
from hpctl.engine.world import World, list_gate_blocks_by_target
from hpctl.faults.hma_marks import find_hma_reason_mark
from hpctl.faults.reachability import is_intentionally_unreachable
from hpctl.faults.slurm_reasons import find_drained_node_fault_row
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.cloud_facts import InstanceStatus
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SlurmNode, SlurmReservation

_WORKING: Final = frozenset({"IDLE", "ALLOCATED", "MIXED"})
"""The base states in which slurmctld gives a node work, or has given it some."""
_CLOSING: Final = frozenset({"DRAIN", "FAIL", "MAINT", "MAINTENANCE", "INVALID_REG"})
"""The flags under which slurmctld gives a node no work."""
_AT_WORK: Final = (InstanceStatus.RUNNING, InstanceStatus.FAILURE)


class OutOfServiceCause(StrEnum):
    """Who has a node in hand, or what keeps it out of service."""

    RECOVERY = "recovery"
    """An open recovery treats it."""
    GATE = "gate"
    """hpctl wants to treat it, and a gate blocks that."""
    PERSON = "person"
    """It waits for a person: hpctl has escalated it, or no longer treats it."""
    FAULT = "fault"
    """Its fault is known and is about to be treated."""
    ADMINISTRATOR = "administrator"
    """A person, or a tool of the site's, has closed it or keeps it in a reservation."""
    CAPACITY = "capacity"
    """hpctl makes its group smaller."""
    SERVICE = "hyperpod"
    """HyperPod works on its instance."""
    SLURM = "slurm"
    """slurmctld closed it, or cannot reach it."""
    UNKNOWN = "unknown"
    """hpctl knows no reason."""


class OutOfServiceNode(Struct, frozen=True):
    """Why one node is out of service. `problem`: a person has to know of it."""

    node: SlurmNode
    by: OutOfServiceCause
    why: str
    problem: bool = True


class _OutOfServiceLookups(Struct, frozen=True):
    """What the accounts are made of, looked up once for all nodes."""

    world: World
    holds: Mapping[str, GateBlocked]
    escalated: Mapping[NodeName, NodeRecovery]
    untreated: Mapping[NodeName, NodeWithoutActiveRecovery]
    candidates: Mapping[NodeName, RecoveryCandidate]
    maintenance: Mapping[NodeName, SlurmReservation]
    now: datetime


def is_node_out_of_service(node: SlurmNode) -> bool:
    """Return whether slurmctld gives a node no work. One that power saving has stopped, or starts,
    is in service: slurmctld starts it for a job."""
    if not _CLOSING.isdisjoint(node.flags) or has_node_failed_to_resume(node):
        return True
    if node.is_powered_down or node.is_powering_up:
        return False
    return node.state not in _WORKING or not node.responding


def format_slurm_node_state(node: SlurmNode) -> str:
    """Return the state of a node as Slurm writes it: `IDLE+DRAIN`."""
    return "+".join([node.state, *sorted(node.flags)])


def find_nodes_out_of_service(w: World) -> list[OutOfServiceNode]:
    """Return the nodes out of service, each once, by name; none where Slurm could not be read."""
    if w.slurm is None:
        return []
    closed = [node for node in w.slurm.nodes.values() if is_node_out_of_service(node)]
    if not closed:
        return []
    known = _OutOfServiceLookups(
        world=w,
        holds=list_gate_blocks_by_target(w),
        escalated={rec.node: rec for rec in find_escalated_node_recoveries(w)},
        untreated={one.name: one for one in find_nodes_without_active_recovery(w)},
        candidates={c.node.name: c for c in w.candidates},
        maintenance=w.maintenance,
        now=w.now,
    )
    return [
        _explain_node_out_of_service(node, known)
        for node in sorted(closed, key=lambda node: node.name)
    ]


def _explain_node_out_of_service(node: SlurmNode, known: _OutOfServiceLookups) -> OutOfServiceNode:
    for account in ACCOUNTS:
        found = account(node, known)
        if found is not None:
            return found
    return OutOfServiceNode(node, OutOfServiceCause.UNKNOWN, _describe_unknown_outage_cause(node))


def find_escalated_node_recoveries(w: World) -> list[NodeRecovery]:
    """Return the escalated recoveries whose node still waits for a person, longest first."""
    return find_nodes_awaiting_operator(w.state, w.slurm.nodes if w.slurm else None)


def _explain_outage_by_recovery(
    node: SlurmNode, known: _OutOfServiceLookups
) -> OutOfServiceNode | None:
    rec = known.world.state.node_recovery(node.name)
    if rec is None:
        return None
    if rec.is_for_capacity_change:
        return OutOfServiceNode(
            node, OutOfServiceCause.CAPACITY, f"{rec.id} removes it", problem=False
        )
    if rec.is_for_maintenance:
        why = f"{rec.id} {rec.phase}: a planned maintenance window"
        return OutOfServiceNode(node, OutOfServiceCause.RECOVERY, why, problem=False)
    return OutOfServiceNode(node, OutOfServiceCause.RECOVERY, f"{rec.id} {rec.phase}")


def _explain_outage_by_blocked_gate(
    node: SlurmNode, known: _OutOfServiceLookups
) -> OutOfServiceNode | None:
    hold = known.holds.get(node.name)
    return (
        None
        if hold is None
        else OutOfServiceNode(node, OutOfServiceCause.GATE, f"gate {hold.gate}: {hold.why}")
    )


def _explain_outage_by_escalation(
    node: SlurmNode, known: _OutOfServiceLookups
) -> OutOfServiceNode | None:
    rec = known.escalated.get(node.name)
    if rec is None:
        return None
    why = rec.trail[-1].why if rec.trail else rec.why
    return OutOfServiceNode(node, OutOfServiceCause.PERSON, f"{rec.id} escalated: {why}")


def _explain_outage_by_fault(
    node: SlurmNode, known: _OutOfServiceLookups
) -> OutOfServiceNode | None:
    candidate = known.candidates.get(node.name)
    if candidate is None:
        return None
    return OutOfServiceNode(node, OutOfServiceCause.FAULT, f"{candidate.why}; not treated yet")


def _explain_outage_by_maintenance(
    node: SlurmNode, known: _OutOfServiceLookups
) -> OutOfServiceNode | None:
    held_by = known.maintenance.get(node.name)
    if held_by is not None:
        why = describe_maintenance_reservation(held_by, known.now)
    elif is_node_in_maintenance(node):
        why = "a maintenance reservation held the node a moment ago"
    else:
        return None
    return OutOfServiceNode(node, OutOfServiceCause.ADMINISTRATOR, why, problem=False)


def _explain_outage_by_operator_order(
    node: SlurmNode, known: _OutOfServiceLookups
) -> OutOfServiceNode | None:
    """Return a node that an operator has taken out of treatment, its fault known or its drain
    left."""
    one = known.untreated.get(node.name)
    if one is None:
        return None
    last = one.last.trail[-1].why if one.last.trail else str(one.last.phase)
    fault = f"{one.judged.why}; " if one.judged is not None else ""
    by = OutOfServiceCause.PERSON if one.instance is None else OutOfServiceCause.SERVICE
    return OutOfServiceNode(
        node, by, f"{fault}{last}: waits for {find_event_resolving_unrecovered_node(one).what}"
    )


def _explain_outage_by_slurm_reason(
    node: SlurmNode, known: _OutOfServiceLookups
) -> OutOfServiceNode | None:
    """A node that bears a Reason of hpctl's though no recovery of this name is open."""
    owner = parse_recovery_id_from_reason(node.reason)
    if owner is None:
        return None
    if _is_owned_by_capacity_change(owner, known):
        return OutOfServiceNode(
            node, OutOfServiceCause.CAPACITY, f"{owner} removed it", problem=False
        )
    instance = find_instance_under_provider_change(known.world, node.name)
    if instance is not None:
        why = f"left closed by {owner}; HyperPod calls instance {instance.id} {instance.status}"
        return OutOfServiceNode(node, OutOfServiceCause.SERVICE, why)
    return OutOfServiceNode(
        node, OutOfServiceCause.PERSON, _describe_node_left_drained(node, owner, known)
    )


def _is_owned_by_capacity_change(owner: RecoveryId, known: _OutOfServiceLookups) -> bool:
    state = known.world.state
    rec = state.nodes.get(owner)
    removed = rec is not None and (
        rec.is_for_capacity_change or rec.phase is NodeRecoveryPhase.REMOVED
    )
    return owner in state.changes or removed


def _describe_node_left_drained(
    node: SlurmNode, owner: RecoveryId, known: _OutOfServiceLookups
) -> str:
    state = known.world.state
    over = "has ended" if owner in state else "is not in the journal"
    orders = f"`hpctl replace {node.name}`"
    if node.drained:
        orders = f"`hpctl undrain {node.name}` or {orders}"
    return f"left closed by {owner}, which {over}: a person runs {orders}"


def _explain_outage_by_slurm_program(
    node: SlurmNode,
    known: _OutOfServiceLookups,  # noqa: ARG001
) -> OutOfServiceNode | None:
    """A node that a program of Slurm's has closed, as its Reason says."""
    if has_node_failed_to_resume(node):
        return OutOfServiceNode(node, OutOfServiceCause.SLURM, describe_node_power_saving(node))
    row = find_drained_node_fault_row(node)
    if row is None:
        return None
    return OutOfServiceNode(
        node, OutOfServiceCause.SLURM, f"{row.by} closed it ({node.reason!r}): {row.advice}"
    )


def _explain_outage_by_hyperpod(
    node: SlurmNode, known: _OutOfServiceLookups
) -> OutOfServiceNode | None:
    mark = find_hma_reason_mark(node)
    instance = known.world.joined.instances.get(node.name)
    if instance is not None and instance.status not in _AT_WORK:
        what = f"HyperPod calls instance {instance.id} {instance.status}"
        return OutOfServiceNode(node, OutOfServiceCause.SERVICE, what, problem=False)
    if mark:
        return OutOfServiceNode(
            node, OutOfServiceCause.SERVICE, f"HyperPod's health agent marked it {mark}"
        )
    return None


def _explain_outage_by_administrator(
    node: SlurmNode,
    known: _OutOfServiceLookups,  # noqa: ARG001
) -> OutOfServiceNode | None:
    if node.is_about_to_reboot:
        why = "a reboot by `scontrol reboot` is under way"
        return OutOfServiceNode(node, OutOfServiceCause.ADMINISTRATOR, why, problem=False)
    if not (node.reason and (node.closed or node.down) and is_intentionally_unreachable(node)):
        return None
    who = f"{node.reason_by}: " if node.reason_by else ""
    return OutOfServiceNode(
        node, OutOfServiceCause.ADMINISTRATOR, f"{who}{node.reason}", problem=False
    )


def _explain_outage_by_unreachability(
    node: SlurmNode, known: _OutOfServiceLookups
) -> OutOfServiceNode | None:
    """Return a node that slurmctld lost, or that never registered."""
    if not (node.down or not node.responding or node.state == "UNKNOWN"):
        return None
    judged = known.world.assessments.get(node.name)
    said = node.reason or (judged.why if judged is not None else "")
    return OutOfServiceNode(
        node, OutOfServiceCause.SLURM, said or "slurmctld does not reach its slurmd"
    )


def _describe_unknown_outage_cause(node: SlurmNode) -> str:
    # What stands in backquotes is shown as a command to run.
    said = node.reason.replace("`", "'")
    reason = f"Reason {said!r}" if said else "Slurm gives no Reason"
    return f"{reason}: a person runs `scontrol show node {node.name}`"


ACCOUNTS: Final[
    tuple[Callable[[SlurmNode, _OutOfServiceLookups], OutOfServiceNode | None], ...]
] = (
    _explain_outage_by_recovery,
    _explain_outage_by_blocked_gate,
    _explain_outage_by_escalation,
    _explain_outage_by_fault,
    _explain_outage_by_maintenance,
    _explain_outage_by_operator_order,
    _explain_outage_by_slurm_reason,
    _explain_outage_by_slurm_program,
    _explain_outage_by_hyperpod,
    _explain_outage_by_administrator,
    _explain_outage_by_unreachability,
)

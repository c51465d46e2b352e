"""Nodes that cannot be reached, read as findings: by Slurm, by the cloud, by this head node.

| sign | what is seen |
|---|---|
| `slurm.down` | slurmctld itself set the node DOWN, though the node's agent is heard |
| `slurm.rebooted` | the same, because the node booted unexpectedly (ReturnToService=1) |
| `slurm.silent` | slurmctld marks the slurmd as not responding; its jobs run on for now |
| `slurm.prolog` and others | a program of Slurm's closed the node: see `slurm_reasons` |
| `cloud.failed` | the cloud lists the instance as Failure, though its agent is heard |
| `agent.silent` | nothing is heard from the agent, and Slurm still reaches the node |

Where the agent is silent and Slurm or the cloud agrees, `plan` calls the node lost. A node that
is closed by a person, kept in a maintenance reservation, powered down by Slurm or about to be
rebooted by it, and an instance that the service is at work on, are as an operator wants them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from hpctl.faults.hma_marks import add_hma_mark_findings, find_hma_reason_mark
from hpctl.faults.slurm_reasons import find_drained_node_fault_row, find_slurm_reason_fault_row
from hpctl.vocabulary.cloud_facts import Instance, InstanceStatus
from hpctl.vocabulary.identity import NodeGeneration, NodeName, RuleId
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmNode

if TYPE_CHECKING:
    from hpctl.faults.catalogue import FaultRules

_WANTED: Final = frozenset(
    {
        *("MAINT", "MAINTENANCE", "FUTURE", "REBOOT_REQUESTED", "REBOOT_ISSUED"),
        *("POWER_DOWN", "POWERED_DOWN", "POWERING_DOWN", "POWER_UP", "POWERING_UP"),
    }
)
"""Flags under which a node does not answer because an operator or Slurm wants it so."""
_AT_WORK: Final = (InstanceStatus.RUNNING, InstanceStatus.FAILURE)

AGENT: Final = "agent.silent"
CHECKS: Final = frozenset({"slurm", "cloud", "agent"})
RULES: Final = frozenset(
    map(RuleId, ("slurm-down", "slurm-rebooted", "cloud-failed", "agent-silent"))
)
"""The rows of nodes out of reach that are treated: they pass once the node is reached again. None
rests on what the node says of itself."""

Signs = Mapping[tuple[NodeGeneration, str], datetime]
"""Since when each sign is seen without a gap."""


def is_intentionally_unreachable(node: SlurmNode, instance: Instance | None = None) -> bool:
    """Return whether a node is out of reach on purpose, or is being treated already."""
    if _WANTED & node.flags or (instance is not None and instance.status not in _AT_WORK):
        return True
    theirs = bool(node.reason) and find_slurm_reason_fault_row(node) is None
    return theirs and (node.closed or node.down)


def find_node_unreachable_symptom(node: SlurmNode, instance: Instance | None = None) -> str:
    """Return what Slurm or the cloud holds against a node that should be in service; "":
    nothing."""
    if is_intentionally_unreachable(node, instance):
        return ""
    closed = find_drained_node_fault_row(node)
    if closed:
        return f"slurm.{closed.code}"
    if node.drained:
        return ""
    if node.down:
        rebooted = node.reason.startswith("Node unexpectedly rebooted")
        return "slurm.rebooted" if rebooted else "slurm.down"
    if instance is not None and instance.status is InstanceStatus.FAILURE:
        return "cloud.failed"
    return "" if node.responding else "slurm.silent"


def is_reachable(node: SlurmNode | None, instance: Instance | None) -> bool:
    """Return whether Slurm and the cloud reach a node, closed or not."""
    running = instance is None or instance.status is InstanceStatus.RUNNING
    return node is not None and node.responding and not node.down and running


def add_unreachable_node_findings(  # noqa: PLR0913 -- pure: all that decides is an argument
    health: Mapping[NodeName, NodeHealth],
    slurm: SchedulerView | None,
    instances: Mapping[NodeName, Instance],
    rules: FaultRules,
    now: datetime,
    before: Signs | None = None,
) -> tuple[dict[NodeName, NodeHealth], Signs]:
    """Return what is known of the nodes, HMA's marks and these signs included; and the signs' ages.

    `before` is the memory of the last look: a sign counts from when it was first seen, for a node
    that boots is DOWN and silent for a while. Without it (a command that looks once) a sign is as
    old as Slurm's Reason or the agent's last word. Where no agent at all is heard it is this head
    node that is deaf, and silence says nothing of the nodes.
    """
    deaf = all(now - known.last_heard > rules.silent_after for known in health.values())
    found, signs = (
        add_hma_mark_findings(health, slurm, instances),
        dict[tuple[NodeGeneration, str], datetime](),
    )
    if slurm is None:
        return found, signs
    for name, known in health.items():
        node, instance = slurm.nodes.get(name), instances.get(name)
        if (
            node is None
            or find_hma_reason_mark(node)
            or parse_recovery_id_from_reason(node.reason) is not None
        ):
            continue
        sign, closed = (
            find_node_unreachable_symptom(node, instance),
            find_drained_node_fault_row(node) is not None,
        )
        since = node.reason_at if node.down or closed else None
        if now - known.last_heard > rules.silent_after:
            gone = sign and not closed
            sign = "" if deaf or gone or is_intentionally_unreachable(node, instance) else AGENT
            since = known.last_heard + rules.silent_after
        if not sign:
            continue
        if before is not None and not (closed and since):
            since = before.get((known.generation, sign), now)
        signs[known.generation, sign] = since = since or slurm.as_of
        found[name] = replace(
            known,
            findings=(*known.findings, _make_unreachable_finding(sign, node, instance, since)),
        )
    return found, signs


def _make_unreachable_finding(
    sign: str, node: SlurmNode, instance: Instance | None, since: datetime
) -> Finding:
    check, _, code = sign.partition(".")
    evidence = f"State={'+'.join([node.state, *sorted(node.flags)])} Reason={node.reason}"
    if check == "cloud" and instance is not None:
        evidence = f"{instance.id} {instance.status}: {instance.message}"
    detail = node.reason if check == "slurm" else instance.message if instance else ""
    return Finding(
        check,
        DeviceVerdict.FAIL,
        since,
        since,
        code=code,
        detail=detail if sign != AGENT else "",
        evidence=evidence,
        clears=ClearCondition.GONE,
    )

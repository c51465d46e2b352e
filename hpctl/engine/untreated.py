"""Nodes that are faulty, or closed by hpctl, and that nothing treats, because an operator said so.

An operator who resumes a node, takes its drain over or cancels its recovery is not overruled by
evidence that was known then. The node is listed until its fault clears or an operator gives another
order.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from hpctl.engine.timeline import AwaitedEvent
from hpctl.engine.world import World
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition
from hpctl.vocabulary.cloud_facts import Instance, InstanceStatus
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.model import ClearCondition
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SlurmNode


class NodeWithoutActiveRecovery(Struct, frozen=True):
    """A node whose last recovery has ended. `judged`: its fault; None where none is known.
    `instance`: its instance, where HyperPod works on it: replaces it, say, as a user ordered."""

    node: SlurmNode
    last: NodeRecovery
    judged: NodeAssessment | None
    instance: Instance | None = None

    @property
    def name(self) -> NodeName:
        """Return the Slurm name of the node."""
        return self.node.name

    @property
    def in_service(self) -> bool:
        """Return whether slurmctld gives the node work."""
        return self.node.in_service

    @property
    def since(self) -> datetime:
        """Since when its fault is known, or it is left closed."""
        return self.judged.since if self.judged is not None else self.last.since


def find_nodes_without_active_recovery(w: World) -> list[NodeWithoutActiveRecovery]:
    """Return such nodes in order; none where Slurm could not be read."""
    waits = {*w.state.open_nodes, *w.state.holds, *(c.node.name for c in w.candidates)}
    found = []
    for name, rid in sorted(w.state.last_of_node.items()) if w.slurm else ():
        node = w.slurm.nodes.get(name) if w.slurm else None
        last = w.state.nodes[rid]
        if node is None or name in waits or last.phase is NodeRecoveryPhase.REMOVED:
            continue
        judged = _find_fault_not_accepted_by_operator(w, name)
        left = not node.in_service and parse_recovery_id_from_reason(node.reason) == last.id
        if judged is not None or left:
            found.append(
                NodeWithoutActiveRecovery(
                    node, last, judged, find_instance_under_provider_change(w, name)
                )
            )
    return found


def find_instance_under_provider_change(w: World, name: NodeName) -> Instance | None:
    """Return the instance of a node while HyperPod starts, replaces or repairs it; else None."""
    instance = w.joined.instances.get(name)
    at_work = (InstanceStatus.RUNNING, InstanceStatus.FAILURE)
    return None if instance is None or instance.status in at_work else instance


def _find_fault_not_accepted_by_operator(w: World, name: NodeName) -> NodeAssessment | None:
    """Return the fault of a node, unless an operator has accepted it with `hpctl undrain`."""
    judged = w.assessments.get(name)
    if judged is None or judged.condition is not NodeCondition.FAULTY or judged.fault is None:
        return None
    accepted = w.state.returned.get(name)
    return None if accepted is not None and judged.newest <= accepted else judged


def describe_node_without_active_recovery(one: NodeWithoutActiveRecovery) -> str:
    """Say in one clause how the node is, with which fault, and by whose decision."""
    how = "in service" if one.in_service else f"out of service (Reason {one.node.reason!r})"
    fault = ""
    if one.judged is not None:
        fault = f" with a fault known since {one.since:%Y-%m-%d %H:%M:%S} UTC ({one.judged.why})"
    why = one.last.trail[-1].why if one.last.trail else ""
    return f"{one.name} is {how}{fault}; hpctl does not treat it ({why or one.last.phase})"


def find_event_resolving_unrecovered_node(one: NodeWithoutActiveRecovery) -> AwaitedEvent:
    """Return what ends the state: what a person does, and what ends it without one."""
    name = one.name
    if one.instance is not None:
        return AwaitedEvent(
            f"HyperPod, which calls its instance {one.instance.id} {one.instance.status}"
        )
    orders = f"`hpctl reboot {name}` or `hpctl replace {name}`"
    ours = not one.in_service and parse_recovery_id_from_reason(one.node.reason) is not None
    if ours:
        orders = f"`hpctl undrain {name}`, {orders}"
    elif one.in_service:
        orders += f", or `hpctl undrain {name}`, which accepts the fault"
    if one.judged is None:
        return AwaitedEvent(f"a person to run {orders}")
    clears = {f.clears for f in one.judged.findings}
    by_itself = (
        "its check to pass" if clears == {ClearCondition.GONE} else "a restart of its instance"
    )
    return AwaitedEvent(f"{by_itself}, new evidence, which is treated, or a person to run {orders}")

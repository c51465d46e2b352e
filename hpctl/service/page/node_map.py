"""The map of the page: a cell a node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping

from msgspec import Struct

from hpctl.engine import instance_resolver
from hpctl.engine.world import World, list_known_nodes
from hpctl.vocabulary.assessment import NodeAssessment
from hpctl.vocabulary.identity import NodeName

#
# The cluster as a map: one cell a node, by instance group and by leaf of the topology.

KINDS = {
    "person": ("!", "waiting for a person"),
    "held": ("=", "held back by a gate that opens when its cause passes"),
    "healing": ("\u21bb", "in treatment"),
    "faulty": ("\u00d7", "faulty"),
    "suspect": ("~", "suspect"),
    "closed": ("\u2013", "DOWN or drained, not by hpctl"),
    "unknown": ("?", "health unknown"),
    "busy": ("", "healthy, with jobs"),
    "idle": ("", "healthy, idle"),
}
"""What a cell says: its sign, which tells it without color, and its meaning. The first counts."""


class NodeMapCell(Struct, frozen=True):
    """One node, in the instance group (the partition, where the cloud names none) and on the leaf
    switch or block where it is."""

    group: str
    leaf: str
    name: NodeName
    kind: str
    says: str


def make_node_map_cells(
    w: World, leaves: Mapping[NodeName, str], persons: Container[str] = frozenset()
) -> list[NodeMapCell]:
    """Return all nodes, by group, leaf and name. `persons`: the nodes that need a person."""
    running = (job for job in (w.slurm.jobs.values() if w.slurm else ()) if job.running)
    jobs: dict[NodeName, str] = {}
    for job in running:
        jobs |= dict.fromkeys(job.nodes, job.shown)
    found = [
        _make_node_map_cell(w, name, jobs.get(name), leaves.get(name, ""), name in persons)
        for name in list_known_nodes(w)
    ]
    # Nodes are in order already.
    return sorted(
        found,
        key=lambda cell: (
            instance_resolver.make_natural_sort_key(cell.group),
            instance_resolver.make_natural_sort_key(cell.leaf),
        ),
    )


def summarize_node_map_cells(found: Iterable[NodeMapCell]) -> str:
    """Return how many cells there are, and of what is not well how many."""
    of = Counter(cell.kind for cell in found)
    unwell = [f"{of[k]} {meaning}" for k, (sign, meaning) in KINDS.items() if of[k] and sign]
    return "; ".join([f"{of.total()} node{'s' * (of.total() != 1)}", *unwell])


def _make_node_map_cell(
    w: World, name: NodeName, job: str | None, leaf: str, person: bool
) -> NodeMapCell:
    node, instance = w.slurm.nodes.get(name) if w.slurm else None, w.joined.instances.get(name)
    judged, hold = w.assessments.get(name), w.state.holds.get(name)
    rec = w.state.node_recovery(name)
    healing = w.state.is_node_in_recovery(name)
    says = [judged.why or str(judged.condition) if judged else "no agent has reported"]
    says += ["+".join([node.state, *sorted(node.flags)])] if node else []
    says += [f"in treatment: {rec.phase} ({rec.id})"] if rec else []
    says += [f"held: {hold.why}"] if hold else []
    says += [f"job {job}"] if job else []
    closed = node is not None and not node.in_service
    is_so = {
        "person": person,
        "held": hold is not None,
        "healing": healing,
        "closed": closed,
        "busy": job is not None,
        "idle": True,
        **_make_node_condition_flags(judged),
    }
    partition = node.partitions[0] if node and node.partitions else "other nodes"
    group = instance.group if instance and instance.group else partition
    return NodeMapCell(group, leaf, name, next(k for k in KINDS if is_so.get(k)), "; ".join(says))


def _make_node_condition_flags(judged: NodeAssessment | None) -> dict[str, bool]:
    return {str(judged.condition) if judged else "unknown": True}

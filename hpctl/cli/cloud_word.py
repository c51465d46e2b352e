"""What the cloud itself says of a node under treatment: a failure's own text, and what it means."""

from __future__ import annotations

from hpctl.cli.gather import World
from hpctl.clusters.trouble import understand
from hpctl.core.model import Instance, InstanceStatus
from hpctl.core.node_recovery import NodeRecovery, Phase

_AWAITED = (Phase.VACATED, Phase.REMEDYING, Phase.REJOINING)


def waits_for_cloud(w: World) -> bool:
    """Whether some open recovery waits for the cloud, so that its word is worth a call."""
    return any(w.state.nodes[i].phase in _AWAITED for i in w.state.open_nodes.values())


def cloud_says(w: World, rec: NodeRecovery) -> str:
    """One sentence, with the mend, where the cloud was asked and has something to say; else ""."""
    instance = _instance(w, rec) if rec.phase in _AWAITED else None
    if instance is None or not instance.message:
        return ""
    said = f"the cloud says {instance.status} of {instance.id}: {instance.message}"
    if instance.status is not InstanceStatus.FAILURE:
        return said
    trouble = understand(instance.message)
    return f"{said} This means: {trouble.meaning}. Mend: {trouble.mend}"


def _instance(w: World, rec: NodeRecovery) -> Instance | None:
    """The instance that stands for the node, or for its place in the group."""
    if w.cloud is None:
        return None
    mine = [
        i for i in w.cloud.instances.values() if i.logical_id and i.logical_id == rec.logical_id
    ]
    return w.joined.instances.get(rec.node) or (mine[0] if mine else None)

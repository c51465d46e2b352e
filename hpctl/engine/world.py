"""What is known and decided of the cluster at one time: what read commands and the page show.

`world_reader` reads it. What cannot be read is None, with why.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.engine.journal.events import GateBlocked
from hpctl.engine.journal.state import EngineState
from hpctl.engine.maintenance import find_maintenance_reservations
from hpctl.engine.view import PlanningView, RecoveryCandidate
from hpctl.vocabulary import assessment, cloud_facts, identity, model, slurm_facts
from hpctl.vocabulary.hang import StalledJobRun
from hpctl.vocabulary.instance_join import InstanceNodeMapping
from hpctl.vocabulary.isolation import ItemProcessingFailure
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.policy import RecoveryPolicy

if TYPE_CHECKING:
    from hpctl.engine.journal.rows import DaemonLeaseInfo, StandbyInfo


class World(Struct, frozen=True):
    """All that is known at `now`. `slurm` and `cloud` are None where they cannot be read.

    `stopped` says that the kill-switch file is there.
    """

    now: datetime
    policy: RecoveryPolicy
    state: EngineState
    cluster: str = ""
    stopped: str = ""
    health: Mapping[identity.NodeName, model.NodeHealth] = field(default_factory=dict)
    assessments: Mapping[identity.NodeName, assessment.NodeAssessment] = field(default_factory=dict)
    daemon: DaemonLeaseInfo | None = None
    slurm: slurm_facts.SchedulerView | None = None
    slurm_error: str = ""
    cloud: cloud_facts.CloudProviderView | None = None
    cloud_error: str = ""
    joined: InstanceNodeMapping = field(default_factory=InstanceNodeMapping)
    """Which of the cloud's instances stands for which node."""
    candidates: tuple[RecoveryCandidate, ...] = ()
    """What the last cycle decided on. Offline: the nodes that the facts call faulty and that no
    recovery treats."""
    holds: tuple[GateBlocked, ...] = ()
    """What the last cycle blocked, and why then; none offline."""
    flaws: tuple[ItemProcessingFailure, ...] = ()
    """What the last cycle could not handle; none offline."""
    still: Mapping[identity.JobId, StalledJobRun] = field(default_factory=dict)
    """The running jobs of which nothing works; none offline."""
    computed: str = ""
    """Why the reader computed all this without the daemon; empty: it is the daemon's."""
    reservations: Mapping[str, tuple[identity.NodeName, ...]] | None = None
    """The nodes of each reservation of Slurm's; None where the daemon does not read them, where
    they were not asked for, and offline."""
    leaves: Mapping[identity.NodeName, str] | None = None
    """The leaf switch or block of each node; None as `reservations`."""
    number: int = 0
    """Of the daemon's world: another one has another."""
    standbys: tuple[StandbyInfo, ...] = ()
    shared: bool = False
    """Whether several heads may use this journal."""
    full_disk: str = ""
    """Which file system of the state directory is full, and what to do; empty where it has room."""

    @property
    def is_daemon_alive(self) -> bool:
        """Return whether a daemon holds the lease: it renews it every cycle."""
        return self.daemon is not None and self.now <= self.daemon.until

    @property
    def maintenance(self) -> Mapping[identity.NodeName, slurm_facts.SlurmReservation]:
        """Return the nodes that an admin's maintenance reservation holds, or is about to hold."""
        if self.slurm is None:
            return {}
        return find_maintenance_reservations(
            self.slurm, self.policy.node.maintenance_lead_s, self.now
        )

    def view(self) -> PlanningView:
        """Return what the daemon would plan on; without the cloud's word, its gates pass."""
        return PlanningView(
            maintenance=self.maintenance,
            begun=find_maintenance_reservations(self.slurm, 0.0, self.now) if self.slurm else {},
            scheduler=self.slurm or slurm_facts.SchedulerView(self.now),
            provider=self.cloud or cloud_facts.CloudProviderView(self.now),
            health=self.health,
            assessments=self.assessments,
            state=self.state,
            instances=self.joined.instances,
            unjoined=self.joined.unjoined,
            current=self.slurm is not None,
            stopped=self.stopped,
        )


def exclude_removed_nodes_from_health(
    state: EngineState,
    health: Mapping[identity.NodeName, model.NodeHealth],
    slurm: slurm_facts.SchedulerView | None,
    joined: InstanceNodeMapping,
    recent: datetime,
) -> Mapping[identity.NodeName, model.NodeHealth]:
    """Return the health of the nodes without those that slurmctld does not know, nor the cloud
    where it was asked, that nothing is done to and that were not heard lately.

    Such a node was removed, by a scale-down for example: its agent is expected by no one.
    """
    if slurm is None:
        return health
    there = {*slurm.nodes, *joined.instances, *state.open_nodes}
    return {n: h for n, h in health.items() if n in there or h.last_heard >= recent}


def find_gate_block_of_target(w: World, target: str) -> GateBlocked | None:
    """Return the hold of a target: since when from the journal, why from the daemon's last cycle.

    The journal has the reason as it was when the gate began to block; its numbers change since.
    """
    hold = w.state.holds.get(target)
    if hold is None:
        return None
    same = (hold.target, hold.gate, hold.rule)
    last = [h.why for h in w.holds if (h.target, h.gate, h.rule) == same]
    return replace(hold, why=last[0]) if last else hold


def list_gate_blocks_by_target(w: World) -> dict[str, GateBlocked]:
    """Return what `find_gate_block_of_target` finds of every target that a gate blocks, by target,
    in order."""
    last: dict[tuple[str, str, str], str] = {}
    for hold in w.holds:
        last.setdefault((hold.target, hold.gate, hold.rule), hold.why)
    found = {}
    for target in sorted(w.state.holds):
        hold = w.state.holds[target]
        why = last.get((hold.target, hold.gate, hold.rule), hold.why)
        found[target] = replace(hold, why=why)
    return found


def list_known_nodes(w: World) -> list[identity.NodeName]:
    """Return every node that anybody has a word for, in order."""
    from hpctl.engine.instance_resolver import make_natural_sort_key

    names = set(w.health) | {r.node for r in w.state.nodes.values() if not r.is_for_capacity_change}
    if w.slurm is not None:
        names = set(w.slurm.nodes) | set(w.health)
    return sorted(names, key=make_natural_sort_key)


_AWAITED = (NodeRecoveryPhase.VACATED, NodeRecoveryPhase.REMEDYING, NodeRecoveryPhase.REJOINING)


def has_recovery_awaiting_cloud(w: World) -> bool:
    """Return whether some open recovery waits for the cloud, so that reading it is worth a call."""
    return any(w.state.nodes[i].phase in _AWAITED for i in w.state.open_nodes.values())


def describe_instance_status_message(w: World, rec: NodeRecovery) -> str:
    """Return one sentence, with the fix, where the cloud was asked and has something to say; else
    ""."""
    instance = _find_recovery_instance(w, rec) if rec.phase in _AWAITED else None
    if instance is None or not instance.message:
        return ""
    status = f"the cloud says {instance.status} of {instance.id}: {instance.message}"
    if instance.status is not cloud_facts.InstanceStatus.FAILURE:
        return status
    from hpctl.sagemaker.failure_causes import explain_node_failure

    trouble = explain_node_failure(instance.message)
    return f"{status} This means: {trouble.meaning}. Fix: {trouble.fix}"


def _find_recovery_instance(w: World, rec: NodeRecovery) -> cloud_facts.Instance | None:
    """Return the instance that stands for the node, or for its place in the group."""
    if w.cloud is None:
        return None
    mine = [
        i for i in w.cloud.instances.values() if i.logical_id and i.logical_id == rec.logical_id
    ]
    return w.joined.instances.get(rec.node) or (mine[0] if mine else None)

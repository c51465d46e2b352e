"""Eight nodes with a provider that counts them, for the tests of capacity."""

from typing import Any

from msgspec.structs import replace

from hpctl.engine.journal.events import Event, NodeRecoveryOpened
from hpctl.engine.view import PlanningView
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.cloud_facts import InstanceGroup
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, NodeName, RecoveryId
from hpctl.vocabulary.node_recovery import SCALE_DOWN
from hpctl.vocabulary.policy import (
    AutoscalePolicy,
    InstanceGroupSizeLimits,
    OperatingMode,
    RecoveryPolicy,
)
from hpctl.vocabulary.recovery import StepStartDecision
from hpctl.vocabulary.slurm_facts import SlurmJob
from tests.fakes.engine import advance_all
from tests.fakes.values import at, node_name, slurm_job, view_of

N1, N2, N3 = node_name(1), node_name(2), node_name(3)
SCALE = RecoveryPolicy(
    mode=OperatingMode.OWN,
    autoscale=AutoscalePolicy(
        enabled=True, groups={"workers": InstanceGroupSizeLimits(2, 12)}, down_after_s=600
    ),
)
SPARE = RecoveryPolicy(mode=OperatingMode.OWN, spares={"workers": 2})
OLD = at(-3600)


def cluster(
    *, idle: int = 8, jobs: tuple[SlurmJob, ...] = (), change: dict[NodeName, Any] | None = None,
    log: tuple[Event, ...] = (), **more: Any,
) -> PlanningView:  # fmt: skip
    """Eight nodes; the last ones are busy; `change` alters single nodes."""
    view = view_of(jobs=jobs, log=log, **more)
    nodes = {
        name: replace(node, state="IDLE" if i < idle else "ALLOCATED", last_busy=OLD)
        for i, (name, node) in enumerate(view.scheduler.nodes.items())
    }
    for name, what in (change or {}).items():
        nodes[name] = replace(nodes[name], **what)
    groups = {"workers": InstanceGroup("workers", "ml.p5.48xlarge", 8, 8, "InService")}
    cloud = replace(view.provider, cluster_status="InService", groups=groups, continuous=True)
    return replace(view, scheduler=replace(view.scheduler, nodes=nodes), provider=cloud)


def removal(rid: str = "n-1", node: NodeName = N1, **more: Any) -> NodeRecoveryOpened:
    """The opening of the removal of a node, whose instance is `i-` and its name."""
    generation = NodeGeneration(node, InstanceId(f"i-{node}"), BootId(""))
    values: dict[str, Any] = {
        "at": at(0), "recovery": RecoveryId(rid), "generation": generation, "rule": SCALE_DOWN,
        "meaning": "scale down", "urgency": Urgency.AFTER_JOBS, "ladder": (Remedy.DELETE,),
        "why": "idle", "mode": "own", "by": "autoscale", "group": "workers", **more,
    }  # fmt: skip
    return NodeRecoveryOpened(**values)


def pending(job: int = 9, wants: int = 2, **more: Any) -> SlurmJob:
    values: dict[str, Any] = {
        "state": "PENDING", "nodes": (), "reason": "Resources", "wants": wants,
        "eligible": at(-600), "partition": "all", **more,
    }  # fmt: skip
    return slurm_job(job, **values)


def steps(
    view: PlanningView, policy: RecoveryPolicy = SCALE, seconds: float = 1
) -> list[StepStartDecision]:
    return [due.do for due in advance_all(view, policy, at(seconds)).due]


def moves(view: PlanningView, policy: RecoveryPolicy = SCALE, seconds: float = 1) -> list[str]:
    return [m.signal for m in advance_all(view, policy, at(seconds)).moves]

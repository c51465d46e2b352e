"""A made-up cluster of any size: what the ports answer, without Slurm and without a cloud."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec.structs import replace

from hpctl.engine.clock import SystemClock
from hpctl.vocabulary.cloud_facts import CloudProviderView, Instance, InstanceStatus
from hpctl.vocabulary.identity import (
    BootId,
    InstanceId,
    JobAttempt,
    JobId,
    NodeGeneration,
    NodeName,
    RecoveryId,
)
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import ConcurrentRecoveryBudgets, OperatingMode, RecoveryPolicy
from hpctl.vocabulary.preemption_order import PreemptionOrder
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode, SlurmReservation

JOB_NODES = 8
NODES_OF_YEARS = 1000
"""Of the cluster whose journal is made up by `past.py`."""
CLOCK = SystemClock()
CAREFUL = RecoveryPolicy(mode=OperatingMode.OWN)
"""The shipped budgets: of a hundred sick nodes nearly all are held."""
GENEROUS = RecoveryPolicy(
    mode=OperatingMode.OWN,
    budgets=ConcurrentRecoveryBudgets(
        open_min=1000, partition_min=1000, per_hour=1000, correlated_min=100_000
    ),
)
"""Budgets that let a hundred recoveries open in one cycle."""


def node_name(number: int) -> NodeName:
    return NodeName(f"ip-10-{number >> 16 & 255}-{number >> 8 & 255}-{number & 255}")


def instance_id(number: int) -> InstanceId:
    return InstanceId(f"i-{number:017x}")


def _node(number: int, booted: datetime) -> SlurmNode:
    name = node_name(number)
    return SlurmNode(
        name=name,
        state="MIXED",
        address=name.removeprefix("ip-").replace("-", "."),
        partitions=("dev", f"worker-{1 + number % 4}"),
        boot_time=booted,
        slurmd_start=booted,
    )


def _job(number: int, nodes: int, now: datetime) -> SlurmJob:
    first = number * JOB_NODES % nodes
    return SlurmJob(
        id=JobId(number + 1),
        state="RUNNING",
        submit=now - timedelta(hours=5),
        name="train",
        user="ada(1000)",
        partition="dev",
        nodes=tuple(node_name((first + i) % nodes) for i in range(JOB_NODES)),
        batch_host=node_name(first),
        start=now - timedelta(hours=4),
    )


def xid(code: str, at: datetime, device: str = "0000:53:00") -> Finding:
    """What an agent makes of one kernel line."""
    line = f"NVRM: Xid (PCI:{device}): {code}, pid='<unknown>', name=<unknown>, as the driver says."
    return Finding("kernel.xid", DeviceVerdict.FAIL, at, at, device, code, "", line)


class World:
    """Three worker groups' worth of nodes, eight-node jobs on them, one agent on each.

    One node in fifty carries the trace of an application's fault (Xid 31), as they do in the
    field: such a node is judged anew in every cycle and stays in service.
    """

    def __init__(self, nodes: int, jobs: int) -> None:
        now = CLOCK.now()
        booted = now - timedelta(days=9)
        self.slurm = SchedulerView(
            now,
            {node_name(i): _node(i, booted) for i in range(nodes)},
            {JobId(i + 1): _job(i, nodes, now) for i in range(jobs)},
        )
        self.cloud = CloudProviderView(
            now,
            present=True,
            cluster_status="InService",
            instances={
                instance_id(i): Instance(
                    instance_id(i), InstanceStatus.RUNNING, f"worker-{1 + i % 4}", node_name(i)
                )
                for i in range(nodes)
            },
        )
        self._nodes = nodes

    def health(self, sick: int = 0) -> dict[NodeName, NodeHealth]:
        """All agents heard now; `sick` nodes, spread over the cluster, have just lost a GPU."""
        now = CLOCK.now()
        lost = {i * self._nodes // sick for i in range(sick)} if sick else set()
        found = {}
        for i in range(self._nodes):
            findings = (xid("31", now - timedelta(hours=2)),) if i % 50 == 7 else ()
            if i in lost:
                findings = (*findings, xid("79", now))
            generation = NodeGeneration(node_name(i), instance_id(i), BootId(f"boot-{i}"))
            found[generation.node] = NodeHealth(generation, now, findings)
        return found


class WorldScheduler:
    """`hpctl.vocabulary.ports.Scheduler`: the prepared view, as of now; every order is accepted."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.drained = 0

    def view(self) -> SchedulerView:
        return replace(self._world.slurm, as_of=CLOCK.now())

    def reservations(self) -> Mapping[str, SlurmReservation]:
        return {}

    def leaves(self) -> Mapping[NodeName, str]:
        return {}

    def read_slurmctld_boot_time(self) -> datetime | None:
        return None

    def drain(
        self, nodes: Mapping[NodeName, str], *, spare_marks: bool = False
    ) -> Mapping[NodeName, Outcome]:
        self.drained += len(nodes)
        return dict.fromkeys(nodes, Outcome.accepted())

    def down(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, Outcome]:
        return dict.fromkeys(nodes, Outcome.accepted())

    def resume_nodes(self, nodes: Mapping[NodeName, RecoveryId]) -> Mapping[NodeName, Outcome]:
        return dict.fromkeys(nodes, Outcome.accepted())

    def signal(self, attempt: JobAttempt, signal: str) -> Outcome:
        return Outcome.accepted()

    def requeue(self, attempt: JobAttempt) -> Outcome:
        return Outcome.accepted()

    def start_pending_job(
        self, job: JobId, exclude: Sequence[NodeName], forgive: Sequence[NodeName] = ()
    ) -> Outcome:
        return Outcome.accepted()

    def hold(self, job: JobId, why: str) -> Outcome:
        return Outcome.accepted()

    def lift(self, job: JobId, nodes: Collection[NodeName]) -> Outcome:
        return Outcome.accepted()

    def cancel_attempt(self, attempt: JobAttempt, why: str) -> Outcome:
        return Outcome.accepted()

    def note(self, attempt: JobAttempt, why: str) -> Outcome:
        return Outcome.accepted()

    def requeue_exit_codes(self) -> frozenset[int]:
        return frozenset()

    def preemption_order(self) -> PreemptionOrder:
        return PreemptionOrder()


class WorldProvider:
    """`hpctl.vocabulary.ports.CloudProvider`: the prepared list, as of now; every order is
    accepted."""

    def __init__(self, world: World) -> None:
        self._world = world

    def view(self) -> CloudProviderView:
        return replace(self._world.cloud, as_of=CLOCK.now())

    def reboot(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        return dict.fromkeys(instances, Outcome.accepted())

    def replace(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        return dict.fromkeys(instances, Outcome.accepted())

"""What a busy cluster leaves in its journal: made-up days, each event legal after those before."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import count

from benchmarks.world import instance_id, node_name, xid
from hpctl.engine.journal.events import (
    Event,
    GateBlocked,
    HoldLifted,
    JobRecoveryOpened,
    JobReported,
    NodeRecoveryOpened,
    RequestTaken,
    SignalSeen,
    StepResolved,
    StepStarted,
)
from hpctl.vocabulary import change, job_recovery, node_recovery
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.change import ChangeOpened
from hpctl.vocabulary.identity import (
    BootId,
    JobAttempt,
    JobId,
    NodeGeneration,
    NodeName,
    RecoveryId,
    RuleId,
)
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.recovery import StepKind
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.trouble import Trouble, TroubleKind

NODE_RECOVERIES = 20
JOBS_EACH = 2
CRASHES = 40
CHANGES = 30
REPORTS = 400
HOLDS = 40
REQUESTS = 4
GATES = (
    "kill_switch paused stale_facts wrong_instance provider_acts provider_auto_recovery"
    " foreign_drain protected not_allowed correlated budget offender launch_breaker observing"
)


class Past:
    """Days of a cluster of so many nodes, one after the other; ids and jobs count upwards."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._ids = count(1)
        self._jobs = count(1_000_000)
        self._instances = count(1_000_000)

    def day(self, begun: datetime) -> Iterator[Event]:
        """One day's events in order."""
        for i in range(NODE_RECOVERIES):
            yield from self._node(begun + timedelta(minutes=i * 60))
            for k in range(HOLDS // NODE_RECOVERIES):
                yield from self._hold(begun + timedelta(minutes=i * 60 + 20 + k))
        for i in range(CRASHES):
            yield from self._crash(begun + timedelta(minutes=1 + i * 30))
        for i in range(CHANGES):
            yield from self._change(begun + timedelta(minutes=2 + i * 40))
        for i in range(REPORTS):
            at = begun + timedelta(minutes=i * 3)
            yield JobReported(at, JobReport(JobId(next(self._jobs)), 0, progress=i), 1000)
        for _ in range(REQUESTS):
            yield RequestTaken(begun, next(self._ids), "approve", "n1", "ann", "approved", ok=True)

    def _id(self, kind: str) -> RecoveryId:
        return RecoveryId(f"{kind}-{next(self._ids) * 2654435761 % 2**32:08x}")

    def _node(self, at: datetime) -> Iterator[Event]:
        rid, number = self._id("n"), next(self._ids)
        name = node_name(number * 7919 % self._nodes)
        sick = NodeGeneration(name, instance_id(next(self._instances)), BootId(f"boot-{number}"))
        fresh = NodeGeneration(name, instance_id(next(self._instances)), BootId(f"boot-{number}b"))
        yield NodeRecoveryOpened(
            at,
            rid,
            sick,
            RuleId("xid-79"),
            "the GPU has fallen off the bus",
            Urgency.NOW,
            (Remedy.REPLACE,),
            "Xid 79 on GPU 0000:53:00: GPU has fallen off the bus",
            "own",
            findings=(xid("79", at), xid("45", at)),
            passed=tuple(GATES.split()),
        )
        yield from step(at, rid, StepKind.DRAIN, name)
        yield signal(at, rid, node_recovery.NodeRecoverySignal.CORDON_SEEN)
        for _ in range(JOBS_EACH):
            yield from self._job(at, rid, name)
        yield from step(at, rid, StepKind.DOWN, name)
        yield signal(at, rid, node_recovery.NodeRecoverySignal.JOBS_GONE)
        yield from step(at, rid, StepKind.REPLACE, sick.instance)
        yield signal(at, rid, node_recovery.NodeRecoverySignal.REMEDY_ACCEPTED)
        later = at + timedelta(minutes=10)
        yield SignalSeen(
            later, rid, node_recovery.NodeRecoverySignal.NEW_GENERATION_SEEN, "new", fresh
        )
        yield signal(later, rid, node_recovery.NodeRecoverySignal.REJOINED)
        yield from step(later, rid, StepKind.RETURN, name)
        yield signal(later, rid, node_recovery.NodeRecoverySignal.RETURN_SEEN)

    def _job(
        self, at: datetime, cause: RecoveryId, node: NodeName, trouble: Trouble | None = None
    ) -> Iterator[Event]:
        rid, job = self._id("j"), JobId(next(self._jobs))
        yield JobRecoveryOpened(
            at,
            rid,
            JobAttempt(job, at - timedelta(hours=9), 0),
            cause,
            (node,) if cause else (),
            f"its node {node}: the GPU has fallen off the bus",
            "pretrain-70b",
            "ada(1000)",
            "dev",
            trouble=trouble,
            action=RunAction.REQUEUE if trouble else RunAction.NONE,
        )
        yield signal(at, rid, job_recovery.JobRecoverySignal.STOP_WANTED)
        yield from step(at, rid, StepKind.REQUEUE, str(job))
        yield signal(at, rid, job_recovery.JobRecoverySignal.QUEUED)
        yield from step(at, rid, StepKind.START_NOW, str(job))
        yield signal(at, rid, job_recovery.JobRecoverySignal.STARTED)
        yield signal(at, rid, job_recovery.JobRecoverySignal.RUNNING_SEEN)
        yield signal(at + timedelta(minutes=1), rid, job_recovery.JobRecoverySignal.PROVED)

    def _crash(self, at: datetime) -> Iterator[Event]:
        why = "rank 17 ended with exit code 1: RuntimeError: CUDA error: an illegal memory access"
        trouble = Trouble(
            TroubleKind.CUDA, at, why, "CUDA error", rank=17, exit_code=1, evidence=why * 8
        )
        yield from self._job(at, RecoveryId(""), node_name(0), trouble)

    def _hold(self, at: datetime) -> Iterator[Event]:
        target = node_name(next(self._ids) % self._nodes)
        why = "10 recoveries were opened within an hour; the budget is 10"
        yield GateBlocked(at, target, "budget", why, RuleId("xid-79"), approvable=True)
        yield HoldLifted(at + timedelta(minutes=5), target)

    def _change(self, at: datetime) -> Iterator[Event]:
        """An instance comes, and another one leaves."""
        rid, group = self._id("s"), "worker-1"
        why = "job 4600 waits for 1 node(s), 1 too few"
        yield ChangeOpened(at, rid, change.ChangeKind.ADD, group, why, count=1, size=13)
        yield from step(at, rid, StepKind.ADD, group)
        yield signal(at, rid, change.ClusterChangeSignal.ORDER_TAKEN)
        yield signal(at, rid, change.ClusterChangeSignal.ARRIVED)
        rid, number = self._id("n"), next(self._ids)
        name, instance = node_name(number % self._nodes), instance_id(next(self._instances))
        yield NodeRecoveryOpened(
            at=at,
            recovery=rid,
            generation=NodeGeneration(name, instance, BootId("")),
            rule=node_recovery.SCALE_DOWN,
            meaning="scale down",
            urgency=Urgency.AFTER_JOBS,
            ladder=(Remedy.DELETE,),
            why="idle for 31 min; group worker-1 has 12 of at least 4",
            mode="own",
            by="autoscale",
            group=group,
        )
        yield from step(at, rid, StepKind.DRAIN, name)
        yield signal(at, rid, node_recovery.NodeRecoverySignal.CORDON_SEEN)
        yield signal(at, rid, node_recovery.NodeRecoverySignal.JOBS_GONE)
        yield from step(at, rid, StepKind.REMOVE, instance)
        yield signal(at, rid, node_recovery.NodeRecoverySignal.REMEDY_ACCEPTED)
        yield signal(at + timedelta(minutes=3), rid, node_recovery.NodeRecoverySignal.INSTANCE_GONE)


def step(at: datetime, rid: RecoveryId, kind: StepKind, target: str) -> Iterator[Event]:
    """A step that was taken and accepted."""
    yield StepStarted(at, rid, kind, 1, target, "the GPU has fallen off the bus")
    yield StepResolved(at + timedelta(seconds=1), rid, kind, 1, Outcome.accepted())


def signal(at: datetime, rid: RecoveryId, what: str) -> Event:
    """A move, with texts as long as the usual."""
    return SignalSeen(at, rid, what, "slurmctld shows DRAIN with our Reason, no job left on it")

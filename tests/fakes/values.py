"""Small builders of the core's values, with the defaults of a healthy cluster of eight nodes."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from hpctl.engine.journal.events import Event, NodeRecoveryOpened
from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.engine.view import PlanningView
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.assessment import FaultClass, NodeAssessment, NodeCondition, Remedy, Urgency
from hpctl.vocabulary.cloud_facts import CloudProviderView, Instance, InstanceStatus
from hpctl.vocabulary.identity import InstanceId, JobAttempt, NodeGeneration, NodeName
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.recovery import Next, RecoveryPhaseMove, StepStartDecision
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
N1 = "n1"
OWN = RecoveryPolicy(mode=OperatingMode.OWN)
FAULT = FaultClass("xid-79", "GPU fell off the bus", Urgency.NOW, (Remedy.REBOOT, Remedy.REPLACE))


class Clock:
    """Time that a test moves."""

    def __init__(self, begin: datetime = T0) -> None:
        self.at = self._begin = begin

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return (self.at - self._begin).total_seconds()


def at(seconds: float) -> datetime:
    """T0 plus seconds."""
    return T0 + timedelta(seconds=seconds)


def node_name(number: int) -> NodeName:
    """n1, n2, ..."""
    return f"n{number}"


def generation(node: NodeName = N1, boot: int = 1, instance: str = "") -> NodeGeneration:
    """What stands under a name."""
    return NodeGeneration(node, InstanceId(instance or f"i-{node}"), f"{node}-boot-{boot}")


def slurm_node(number: int = 1, **changes: Any) -> SlurmNode:
    """An idle node of partition `all`."""
    values: dict[str, Any] = {"state": "IDLE", "partitions": ("all",), **changes}
    return SlurmNode(node_name(number), **values)


def slurm_job(job: int = 1, **changes: Any) -> SlurmJob:
    """A job that runs on n1 and n2 since T0 - 1 h."""
    values: dict[str, Any] = {
        "state": "RUNNING", "submit": at(-3700), "start": at(-3600),
        "nodes": (node_name(1), node_name(2)), **changes,
    }  # fmt: skip
    return SlurmJob(job, **values)


def finding(code: str = "79", seconds: float = -10) -> Finding:
    """A kernel line."""
    return Finding("kernel.xid", DeviceVerdict.FAIL, at(seconds), at(seconds), "0000:3b:00", code)


def faulty(node: NodeName = N1, fault: FaultClass = FAULT, seconds: float = -10) -> NodeAssessment:
    """A node with a proven fault."""
    lines = (finding(seconds=seconds),)
    return NodeAssessment(
        generation(node),
        NodeCondition.FAULTY,
        at(seconds),
        fault,
        lines,
        why="Xid 79 on 0000:3b:00",
    )


def opened(
    rid: str = "n-1", node: NodeName = N1, seconds: float = 0, **changes: Any
) -> NodeRecoveryOpened:
    """A recovery's first event."""
    values: dict[str, Any] = {
        "rule": FAULT.rule, "meaning": FAULT.meaning, "urgency": FAULT.urgency,
        "ladder": FAULT.ladder, "why": "Xid 79", "mode": "own",
        "findings": (finding(seconds=seconds - 10),), **changes,
    }  # fmt: skip
    return NodeRecoveryOpened(at(seconds), rid, generation(node), **values)


def attempt(job: int = 1, restarts: int = 0) -> JobAttempt:
    """Of `slurm_job`."""
    return JobAttempt(job, at(-3700), restarts)


def moves(answer: Next) -> RecoveryPhaseMove:
    """The answer of an `advance`, which is a move into another phase."""
    assert isinstance(answer, RecoveryPhaseMove)
    return answer


def does(answer: Next) -> StepStartDecision:
    """The answer of an `advance`, which is a step."""
    assert isinstance(answer, StepStartDecision)
    return answer


def view_of(
    nodes: int = 8,
    sick: Sequence[NodeAssessment] = (),
    jobs: Sequence[SlurmJob] = (),
    log: Sequence[Event] = (),
    *,
    state: EngineState | None = None,
    seconds: float = 0,
    **changes: Any,
) -> PlanningView:
    """A cluster, all read and heard at T0 + seconds."""
    now = at(seconds)
    names = [node_name(i) for i in range(1, nodes + 1)]
    instances = {
        n: Instance(generation(n).instance, InstanceStatus.RUNNING, "workers", n) for n in names
    }
    values: dict[str, Any] = {
        "scheduler": SchedulerView(
            now, {n: slurm_node(i + 1) for i, n in enumerate(names)}, {j.id: j for j in jobs}
        ),
        "provider": CloudProviderView(now, True, instances={i.id: i for i in instances.values()}),
        "health": {n: NodeHealth(generation(n), now) for n in names},
        "assessments": {a.generation.node: a for a in sick},
        "state": replay_events(log) if state is None else state,
        "instances": instances,
        **changes,
    }
    return PlanningView(**values)

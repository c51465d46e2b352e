"""A small cluster with a history: events as the daemon would write them, and what is live."""

from datetime import datetime, timedelta

from msgspec.structs import replace

from hpctl.engine.gates import GATES
from hpctl.engine.instance_resolver import match_instances_to_nodes_once
from hpctl.engine.journal.events import (
    DaemonStarted,
    Event,
    GateBlocked,
    JobRecoveryOpened,
    JobReported,
    NodeRecoveryOpened,
    RequestTaken,
    SignalSeen,
    StepResolved,
    StepStarted,
)
from hpctl.engine.journal.rows import DaemonLeaseInfo
from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.engine.world import World
from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import build_fault_rules
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.change import ChangeKind as Capacity
from hpctl.vocabulary.change import ChangeOpened, ClusterChangeSignal
from hpctl.vocabulary.cloud_facts import CloudProviderView, Instance, InstanceStatus
from hpctl.vocabulary.identity import InstanceId, JobAttempt, NodeGeneration
from hpctl.vocabulary.job_recovery import JobReport, RequestedAction
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import format_hpctl_node_reason, parse_recovery_id_from_reason
from hpctl.vocabulary.recovery import StepKind
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode
from hpctl.vocabulary.trouble import Trouble, TroubleKind

T0 = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
NOW = T0 + timedelta(seconds=90)
RULES = build_fault_rules()
GROUP = "worker-group-1"
ALL_GATES = tuple(row.name for row in GATES)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def gen(n: int, *, boot: str = "a", instance: str = "") -> NodeGeneration:
    return NodeGeneration(
        f"ip-10-1-0-{n}", InstanceId(instance or f"i-0{n:016x}"), f"boot-{n}-{boot}"
    )


XID79 = Finding(
    check="kernel.xid", verdict=DeviceVerdict.FAIL, first=at(0), last=at(0.1), device="0000:18:00",
    code="79", detail="GPU has fallen off the bus",
    evidence="NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.",
    count=2,
)  # fmt: skip


def node_opened(rid: str, generation: NodeGeneration, t: float, **change) -> NodeRecoveryOpened:
    settings: dict[str, object] = {
        "rule": "xid-79", "meaning": "GPU has fallen off the bus", "urgency": Urgency.NOW,
        "ladder": (Remedy.REBOOT, Remedy.REPLACE), "why": "xid-79 on 0000:18:00", "mode": "own",
        "logical_id": "worker-group-1-2", "findings": (XID79,), "passed": ALL_GATES, **change,
    }  # fmt: skip
    return NodeRecoveryOpened(at(t), rid, generation, **settings)


def step(rid, kind, target, t, outcome, attempt=1):
    events: list[Event] = [StepStarted(at(t), rid, kind, attempt, target)]
    if outcome is not None:
        events.append(StepResolved(at(t + 0.03), rid, kind, attempt, outcome))
    return events


def seen(
    rid: str, signal: str, t: float, why: str, now_is: NodeGeneration | None = None
) -> SignalSeen:
    return SignalSeen(at(t), rid, signal, why, now_is)


OK = Outcome.accepted()
SUBMIT = at(-3600)


def healed() -> list[Event]:
    """Node 2 broke under job 4242; both came back."""
    old, new = gen(2), gen(2, boot="b", instance="i-0fresh00000000002")
    n, j = "n-11111111", "j-22222222"
    return [
        DaemonStarted(at(-600), "0.1.0", "own", "head-1", 4711),
        node_opened(n, old, 0.15, ladder=(Remedy.REPLACE,)),
        *step(n, StepKind.DRAIN, old.node, 0.16, OK),
        seen(n, "cordon_seen", 0.21, "slurmctld shows DRAIN with our Reason"),
        JobRecoveryOpened(
            at(0.22), j, JobAttempt(4242, SUBMIT, 0), n, (old.node,),
            "its node ip-10-1-0-2: GPU has fallen off the bus", "train", "alice", "gpu",
        ),
        seen(j, "stop_wanted", 0.23, "it cannot go on where it is"),
        *step(n, StepKind.DOWN, old.node, 0.24, OK),
        seen(j, "queued", 0.4, "the job is back in the queue"),
        *step(j, StepKind.START_NOW, "4242", 0.41, Outcome.rejected("completing", transient=True)),
        *step(j, StepKind.START_NOW, "4242", 0.9, OK, attempt=2),
        seen(n, "jobs_gone", 0.95, "no job holds the node"),
        seen(j, "started", 0.95, "its begin delay is gone, the bad nodes are excluded"),
        seen(j, "running_seen", 1.6, "running on ip-10-1-0-1,ip-10-1-0-3"),
        *step(n, StepKind.REPLACE, old.instance, 1.0, OK),
        seen(n, "remedy_accepted", 1.4, "instance i-00000000000000002 is ShuttingDown"),
        seen(n, "new_generation_seen", 21.0, f"instance {new.instance}, boot {new.boot}", new),
        seen(n, "rejoined", 23.5, "the cloud says Running, the agent reports, slurmd registered"),
        seen(j, "proved", 31.6, "ran 30 s on ip-10-1-0-1,ip-10-1-0-3"),
        *step(n, StepKind.RETURN, old.node, 53.5, OK),
        seen(n, "return_seen", 53.7, "slurmctld shows the node in service"),
    ]  # fmt: skip


def troubled() -> list[Event]:
    """Node 4's reboot is in doubt, its job waits; node 5 is held; node 6 waits for a person."""
    four, six = gen(4), gen(6)
    n, j, e = "n-44444444", "j-55555555", "n-66666666"
    return [
        node_opened(e, six, 40, rule="xid-119", meaning="GSP RPC timeout", findings=()),
        *step(e, StepKind.DRAIN, six.node, 40.1, OK),
        seen(e, "cordon_seen", 40.2, "slurmctld shows DRAIN with our Reason"),
        seen(e, "needs_human", 44, "no provider: reboot or replace the node, then return it"),
        node_opened(n, four, 60),
        *step(n, StepKind.DRAIN, four.node, 60.1, OK),
        seen(n, "cordon_seen", 60.2, "slurmctld shows DRAIN with our Reason"),
        JobRecoveryOpened(
            at(60.3), j, JobAttempt(4343, SUBMIT, 1), n, (four.node,),
            "its node ip-10-1-0-4: GPU has fallen off the bus", "sweep [7B]", "bob", "gpu",
        ),
        seen(j, "stop_wanted", 60.4, "it cannot go on where it is"),
        seen(j, "queued", 61.0, "the job is back in the queue"),
        *step(j, StepKind.START_NOW, "4343", 61.1, OK),
        seen(j, "started", 61.2, "its begin delay is gone, the bad nodes are excluded"),
        seen(n, "jobs_gone", 61.3, "no job holds the node"),
        *step(n, StepKind.REBOOT, four.instance, 61.4, None),
        GateBlocked(
            at(70), "ip-10-1-0-5", "budget",
            "2 recoveries are open in the cluster; the budget is 2", "xid-79", True,
        ),
        GateBlocked(
            at(71), "4444", "not_recoverable",
            "job 4444 cannot be started again by Slurm (Requeue=0); submit with --requeue",
            "xid-79",
        ),
        *hung(),
        RequestTaken(at(75), 0, "approve", "ip-10-1-0-9", "carol", "nothing is held for it", False),
    ]  # fmt: skip


def hung() -> list[Event]:
    """Job 4545's supervisor found a hang and wished a requeue, which waits out its backoff."""
    j = "j-77777777"
    trouble = Trouble(
        TroubleKind.HANG, at(71.5), "rank 3 makes no progress in step 1200", "hang all_reduce",
        gen(2).node, 3, "0000:53:00.0", None, "step 1200 loss 2.31", 1200, 1000,
    )  # fmt: skip
    job, away = 4545, (gen(2).node,)
    why = "no spare is left"
    text = JobReport(
        job, 2, trouble, RunAction.REQUEUE, why, RequestedAction.REQUEUE, away, 60.0, 1000
    )
    return [
        JobReported(at(72), text, 1001),
        JobRecoveryOpened(
            at(72.1), j, JobAttempt(job, SUBMIT, 2), "", (),
            "rank 3 makes no progress in step 1200; no spare is left", "pretrain", "erin", "gpu",
            trouble=trouble, action=RunAction.REQUEUE, exclude=(gen(2).node,), start_at=at(132),
            ran_on=(gen(2).node, gen(3).node),
        ),
        seen(j, "stop_wanted", 72.1, "it cannot go on where it is"),
        *step(j, StepKind.REQUEUE, "4545", 72.2, OK),
        seen(j, "queued", 72.9, "the job is back in the queue"),
        *step(j, StepKind.START_NOW, "4545", 73.1, OK),
        seen(j, "started", 73.2, "it backs off until 12:02:12 UTC"),
    ]  # fmt: skip


def changes() -> list[Event]:
    """One group grew an hour ago, and a node left just now."""
    up, down = "s-11111111", "s-22222222"
    node, gone = "ip-10-1-0-12", "i-00000000000000012"
    why = "job 4600 waits for 4 node(s), 2 too few"
    add, remove = StepKind.ADD, StepKind.REMOVE
    out = "i-00000000000000012 is no longer listed"
    return [
        ChangeOpened(at(-3600), up, Capacity.ADD, GROUP, why, count=2, size=8),
        StepStarted(at(-3600), up, add, 1, GROUP),
        StepResolved(at(-3599), up, add, 1, Outcome.accepted("2 of 2: a,b")),
        SignalSeen(
            at(-3599), up, ClusterChangeSignal.ORDER_TAKEN, "the service took the order for 2 more"
        ),
        SignalSeen(at(-3000), up, ClusterChangeSignal.ARRIVED, f"8 instances of {GROUP} run"),
        ChangeOpened(at(10), down, Capacity.REMOVE, GROUP, "idle", node=node, instance=gone),
        SignalSeen(at(11), down, "closed_seen", "slurmctld shows DRAIN with our Reason"),
        StepStarted(at(11), down, remove, 1, gone),
        StepResolved(at(12), down, remove, 1, Outcome.accepted()),
        SignalSeen(
            at(12), down, ClusterChangeSignal.ORDER_TAKEN, f"the service accepted to delete {gone}"
        ),
        SignalSeen(at(14), down, ClusterChangeSignal.GONE, out),
    ]


def slurm_node(n: int, **change) -> SlurmNode:
    return SlurmNode(
        **{"name": f"ip-10-1-0-{n}", "state": "IDLE", "partitions": ("gpu",), **change}
    )


def slurm() -> SchedulerView:
    drained = frozenset({"DRAIN"})
    nodes = [
        slurm_node(1, state="ALLOCATED"),
        slurm_node(2),
        slurm_node(3, state="ALLOCATED"),
        slurm_node(
            4, state="DOWN", flags=drained, reason=format_hpctl_node_reason("n-44444444", "x")
        ),
        slurm_node(5, state="MIXED"),
        slurm_node(6, flags=drained, reason=format_hpctl_node_reason("n-66666666", "x")),
        slurm_node(7, flags=drained, reason="cable swap [dc3]"),
        slurm_node(10),
    ]
    job = SlurmJob(
        4242, "RUNNING", SUBMIT, 1, name="train", user="alice", partition="gpu",
        nodes=("ip-10-1-0-1", "ip-10-1-0-3"),
    )  # fmt: skip
    stuck = SlurmJob(
        4444, "RUNNING", SUBMIT, 0, name="notebook", user="dan", partition="gpu",
        nodes=("ip-10-1-0-5",), requeue=False,
    )  # fmt: skip
    return SchedulerView(NOW, {n.name: n for n in nodes}, {job.id: job, stuck.id: stuck})


def health() -> dict[str, NodeHealth]:
    lines = [NodeHealth(gen(n), at(88)) for n in (1, 3, 6, 7)]
    lines.append(NodeHealth(gen(2, boot="b", instance="i-0fresh00000000002"), at(89)))
    lines.append(NodeHealth(gen(4), at(61), (XID79,)))
    lines.append(NodeHealth(gen(5), at(88.5), (XID79,)))
    return {h.generation.node: h for h in lines}


def cloud() -> CloudProviderView:
    ids = {h.generation.node: h.generation.instance for h in health().values()}
    instances = [
        Instance(i, InstanceStatus.RUNNING, "worker-group-1", node, f"worker-group-1-{k}")
        for k, (node, i) in enumerate(sorted(ids.items()))
    ]
    return CloudProviderView(NOW, True, False, "InService", {i.id: i for i in instances})


DAEMON = DaemonLeaseInfo(
    "head-1", 4711, "0.1.0", "own", at(-600), at(89.5), at(119.5), 0.012, ""
)  # fmt: skip


def with_closed_by(state: EngineState, view: SchedulerView) -> SchedulerView:
    """Slurm, in which hpctl has closed those nodes alone that a recovery of the state is about."""
    nodes = dict(view.nodes)
    for name, node in view.nodes.items():
        owner = parse_recovery_id_from_reason(node.reason)
        if owner is not None and owner not in state:
            nodes[name] = replace(node, state="IDLE", flags=frozenset(), reason="")
    return replace(view, nodes=nodes)


def world(*events: list[Event], **change) -> World:
    """All of it; `change` takes World's fields away or alters them.

    A node that a recovery of other events has closed is in service.
    """
    facts, state = health(), replay_events([e for some in events for e in some])
    settings: dict[str, object] = {
        "now": NOW, "policy": RecoveryPolicy(mode=OperatingMode.OWN),
        "state": state, "cluster": "llm-prod",
        "health": facts,
        "assessments": {n: assess_health(h, RULES, NOW) for n, h in facts.items()},
        "daemon": DAEMON, "slurm": with_closed_by(state, slurm()), "cloud": cloud(), **change,
    }  # fmt: skip
    made = World(**settings)
    return (
        made
        if made.cloud is None
        else replace(made, joined=match_instances_to_nodes_once(made.cloud, made.slurm)[1])
    )

"""The nouns of hpctl: frozen values, no behaviour beyond reading themselves.

Every decision is made from these and printed from these. Times are aware datetimes in UTC.
UNKNOWN is a third thing everywhere: neither healthy nor faulty, never falsy-tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final, NewType

from msgspec import Struct, field

from hpctl.core import bounds
from hpctl.core.compat import StrEnum
from hpctl.core.walls import Flaw


class InstanceGroup(Struct, frozen=True):
    """One group of DescribeCluster's answer, in its words. `target` is what was last asked for."""

    name: str
    instance_type: str = ""
    current: int = 0
    target: int = 0
    status: str = ""


class Tres(Struct, frozen=True):
    """CPUs, memory in MiB, and generic resources by name (`gpu`). Zero: none, or not counted."""

    cpus: int = 0
    memory: int = 0
    gres: tuple[tuple[str, int], ...] = ()


NOTHING_KNOWN: Final = Tres()


class Demand(Struct, frozen=True):
    """What a pending job asks for; of an array, what each of its `tasks` that wait asks for.

    `nodes` at least, `each` on every one of them, `total` on all together. `whole`: no other job
    may be on its nodes. `features` is Slurm's expression. `named`: it wants certain nodes.
    """

    nodes: int = 1
    tasks: int = 1
    each: Tres = NOTHING_KNOWN
    total: Tres = NOTHING_KNOWN
    whole: bool = False
    features: str = ""
    named: bool = False


NodeName = NewType("NodeName", str)
InstanceId = NewType("InstanceId", str)
LogicalId = NewType("LogicalId", str)
BootId = NewType("BootId", str)
JobId = NewType("JobId", int)
RecoveryId = NewType("RecoveryId", str)
RuleId = NewType("RuleId", str)


class Verdict(StrEnum):
    """What one check says of one device."""

    OK = "ok"
    NOTE = "note"
    """Seen and counted, and nothing against the node: a program's own fault, an unknown line."""
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class Clears(StrEnum):
    """What ends a finding."""

    BOOT = "boot"
    """A restart of the instance: until then what was seen counts."""
    GONE = "gone"
    """The agent no longer reports it: it has not been so for the check's own time."""
    OPERATOR = "operator"
    """`hpctl return`, or another instance: a restart does not fix it."""


TEST: Final = "acceptance."
"""How the checks begin whose findings are the result of an acceptance test: `device` is the test's
id, `code` the remedy that it asks for, `evidence` its figures as JSON."""
TEST_SUMMARY: Final = "acceptance.run"
"""The finding that closes a test: all others of its id are there. `evidence` is the node's Card
(hpctl.core.cards) as JSON, empty where no GPU is known."""


class Generation(Struct, frozen=True):
    """The thing that can be sick: one boot of one instance under one node name."""

    node: NodeName
    instance: InstanceId
    boot: BootId


class Finding(Struct, frozen=True):
    """One check's result on one device of one node, folded over repeats.

    `check` is a dotted name (`kernel.xid`), `code` the check's own number or word (`79`),
    `detail` what the check decoded from the text (for Xid 154 the recovery-action phrase),
    `evidence` the raw line. `count` is how often it was seen between `first` and `last`.
    `job` is the Slurm job id that it hit, where the node can tell. Times out of bounds become the
    nearest bound, and what a terminal obeys becomes U+FFFD, wherever a finding comes from: a
    journal may already hold one of year 1.
    """

    check: str
    verdict: Verdict
    first: datetime
    last: datetime
    device: str = ""
    code: str = ""
    detail: str = ""
    evidence: str = ""
    count: int = 1
    clears: Clears = Clears.BOOT
    job: str = ""

    def __post_init__(self) -> None:
        bounds.keep(self, "first", "last")
        bounds.clean(self, "device", "code", "detail", "evidence")


class Report(Struct, frozen=True):
    """What an agent sends: facts about one generation, never a recommendation.

    `seq` grows by one a report within one agent run; `agent_start` tells the runs apart.
    `gauges` are numbers by name (`gpu.throttle_share`), at most 64, that no agent can judge
    alone: the head node compares them with the node's peers. A missing name is no zero.
    """

    node: NodeName
    instance: InstanceId
    boot: BootId
    seq: int
    sent_at: datetime
    agent_start: datetime
    findings: tuple[Finding, ...] = ()
    gauges: Mapping[str, float] = field(default_factory=dict)

    @property
    def generation(self) -> Generation:
        """The generation that the report speaks of."""
        return Generation(self.node, self.instance, self.boot)


class Health(Struct, frozen=True):
    """All that the head node knows from a node's agent: its latest generation, folded."""

    generation: Generation
    last_heard: datetime
    findings: tuple[Finding, ...] = ()


# --- what Slurm says --------------------------------------------------------------------------


class SlurmNode(Struct, frozen=True):
    """A node as slurmctld sees it: a base state and flags, in Slurm's capitals.

    `flags` holds what Slurm adds to the base state (`DRAIN`, `NOT_RESPONDING`, ...), however the
    release spells it. `last_busy`: when a job last held it, or when it came up where none has.
    `reason_at`: when the Reason was set, where Slurm tells it. `version`: its slurmd's, as
    `25.11.7`; empty where none has registered yet.
    """

    name: NodeName
    state: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    address: str = ""
    partitions: tuple[str, ...] = ()
    boot_time: datetime | None = None
    slurmd_start: datetime | None = None
    last_busy: datetime | None = None
    has: Tres = NOTHING_KNOWN
    features: tuple[str, ...] = ()
    reason_at: datetime | None = None
    version: str = ""

    @property
    def drained(self) -> bool:
        """Closed to new work by DRAIN, whether jobs still run there or not."""
        return "DRAIN" in self.flags

    @property
    def closed(self) -> bool:
        """Closed to new work by DRAIN or by FAIL, of which each clears the other."""
        return self.drained or "FAIL" in self.flags

    @property
    def in_service(self) -> bool:
        """Neither closed nor DOWN: slurmctld gives it work, once its slurmd answers."""
        return not self.closed and not self.down

    @property
    def down(self) -> bool:
        """Base state DOWN: its jobs are gone, and slurmctld gives it none."""
        return self.state == "DOWN"

    @property
    def responding(self) -> bool:
        """False once slurmctld marks the slurmd as not answering."""
        return "NOT_RESPONDING" not in self.flags


class Attempt(Struct, frozen=True):
    """One run of one job. Job ids are reused; with the submit time they are not."""

    job: JobId
    submit: datetime
    restarts: int


ENDED_BADLY = frozenset({"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"})
ENDED = ENDED_BADLY | frozenset({"COMPLETED", "CANCELLED", "TIMEOUT", "DEADLINE", "PREEMPTED"})


class SlurmJob(Struct, frozen=True):
    """A job as slurmctld holds it in memory, finished ones included until MinJobAge.

    `nodes` are those of the current or last run. `excluded` is the job's own ExcNodeList.
    `requeue` is Slurm's Requeue=1; `batch` is false for salloc and srun jobs, which cannot be.
    `wants`: how many nodes a pending job needs at least, all its array's waiting tasks together;
    `asks` says more, None where Slurm does not. `uid` is its owner's number.
    """

    id: JobId
    state: str
    submit: datetime
    restarts: int = 0
    flags: frozenset[str] = frozenset()
    name: str = ""
    user: str = ""
    partition: str = ""
    nodes: tuple[NodeName, ...] = ()
    excluded: tuple[NodeName, ...] = ()
    batch_host: NodeName | None = None
    batch: bool = True
    requeue: bool = True
    reason: str = ""
    exit_code: str = ""
    start: datetime | None = None
    end: datetime | None = None
    eligible: datetime | None = None
    comment: str = ""
    uid: int | None = None
    wants: int = 0
    asks: Demand | None = None

    @property
    def attempt(self) -> Attempt:
        """Which run this is."""
        return Attempt(self.id, self.submit, self.restarts)

    @property
    def completing(self) -> bool:
        """Still cleaning up: requeueing it now can crash slurmctld (facts/recovery 2.3)."""
        return "COMPLETING" in self.flags

    @property
    def running(self) -> bool:
        """Holding nodes with processes on them."""
        return self.state in ("RUNNING", "SUSPENDED", "CONFIGURING")

    @property
    def recoverable(self) -> bool:
        """Slurm would run it again if told to: a batch job with Requeue=1."""
        return self.batch and self.requeue


class SchedulerView(Struct, frozen=True):
    """All nodes and jobs that slurmctld knows, read at `as_of`. `flaws`: records that could not be
    read; what they are about is there, in a state that nobody knows. `booted`: when slurmctld
    started, where that was asked."""

    as_of: datetime
    nodes: Mapping[NodeName, SlurmNode] = field(default_factory=dict)
    jobs: Mapping[JobId, SlurmJob] = field(default_factory=dict)
    flaws: tuple[Flaw, ...] = ()
    booted: datetime | None = None


# --- what the cloud says ----------------------------------------------------------------------


class InstanceStatus(StrEnum):
    """DescribeClusterNode's InstanceStatus.Status, in SageMaker's own words."""

    RUNNING = "Running"
    FAILURE = "Failure"
    PENDING = "Pending"
    SHUTTING_DOWN = "ShuttingDown"
    SYSTEM_UPDATING = "SystemUpdating"
    DEEP_HEALTH_CHECK = "DeepHealthCheckInProgress"
    NOT_FOUND = "NotFound"


class Instance(Struct, frozen=True):
    """One cluster node as the provider lists it; `node`, until `join`, is a guess from its host."""

    id: InstanceId
    status: InstanceStatus
    group: str = ""
    node: NodeName | None = None
    logical_id: LogicalId | None = None
    protected: bool = False
    message: str = ""
    launched: datetime | None = None
    address: str = ""
    dns: str = ""


class ProviderView(Struct, frozen=True):
    """The provider's list of instances, read at `as_of`.

    `present` is false for a cluster without a provider (drain and requeue only).
    `automatic` is HyperPod's NodeRecovery=Automatic: the service replaces by itself.
    `continuous` is NodeProvisioningMode=Continuous: groups grow and shrink beside each other.
    `unpatched` names the orders that the cluster takes only after one software update.
    `flaws`: instances that could not be read, by their node.
    """

    as_of: datetime
    present: bool = False
    automatic: bool = False
    cluster_status: str = ""
    instances: Mapping[InstanceId, Instance] = field(default_factory=dict)
    continuous: bool = False
    groups: Mapping[str, InstanceGroup] = field(default_factory=dict)
    unpatched: tuple[str, ...] = ()
    flaws: tuple[Flaw, ...] = ()


# --- what we think of a node ------------------------------------------------------------------


class Remedy(StrEnum):
    """One rung of a fault class's ladder, gentlest first."""

    NONE = "none"
    RESTART_JOB = "restart_job"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    REPLACE = "replace"
    AWAIT = "await"
    ASK_HUMAN = "ask_human"


class Urgency(StrEnum):
    """What a fault means for the jobs on the node."""

    NONE = "none"
    """The node stays in service."""
    AFTER_JOBS = "after_jobs"
    """Close the node to new work; remedy it when its jobs have ended by themselves."""
    NOW = "now"
    """The jobs there are lost or at risk: stop them and start them elsewhere."""


class FaultClass(Struct, frozen=True):
    """A row of the catalogue: what a code means and what to do about it.

    `settle_s` is how long to wait for companion lines (Xid 154 above all) before believing the
    row alone. `escalate_window_s`: a recovery of the same instance by the same rule within this
    many seconds climbs one rung. `source` says where the row comes from.
    """

    rule: RuleId
    meaning: str
    urgency: Urgency
    ladder: tuple[Remedy, ...]
    settle_s: float = 0.0
    escalate_window_s: float = 7 * 86400.0
    source: str = ""


class Condition(StrEnum):
    """An assessment in one word."""

    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAULTY = "faulty"
    UNKNOWN = "unknown"


class Assessment(Struct, frozen=True):
    """What the facts about one generation amount to, and which rule says so.

    For SUSPECT, `until` is when it must be looked at again (settling), if there is such a time.
    `also`: the other rules that call it faulty besides `fault`, and since when.
    """

    generation: Generation
    condition: Condition
    since: datetime
    fault: FaultClass | None = None
    findings: tuple[Finding, ...] = ()
    why: str = ""
    until: datetime | None = None
    also: Mapping[RuleId, datetime] = field(default_factory=dict)


class OutcomeKind(StrEnum):
    """How one call on one target ended, classified once, at the boundary."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    AMBIGUOUS = "ambiguous"


class Outcome(Struct, frozen=True):
    """What a port answered for one target. ACCEPTED is not *done*: done is observed.

    `code` is the system's own word; `transient`: the same call may succeed later.
    """

    kind: OutcomeKind
    code: str = ""
    detail: str = ""
    transient: bool = False

    @classmethod
    def accepted(cls, detail: str = "") -> Outcome:
        """The system took the order."""
        return cls(OutcomeKind.ACCEPTED, detail=detail)

    @classmethod
    def rejected(cls, code: str, detail: str = "", *, transient: bool = False) -> Outcome:
        """The system certainly did not take the order."""
        return cls(OutcomeKind.REJECTED, code, detail, transient)

    @classmethod
    def ambiguous(cls, code: str, detail: str = "") -> Outcome:
        """Nobody can say whether the order was taken: observe before repeating."""
        return cls(OutcomeKind.AMBIGUOUS, code, detail)


NOT_LEADING = Outcome.rejected("unavailable", "this daemon leads no more", transient=True)
"""The answer to an order that was not sent, because another daemon may lead by now."""

OWN_REASON_PREFIX = "hpctl:"


def own_reason(recovery: RecoveryId, why: str) -> str:
    """The Slurm Reason that marks a node as ours: `hpctl:<recovery id> <short why>`."""
    return f"{OWN_REASON_PREFIX}{recovery} {why}".strip()


def reason_owner(reason: str) -> RecoveryId | None:
    """The recovery that a Reason names by its prefix, to which slurmctld appends; else None."""
    if not reason.startswith(OWN_REASON_PREFIX):
        return None
    return RecoveryId(reason[len(OWN_REASON_PREFIX) :].split(" ", 1)[0])

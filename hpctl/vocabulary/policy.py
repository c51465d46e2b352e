"""Every number that a decision depends on, with its unit in its name.

These are the defaults a careful person would choose; the configuration file overrides them (`hpctl
config example` prints all of them). Autoscaling and spares are off until a file names a group.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hpctl.toolkit.bounds import MAX_SECONDS
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.evidence import PLACE
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.trouble import STOP_EXIT_CODE

Seconds = Annotated[float, Meta(gt=0, le=MAX_SECONDS, title="seconds")]
SecondsOrNone = Annotated[float, Meta(ge=0, le=MAX_SECONDS, title="seconds")]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
"""What a file may say; a struct that is made in Python is not checked."""


NoticeKind = Literal[
    "escalated", "held", "breaker", "budget", "mass_event", "node_back", "job_resumed",
    "job_gave_up", "job_hung", "job_preempted", "spares_used_up", "standby_lost", "quarantined",
    "paused",
]  # fmt: skip
"""What users are notified of, as `notify.routes` names it."""


class InstanceGroupSizeLimits(Struct, frozen=True):
    """Between how many instances a group may be scaled.

    `partition` is the Slurm partition whose jobs it serves; empty: those of its living nodes.
    """

    min_count: Annotated[int, Meta(ge=0)]
    max_count: Annotated[int, Meta(ge=0, le=6758)]
    partition: str = ""

    def __post_init__(self) -> None:
        if self.min_count > self.max_count:
            raise ValueError(f"min_count {self.min_count} is over max_count {self.max_count}")


class AutoscalePolicy(Struct, frozen=True):
    """When a group grows or shrinks. A job's partition may be served by several groups: in order.

    `up_after_s`: how long jobs must have waited for nodes. `down_after_s`: how long a node must
    have been idle. `cooldown_s`: after a change has ended, how long the group does not turn
    round, nor is asked again after a refusal. `step`: the most instances in one change.
    `adds_per_day` and `hours_per_day` bound what is added in any 24 hours: instances, and
    instance-hours of what was added (None: no bound).
    """

    enabled: bool = False
    groups: Mapping[str, InstanceGroupSizeLimits] = field(default_factory=dict)
    up_after_s: SecondsOrNone = 120.0
    down_after_s: SecondsOrNone = 1800.0
    cooldown_s: SecondsOrNone = 600.0
    step: Annotated[int, Meta(ge=1, le=50)] = 8
    adds_per_day: Annotated[int, Meta(ge=0)] = 50
    hours_per_day: SecondsOrNone | None = None
    arrive_deadline_s: Seconds = 5400.0
    leave_deadline_s: Seconds = 3600.0


Level = Literal["off", "quick", "full"]


Floor = Annotated[float, Meta(ge=0, le=1e18)]


class AcceptanceTestPolicy(Struct, frozen=True):
    """After what a node is tested before it serves again, and how (docs/acceptance.md).

    `software_update`: after any boot that no recovery explains. `suspected`: of an idle node
    that the verdicts on two failed jobs name. `untested`: what becomes of a node
    whose test came to no result, or skipped everything. `command` runs on the node as a batch job
    of the daemon's user, with `--level LEVEL --id ID` behind it. `start_s`: how long that job may
    wait to start; `result_s`: how long after its end its result may take to be reported. `floors`:
    by card (`NVIDIA H200`) or EC2 instance type (`p5.48xlarge`, which goes first), what a figure
    must at least be, in place of `hpctl.nodes.acceptance.cards`; 0 is no floor.
    """

    replace: Level = "off"
    reboot: Level = "off"
    reset: Level = "off"
    add: Level = "off"
    returned: Level = "off"
    software_update: Level = "off"
    suspected: Level = "off"
    quick_s: Seconds = 180.0
    full_s: Seconds = 3600.0
    start_s: Seconds = 300.0
    result_s: Seconds = 60.0
    untested: Literal["escalate", "return"] = "escalate"
    command: Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f]+$")] = (
        "/opt/hpctl/bin/python -m hpctl.nodes.acceptance.run"
    )
    floors: Annotated[Mapping[str, Mapping[str, Floor]], Meta(max_length=256)] = field(
        default_factory=dict
    )

    @property
    def levels(self) -> tuple[Level, ...]:
        """Return the level after each event."""
        events = (self.replace, self.reboot, self.reset, self.add)
        return (*events, self.returned, self.software_update, self.suspected)

    def limit_s(self, level: str) -> float:
        """Return how many seconds the job of a level may run."""
        return self.full_s if level == "full" else self.quick_s


class EvidenceCollectionPolicy(Struct, frozen=True):
    """What is kept of a node before its GPUs are reset or its instance is rebooted or replaced
    (docs/evidence.md). Off while `directory` is empty.

    `directory`: the shared directory as the head node sees it, or `s3://BUCKET/PREFIX`; each agent
    has a separate setting.
    `deadline_s`: how long a remedy waits for the evidence, its turn included. `at_once`: how many
    nodes keep theirs at the same time. `keep_days` and `keep_gb`: what is older, or the oldest
    beyond so many gigabytes, is deleted.
    """

    directory: Annotated[str, Meta(pattern=PLACE)] = ""
    deadline_s: Seconds = 120.0
    at_once: Count = 8
    keep_days: Count = 90
    keep_gb: Annotated[float, Meta(gt=0, le=1e6)] = 50.0


class OperatingMode(StrEnum):
    """How far hpctl may go."""

    OBSERVE = "observe"
    """Decide and journal; touch nothing. The default."""
    ASSIST = "assist"
    """Drain, requeue, start; leave reboot and replacement to HyperPod's own recovery."""
    OWN = "own"
    """hpctl reboots and replaces. Refused while the cluster's NodeRecovery is Automatic."""


class UnrecoverableJobAction(StrEnum):
    """What happens to jobs on a faulty node that Slurm cannot run again."""

    WAIT = "wait"
    KILL = "kill"


class NodeRecoveryPolicy(Struct, frozen=True):
    """Deadlines of a node recovery's phases, and how its steps are repeated."""

    cordon_deadline_s: Seconds = 120.0
    disturb_after_s: SecondsOrNone = 0.06
    """From opening to the first effect that a job feels: time for a mass event to show."""
    vacate_deadline_s: Seconds = 900.0
    vacate_after_jobs_deadline_s: Seconds = 14 * 86400.0
    remedy_after_s: SecondsOrNone = 60.0
    """From opening to a reset, reboot or replacement, unless an operator asked: the jobs are
    elsewhere by then, and a broken check shows itself as many nodes within a minute."""
    reset_deadline_s: Seconds = 300.0
    reboot_deadline_s: Seconds = 1200.0
    replace_deadline_s: Seconds = 5400.0
    rejoin_deadline_s: Seconds = 1800.0
    verify_deadline_s: Seconds = 1800.0
    verify_healthy_s: SecondsOrNone = 30.0
    maintenance_lead_s: SecondsOrNone = 300.0
    """So long before a maintenance reservation begins its nodes are left alone already."""
    unrecoverable_jobs: UnrecoverableJobAction = UnrecoverableJobAction.WAIT
    step_retry_s: Seconds = 10.0
    step_attempts: Count = 5
    doubt_window_s: Seconds = 180.0
    protected: frozenset[NodeName] = frozenset()


class JobRecoveryPolicy(Struct, frozen=True):
    """Deadlines and budgets of a job recovery."""

    save_grace_s: SecondsOrNone = 60.0
    stop_deadline_s: Seconds = 900.0
    release_deadline_s: Seconds = 300.0
    start_deadline_s: Seconds = 86400.0
    prove_s: SecondsOrNone = 30.0
    prove_deadline_s: Seconds = 3600.0
    step_retry_s: Seconds = 2.0
    step_attempts: Count = 10
    max_restarts: Count = 10
    restart_window_s: Seconds = 86400.0
    final_exit_codes: tuple[int, ...] = (STOP_EXIT_CODE,)
    """A job that ends with one of these has asked not to be run again."""
    supervisor_grace_s: Seconds = 60.0
    """How long a job's supervisor may take to report that it continues without a lost node."""
    settle_s: SecondsOrNone = 3.0
    """How long after its end a run that ended without hpctl may start again: a node's fault that
    explains the end shows itself by then, and the node is closed."""
    ended_before_fault_s: SecondsOrNone = 60.0
    """A job that ended badly, or was requeued, this long before its node's fault was seen still
    counts as hit."""
    completing_shown_s: SecondsOrNone = 120.0
    """A job that is COMPLETING for so long is a problem: the nodes that keep it so are named."""
    completing_deadline_s: Seconds = 300.0
    """After so long such a node is drained and set DOWN, where a restart of the job waits."""


HangAction = Literal["notify", "dump", "requeue", "cancel"]


class JobHangPolicy(Struct, frozen=True):
    """What happens to a job that hangs and that no `hpctl run` wraps (docs/policies.md).

    `partitions`: the action in some partitions. A run hangs when it has stood still for `factor`
    times its own longest pause, at least `floor_s`, at most `cap_s`; `start_s` before its work was
    seen. `dump_s`: how long its stacks may take, which are dumped before it is stopped. After
    `shown_s` without work a run is shown as standing still, whatever is done about it.
    """

    action: HangAction = "notify"
    partitions: dict[str, HangAction] = field(default_factory=dict)
    floor_s: Annotated[float, Meta(ge=1, le=MAX_SECONDS, title="seconds")] = 120.0
    factor: Annotated[float, Meta(ge=1, le=100)] = 3.0
    cap_s: Seconds = 1800.0
    start_s: Seconds = 1800.0
    dump_s: Seconds = 90.0
    shown_s: Seconds = 60.0


class ConcurrentRecoveryBudgets(Struct, frozen=True):
    """How much may be in treatment at once. A fraction is of the nodes concerned.

    `drain_min` and `drain_fraction` bound how many nodes of the cluster, and of each partition, are
    closed at once; `open_min` to `launch_window_s` whether a remedy may begin.
    """

    drain_min: Count = 2
    drain_fraction: Fraction = 0.5
    open_min: Count = 2
    open_fraction: Fraction = 0.05
    partition_min: Count = 2
    partition_fraction: Fraction = 0.25
    per_hour: Count = 10
    offender_recoveries: Count = 3
    offender_window_s: Seconds = 30 * 86400.0
    correlated_min: Annotated[int, Meta(ge=2)] = 3
    correlated_fraction: Fraction = 0.10
    correlated_window_s: Seconds = 600.0
    launch_failures: Count = 2
    launch_window_s: Seconds = 86400.0
    approval_s: Seconds = 3600.0


class ObservationAgeLimits(Struct, frozen=True):
    """How old a fact may be and still be acted on."""

    scheduler_s: Seconds = 60.0
    provider_s: Seconds = 300.0
    report_s: Seconds = 120.0
    silent_s: Seconds = 20.0
    """An agent not heard for this long is silent; it reports every 10 s."""


class FaultClassOverride(Struct, frozen=True):
    """What a site changes in one row of the fault catalogue, or a row that it adds; None keeps
    what is shipped.

    Times in seconds. A row that the site adds needs `meaning`, `urgency` and `ladder`.
    """

    urgency: Urgency | None = None
    ladder: Annotated[tuple[Remedy, ...], Meta(min_length=1)] | None = None
    settle_s: SecondsOrNone | None = None
    escalate_window_s: Seconds | None = None
    meaning: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class BurnInPolicy(Struct, frozen=True):
    """Burn-in of idle nodes by `acceptance.command`, which gives way to any user's job; off while
    `every_s`, the time from one test of a node to its next, is 0 (docs/grey.md).

    `idle_s`: how long a node must have been idle. `retry_s`: how long one that was interrupted is
    left alone. `partition` and `qos`: where the job is submitted, such as one that Slurm preempts;
    by default a partition of the node's.
    """

    every_s: SecondsOrNone = 0.0
    level: Literal["quick", "full"] = "quick"
    at_once: Count = 1
    idle_s: SecondsOrNone = 300.0
    retry_s: Seconds = 1800.0
    partition: Annotated[str, Meta(pattern=r"^[\w.-]{0,64}$")] = ""
    qos: Annotated[str, Meta(pattern=r"^[\w.-]{0,64}$")] = ""


class RecoveryPolicy(Struct, frozen=True):
    """All of it. `partitions` empty means every partition."""

    mode: OperatingMode = OperatingMode.OBSERVE
    partitions: frozenset[str] = frozenset()
    node: NodeRecoveryPolicy = field(default_factory=NodeRecoveryPolicy)
    job: JobRecoveryPolicy = field(default_factory=JobRecoveryPolicy)
    budgets: ConcurrentRecoveryBudgets = field(default_factory=ConcurrentRecoveryBudgets)
    ages: ObservationAgeLimits = field(default_factory=ObservationAgeLimits)
    hangs: JobHangPolicy = field(default_factory=JobHangPolicy)
    autoscale: AutoscalePolicy = field(default_factory=AutoscalePolicy)
    idle: BurnInPolicy = field(default_factory=BurnInPolicy)
    acceptance: AcceptanceTestPolicy = field(default_factory=AcceptanceTestPolicy)
    evidence: EvidenceCollectionPolicy = field(default_factory=EvidenceCollectionPolicy)
    spares: Mapping[str, int] = field(default_factory=dict)
    """How many idle healthy nodes of an instance group are kept for jobs that lose one."""
    attended: bool = False
    """An operator waits for the recoveries, which a command carries out: `hpctl.nodes.by_hand`."""

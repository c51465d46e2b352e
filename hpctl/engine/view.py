"""The world as one value: what Slurm, the cloud and the agents say, and what we remember."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field

from hpctl.engine.journal.events import JobReported
from hpctl.engine.journal.state import EngineState
from hpctl.toolkit.bounds import clamp_duration
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.assessment import FaultClass, NodeAssessment, NodeCondition, Urgency
from hpctl.vocabulary.cloud_facts import CloudProviderView, Instance
from hpctl.vocabulary.hang import JobHang, StalledJobRun
from hpctl.vocabulary.identity import JobId, NodeGeneration, NodeName
from hpctl.vocabulary.isolation import ItemProcessingFailure
from hpctl.vocabulary.job_recovery import JobRecovery, RequestedAction
from hpctl.vocabulary.model import Finding, NodeHealth
from hpctl.vocabulary.node_recovery import NodeRecovery, is_await_only_remedy_ladder
from hpctl.vocabulary.preemption_order import PreemptionOrder
from hpctl.vocabulary.registration import EffectiveJobPolicy
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode, SlurmReservation


class Request(Struct, frozen=True):
    """What an operator asked for, as the CLI wrote it down.

    `proof`: how the daemon knows that it was `by` who asked; empty: it does not. `detail`: what
    else it says, as JSON; empty for most verbs.
    """

    id: int
    at: datetime
    verb: str
    target: str
    by: str
    proof: str = ""
    detail: str = ""


class RecoveryCandidate(Struct, frozen=True):
    """A generation to be treated: the facts call it faulty, or (`by`) an operator asks for it."""

    generation: NodeGeneration
    node: SlurmNode
    fault: FaultClass
    since: datetime
    why: str
    heard: datetime | None = None
    by: str = ""
    findings: tuple[Finding, ...] = ()
    """What speaks against it beside what it is assessed by."""
    group: str = ""
    """The instance group whose size changes; empty where none does."""

    @property
    def manual(self) -> bool:
        """Asked for by a person, who answers for budgets and coincidences."""
        return bool(self.by)


class SlurmReadScope(StrEnum):
    """How much of Slurm was read for a view."""

    WHOLE = "whole"
    PART = "part"
    NONE = "none"
    """slurmctld's log shows that what was read before still holds."""


class PlanningView(Struct, frozen=True):
    """Everything that `plan` may look at. Each part carries when it was read."""

    scheduler: SchedulerView
    provider: CloudProviderView
    health: Mapping[NodeName, NodeHealth]
    assessments: Mapping[NodeName, NodeAssessment]
    """Only of nodes that are not plainly healthy; see `assess`."""
    state: EngineState
    instances: Mapping[NodeName, Instance] = field(default_factory=dict)
    """The instance that stands for each node now, by `join`."""
    unjoined: Mapping[str, str] = field(default_factory=dict)
    """Why a node, or an instance id, is joined to nothing where that is not plain."""
    current: bool = True
    """Slurm can be read. Where not, nothing moves: unknown is never drained."""
    reading: SlurmReadScope = SlurmReadScope.WHOLE
    """What of it was read for this very view."""
    able_since: datetime | None = None
    """Since when hpctl can look at Slurm and may act; None: for longer than matters."""
    silent_at: datetime | None = None
    """When the next node is silent for too long unless it reports: the loop must run then."""
    withdrawn: Mapping[NodeName, str] = field(default_factory=dict)
    """The nodes for which an order by hand, or a removal, is taken back, and why."""
    stopped: str = ""
    """Why nothing may be done at all (the kill-switch file), beside an operator's pause."""
    ruled: Mapping[JobId, EffectiveJobPolicy] = field(default_factory=dict)
    """The run policy of each job that registered with hpctl."""
    reservations: Mapping[str, tuple[NodeName, ...]] = field(default_factory=dict)
    """The nodes of each reservation of Slurm's; read where spares are kept or nodes tested."""
    absent: Mapping[NodeName, datetime] = field(default_factory=dict)
    """Since when slurmctld does not list nodes that are treated: dynamic nodes can be deleted."""
    maintenance: Mapping[NodeName, SlurmReservation] = field(default_factory=dict)
    """The nodes that an admin's maintenance reservation holds, or is about to, and which."""
    begun: Mapping[NodeName, SlurmReservation] = field(default_factory=dict)
    """Those of them whose reservation has begun."""
    placed: bool = False
    """Whether `reservations` and `leaves` were read for this view."""
    hangs: Mapping[JobId, JobHang] = field(default_factory=dict)
    """The running jobs that stand still for longer than their past explains."""
    worked: Mapping[JobId, datetime] = field(default_factory=dict)
    """When this daemon last saw each running job at work."""
    still: Mapping[JobId, StalledJobRun] = field(default_factory=dict)
    """The running jobs of which nothing works, for a person to see."""
    preemption: PreemptionOrder = field(default_factory=PreemptionOrder)
    """What Slurm lets preempt what, as far as it is known."""
    requeue_codes: frozenset[int] = frozenset()
    """The codes of RequeueExit, after which Slurm itself requeues a job, as far as it is known."""
    leaves: Mapping[NodeName, str] = field(default_factory=dict)
    """The leaf switch or block of each node; read where spares are kept, empty without one."""
    flaws: Mapping[str, ItemProcessingFailure] = field(default_factory=dict)
    """By node or job id what could not be read or assessed: nothing is begun about it, nor gone on
    with."""

    def is_quarantined(self, name: object) -> bool:
        """Return whether a node or job is left as it is, because its facts are inconsistent."""
        return str(name) in self.flaws

    def instance(self, node: NodeName) -> Instance | None:
        """Return the instance that stands for a node now."""
        return self.instances.get(node)

    def instance_type(self, node: NodeName) -> str:
        """Return the type of the instance behind a node now; empty where it is unknown."""
        instance = self.instances.get(node)
        group = self.provider.groups.get(instance.group) if instance else None
        return group.instance_type if group else ""


def group_jobs_by_node(
    nodes: Sequence[NodeName], jobs: Mapping[JobId, SlurmJob]
) -> dict[NodeName, list[SlurmJob]]:
    """Return which jobs hold, or last held, each of a few nodes. One pass over the jobs."""
    wanted = set(nodes)
    found: dict[NodeName, list[SlurmJob]] = {node: [] for node in nodes}
    if wanted:
        for job in jobs.values():
            for node in wanted.intersection(job.nodes):
                found[node].append(job)
    return found


def is_timestamp_fresh(as_of: datetime, max_age_s: float, now: datetime) -> bool:
    """Return whether a fact is young enough to be acted on.

    One from the future is not: the clock was set back, and its age is unknown.
    """
    return abs(now - as_of) <= clamp_duration(max_age_s)


def is_provider_reclaiming_instance(node: NodeName, view: PlanningView) -> bool:
    """Return whether the provider is about to take a node's instance, for any reason."""
    held = view.assessments.get(node)
    faulty = held is not None and held.condition is NodeCondition.FAULTY
    return (
        faulty
        and held is not None
        and held.fault is not None
        and is_await_only_remedy_ladder(held.fault.ladder)
    )


def is_node_recovery_urgent(cause: NodeRecovery, view: PlanningView) -> bool:
    """Return whether the jobs on a node under treatment are lost or at risk, or are to leave it."""
    if cause.is_for_maintenance and cause.was_in_maintenance:
        return False  # What runs on when a window begins is the admin's to end.
    return cause.urgency is Urgency.NOW or is_provider_reclaiming_instance(cause.node, view)


def find_node_health_assessment(node: NodeName, view: PlanningView) -> NodeAssessment | None:
    """Return the assessment of a node; HEALTHY where it is heard and nothing is held against it."""
    held = view.assessments.get(node)
    health = view.health.get(node)
    if held is not None or health is None:
        return held
    return NodeAssessment(health.generation, NodeCondition.HEALTHY, health.last_heard)


def must_requeue_job_before_node_down(rec: JobRecovery, view: PlanningView) -> bool:
    """Return whether a job must be requeued before its bad node is set DOWN, to end its batch
    script.

    Set DOWN under a --no-kill job, a node is only taken away: 22.05 lets a batch script there run
    on, and a supervisor in it would start steps in the job's next run. A node whose slurmd does
    not answer ends nothing either way.
    """
    job = view.scheduler.jobs.get(rec.attempt.job)
    if not rec.supervised or job is None or not job.running or job.batch_host not in rec.bad_nodes:
        return False
    node = view.scheduler.nodes.get(job.batch_host)
    return node is not None and node.responding and not node.down


def has_lost_batch_script(job: SlurmJob, view: PlanningView) -> bool:
    """Return whether a job runs on without its batch script, because that script's node was lost.

    Slurm 25.11 leaves such a --no-kill job RUNNING (facts/recovery 2.5).
    """
    host = job.batch_host
    if host is None or job.state != "RUNNING" or not job.nodes:
        return False
    node = view.scheduler.nodes.get(host)
    return host not in job.nodes or (node is not None and node.down)


def find_last_supervisor_report_of_job_run(
    job: JobId, restarts: int, view: PlanningView
) -> JobReported | None:
    """Return the newest trouble or wish that was reported for this very run of a job."""
    for event in reversed(view.state.reports.get(job, ())):
        report = event.report
        if report.restarts == restarts and (
            report.trouble or report.wish is not RequestedAction.NONE
        ):
            return event
    return None

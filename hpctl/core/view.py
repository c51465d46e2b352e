"""The world as one value: what Slurm, the cloud and the agents say, and what we remember."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field

from hpctl.core import acceptance
from hpctl.core.acceptance import Measured, runs_of
from hpctl.core.bounds import EARLIEST, later, span
from hpctl.core.hangs import Hang
from hpctl.core.health import reset_answer
from hpctl.core.job_advance import CLOCK_MARGIN_S, JobFacts
from hpctl.core.job_recovery import JobPhase, JobRecovery, JobReport, Wish
from hpctl.core.journal import JobReported, State
from hpctl.core.marks import mark_of
from hpctl.core.model import (
    Assessment,
    Condition,
    Health,
    Instance,
    JobId,
    NodeName,
    OutcomeKind,
    ProviderView,
    SchedulerView,
    SlurmJob,
    Urgency,
    reason_owner,
)
from hpctl.core.node_actors import NodeFacts
from hpctl.core.node_recovery import IN_TEST, NodePhase, NodeRecovery, goes_anyway
from hpctl.core.policy import Policy, Unrecoverable
from hpctl.core.recovery import StepKind, last_step
from hpctl.core.run_policy import Ruled
from hpctl.core.walls import Flaw


class Request(Struct, frozen=True):
    """What an operator asked for, as the CLI wrote it down.

    `proof`: how the daemon knows that it was `by` who asked; empty: it does not.
    """

    id: int
    at: datetime
    verb: str
    target: str
    by: str
    proof: str = ""


class View(Struct, frozen=True):
    """Everything that `plan` may look at. Each part carries when it was read."""

    scheduler: SchedulerView
    provider: ProviderView
    health: Mapping[NodeName, Health]
    assessments: Mapping[NodeName, Assessment]
    """Only of nodes that are not plainly healthy; see `assess`."""
    state: State
    instances: Mapping[NodeName, Instance] = field(default_factory=dict)
    """The instance that stands for each node now, by `join`."""
    unjoined: Mapping[str, str] = field(default_factory=dict)
    """Why a node, or an instance id, is joined to nothing where that is not plain."""
    current: bool = True
    """Slurm was read for this very view. Where not, nothing moves: unknown is never drained."""
    able_since: datetime | None = None
    """Since when hpctl can look at Slurm and may act; None: for longer than matters."""
    silent_at: datetime | None = None
    """When the next node is silent for too long unless it is heard: somebody must look then."""
    stopped: str = ""
    """Why nothing may be done at all (the kill-switch file), beside an operator's pause."""
    ruled: Mapping[JobId, Ruled] = field(default_factory=dict)
    """The run policy of each job that registered with hpctl."""
    reservations: Mapping[str, tuple[NodeName, ...]] = field(default_factory=dict)
    """The nodes of each reservation of Slurm's; read where spares are kept or nodes tested."""
    hangs: Mapping[JobId, Hang] = field(default_factory=dict)
    """The running jobs that stand still for longer than their past explains."""
    worked: Mapping[JobId, datetime] = field(default_factory=dict)
    """When this daemon last saw each running job at work."""
    leaves: Mapping[NodeName, str] = field(default_factory=dict)
    """The leaf switch or block of each node; read where spares are kept, empty without one."""
    flaws: Mapping[str, Flaw] = field(default_factory=dict)
    """By node or job id what could not be read or assessed: nothing is begun about it, nor gone on
    with."""

    def aside(self, name: object) -> bool:
        """Whether a node or job is left alone, because its facts are flawed."""
        return str(name) in self.flaws

    def instance(self, node: NodeName) -> Instance | None:
        """The instance that stands for a node now."""
        return self.instances.get(node)

    def instance_type(self, node: NodeName) -> str:
        """The type of the instance that stands for a node now; empty where nobody tells."""
        instance = self.instances.get(node)
        group = self.provider.groups.get(instance.group) if instance else None
        return group.instance_type if group else ""

    def measured(self) -> list[Measured]:
        """What the nodes' newest acceptance tests measured, by recovery, oldest first."""
        tested = (rec for rec in self.state.nodes.values() if rec.tests)
        return [
            run
            for rec in tested
            for run in runs_of(self.instance_type(rec.node), rec.node, rec.tests)
        ]


def jobs_on(
    nodes: Sequence[NodeName], jobs: Mapping[JobId, SlurmJob]
) -> dict[NodeName, list[SlurmJob]]:
    """Which jobs hold, or last held, each of a few nodes. One pass over the jobs."""
    wanted = set(nodes)
    found: dict[NodeName, list[SlurmJob]] = {node: [] for node in nodes}
    if wanted:
        for job in jobs.values():
            for node in wanted.intersection(job.nodes):
                found[node].append(job)
    return found


def fresh(as_of: datetime, max_age_s: float, now: datetime) -> bool:
    """Whether a fact is young enough to be acted on.

    One from the future is not: the clock was set back, and nobody knows how old it is.
    """
    return abs(now - as_of) <= span(max_age_s)


RUNS_APART_SINCE = "25.11"
"""Since this release each run of a job has an id of its own (SLUID), by which a slurmd remembers
the credentials that it has revoked."""
SCHEDULES_ON_THE_SECOND_SINCE = "23.11"
"""Since this release slurmctld's background loop, which schedules, wakes as a second begins
(`_slurmctld_background`); before, a second after its last turn, whenever that was."""
PASS_S = 0.5
"""So long after a second began that turn has come."""

_MAY_BE_STOPPED = (
    JobPhase.EXCISING,
    JobPhase.WATCHING,
    JobPhase.STOPPING,
    JobPhase.RELEASED,
    JobPhase.STARTING,
    JobPhase.PROVING,
)
"""In these phases a job's own recovery is ready for its node to be set DOWN."""


def node_facts(
    rec: NodeRecovery, view: View, here: Sequence[SlurmJob], policy: Policy, now: datetime
) -> NodeFacts:
    """What is known now of the node that a recovery treats. `here`: the jobs on it."""
    health = view.health.get(rec.node)
    ready = _MAY_BE_STOPPED
    movable = set()
    for job in here:
        recovery = view.state.job_recovery(job.id)
        if recovery is not None and recovery.phase in ready and not _script_first(recovery, view):
            movable.add(int(job.id))
    return NodeFacts(
        slurm=view.scheduler.nodes.get(rec.node),
        instance=view.instance(rec.node),
        unjoined=view.unjoined.get(rec.node, ""),
        provider_present=view.provider.present,
        provider_fresh=fresh(view.provider.as_of, policy.ages.provider_s, now),
        assessment=judged(rec.node, view),
        heard=health.generation if health else None,
        running=tuple(j for j in here if j.running),
        completing=tuple(j for j in here if j.completing and not j.running),
        movable=frozenset(movable),
        taken_away=taken_away(rec.node, view),
        able_since=view.able_since,
        booted=view.scheduler.booted,
        reset=reset_answer(rec.id, health.findings) if health else None,
        held=rec.node in view.reservations.get(acceptance.name_of(rec), ()),
        test=_test(rec, view),
        results=acceptance.results_of(rec.test, health.findings if health else ()),
        left_in=_left_in(rec, view),
    )


def _left_in(rec: NodeRecovery, view: View) -> str:
    """The reservation in which an earlier recovery of the node has left it."""
    holding = {name for name, nodes in view.reservations.items() if rec.node in nodes}
    if not holding or rec.phase is not NodePhase.VERIFYING:
        return ""
    earlier = (r for r in view.state.nodes.values() if r.node == rec.node)
    return next((name for r in earlier if (name := acceptance.left(r)) in holding), "")


def _test(rec: NodeRecovery, view: View) -> SlurmJob | None:
    """The job of its newest test."""
    job = acceptance.job_of(rec) if rec.phase in IN_TEST else None
    return view.scheduler.jobs.get(job) if job is not None else None


def taken_away(node: NodeName, view: View) -> bool:
    """Whether the provider is about to take its instance, whatever it is treated for."""
    held = view.assessments.get(node)
    faulty = held is not None and held.condition is Condition.FAULTY
    return faulty and held is not None and held.fault is not None and goes_anyway(held.fault.ladder)


def urgent(cause: NodeRecovery, view: View) -> bool:
    """Whether the jobs on a node under treatment are lost or at risk."""
    return cause.urgency is Urgency.NOW or taken_away(cause.node, view)


def judged(node: NodeName, view: View) -> Assessment | None:
    """The assessment of a node; HEALTHY where it is heard and nothing is held against it."""
    held = view.assessments.get(node)
    health = view.health.get(node)
    if held is not None or health is None:
        return held
    return Assessment(health.generation, Condition.HEALTHY, health.last_heard)


def job_facts(rec: JobRecovery, view: View, policy: Policy) -> JobFacts:
    """What is known now of the job that a recovery treats."""
    cause = view.state.nodes.get(rec.cause)
    bad = [view.scheduler.nodes.get(n) for n in rec.bad_nodes]
    kept = any(n is not None and n.closed and (reason_owner(n.reason) or mark_of(n)) for n in bad)
    job = view.scheduler.jobs.get(rec.attempt.job)
    # Closed by anybody, it is safe to requeue; a job that runs is disturbed only where we, or
    # HyperPod's health agent, closed it.
    ours_to_stop = kept or job is None or not job.running
    cordoned = ours_to_stop and all(n is None or n.closed for n in bad)
    stops = cause is not None and not cause.ended and _node_will_go_down(cause, view, policy)
    stops = stops and not _script_first(rec, view)
    under_treatment = {n for n in rec.bad_nodes if n in view.state.open_nodes}
    return JobFacts(
        job=job,
        cordoned=cordoned or cause is None or cause.ended,
        node_stops_it=stops,
        called_off=cause is not None and cause.ended and not kept,
        exclude=tuple(sorted(under_treatment.union(rec.exclude))),
        forgive=_healed(rec, view, policy),
        gone=job is not None and not set(rec.bad_nodes).intersection(job.nodes),
        headless=job is not None and (job.batch_host in rec.bad_nodes or headless(job, view)),
        report=_report(rec, view),
        asks=_asks(rec, job, view),
        hardware=any(n in view.state.open_nodes for n in rec.ran_on),
        elastic=_elastic(rec, view),
        able_since=view.able_since,
        hangs=rec.attempt.job in view.hangs,
        works=view.worked.get(rec.attempt.job, EARLIEST) > rec.opened,
        ready=restart_at(rec, view) if rec.phase is JobPhase.RELEASED else EARLIEST,
        pass_s=PASS_S if _oldest_slurmd(view) >= SCHEDULES_ON_THE_SECOND_SINCE else CLOCK_MARGIN_S,
    )


def restart_at(rec: JobRecovery, view: View) -> datetime:
    """When slurmds take the credential of a released job's next run: see `hpctl.slurm.rules`.

    From 25.11 on at once. Before, once the second is over in which slurmctld told them to end its
    last run: that of the order which ended it, where hpctl gave it, else that in which the run
    was seen to have ended. A second order to end it, after KillWait, leaves that time as it was
    (cred_revoke in slurmd). The margin: slurmctld's clock is this host's, or NTP keeps it so.
    """
    if _oldest_slurmd(view) >= RUNS_APART_SINCE:
        return EARLIEST
    ended = min(max(_orders_that_ended(rec, view), default=rec.since), rec.since)
    return later(later(ended, CLOCK_MARGIN_S).replace(microsecond=0), 1)


def _oldest_slurmd(view: View) -> str:
    """Its release, "" where none is known. slurmctld is never older than a slurmd."""
    return min((n.version for n in view.scheduler.nodes.values() if n.version), default="")


def _orders_that_ended(rec: JobRecovery, view: View) -> Iterator[datetime]:
    """When slurmctld had answered the orders of which one ended the run, the last one counts.

    A run that may outlive its node has ended whenever its supervisor ended it.
    """
    if rec.supervised or rec.crippled:
        return
    cause = view.state.nodes.get(rec.cause)
    down = last_step(cause.steps, StepKind.DOWN) if cause else None
    for step in (down, last_step(rec.steps, StepKind.REQUEUE)):
        if step is None or step.outcome is None or step.resolved is None:
            continue
        if step.outcome.kind is OutcomeKind.ACCEPTED and step.started >= rec.opened:
            yield step.resolved


def _script_first(rec: JobRecovery, view: View) -> bool:
    """Whether a job must be requeued before its bad node is set DOWN, to end its batch script.

    Set DOWN under a --no-kill job, a node is only taken away: 22.05 lets a batch script there run
    on, and a supervisor in it would start steps in the job's next run. A node whose slurmd does
    not answer ends nothing either way.
    """
    job = view.scheduler.jobs.get(rec.attempt.job)
    if not rec.supervised or job is None or not job.running or job.batch_host not in rec.bad_nodes:
        return False
    node = view.scheduler.nodes.get(job.batch_host)
    return node is not None and node.responding and not node.down


def _elastic(rec: JobRecovery, view: View) -> bool:
    ruled = view.ruled.get(rec.attempt.job)
    return ruled is not None and ruled.policy.nodes is not None


def headless(job: SlurmJob, view: View) -> bool:
    """A job that runs on without its batch script, because that script's node was lost.

    Slurm 25.11 leaves such a --no-kill job RUNNING (facts/recovery 2.5).
    """
    host = job.batch_host
    if host is None or job.state != "RUNNING" or not job.nodes:
        return False
    node = view.scheduler.nodes.get(host)
    return host not in job.nodes or (node is not None and node.down)


def _report(rec: JobRecovery, view: View) -> JobReport | None:
    """The newest that the supervisor of this very run told since the recovery opened."""
    for event in reversed(view.state.reports.get(rec.attempt.job, ())):
        if event.at < rec.opened:
            return None
        if event.report.restarts == rec.attempt.restarts:
            return event.report
    return None


def last_report(job: JobId, restarts: int, view: View) -> JobReported | None:
    """The newest trouble or wish that was told of this very run of a job."""
    for event in reversed(view.state.reports.get(job, ())):
        report = event.report
        if report.restarts == restarts and (report.trouble or report.wish is not Wish.NONE):
            return event
    return None


def _asks(rec: JobRecovery, job: SlurmJob | None, view: View) -> str:
    """What the supervisor of the run that follows the treated one wishes; "": nothing."""
    if job is None or job.restarts <= rec.attempt.restarts:
        return ""
    event = last_report(job.id, job.restarts, view)
    if event is None or event.report.wish is Wish.NONE:
        return ""
    report = event.report
    why = report.trouble.why if report.trouble else report.why
    return f"its supervisor asks for a {report.wish}: {why}"


def _node_will_go_down(cause: NodeRecovery, view: View, policy: Policy) -> bool:
    """Whether the cause's node will be set DOWN: not while a job there cannot be requeued."""
    if not urgent(cause, view) or cause.phase not in (NodePhase.OPEN, NodePhase.CORDONED):
        return False
    node = view.scheduler.nodes.get(cause.node)
    if policy.node.unrecoverable_jobs is Unrecoverable.KILL or node is None:
        return True
    if node.down or not node.responding:
        return True
    here = jobs_on([cause.node], view.scheduler.jobs)[cause.node]
    return all(j.recoverable for j in here if j.running)


def _healed(rec: JobRecovery, view: View, policy: Policy) -> tuple[NodeName, ...]:
    """Nodes that we excluded for this job earlier and that are back in service.

    Without this a job that runs for weeks would end up excluding every node that was ever
    repaired under it, and never start again. A node that nobody treats, and that the job left
    because it went wrong there again and again, is kept out for as long as its budgets look back.
    slurmctld gives a node work only once its slurmd has answered a ping since RESUME, some 0.5 s
    later, and it starts no scheduling pass then: a job that is let back too soon waits for the
    next one, up to a minute.
    """
    mine = [r for r in view.state.jobs.values() if r.attempt.job == rec.attempt.job]
    left = {n for r in mine for n in (*r.bad_nodes, *r.exclude)}
    window, now = policy.job.restart_window_s, view.scheduler.as_of
    kept = {
        n
        for r in mine
        if now < later(r.opened, window)
        for n in r.exclude
        if not _another_since(n, r.opened, view)
    }
    return tuple(sorted(n for n in left - kept if _in_service(n, view)))


def _another_since(node: NodeName, at: datetime, view: View) -> bool:
    """Whether a node was treated to the end since, or has booted: nothing old runs there."""
    rid = view.state.last_of_node.get(node)
    treated = rid is not None and view.state.nodes[rid].ended
    slurm = view.scheduler.nodes.get(node)
    booted = slurm is not None and slurm.boot_time is not None and slurm.boot_time > at
    return booted or (treated and rid is not None and view.state.nodes[rid].opened > at)


def _in_service(node: NodeName, view: View) -> bool:
    slurm = view.scheduler.nodes.get(node)
    return node not in view.state.open_nodes and (slurm is None or slurm.responding)

"""What the view says of one job under treatment: the facts that its recovery advances on."""

from hpctl.engine.restart_time import CLOCK_MARGIN_S, find_earliest_job_restart_time
from hpctl.engine.view import (
    PlanningView,
    find_last_supervisor_report_of_job_run,
    group_jobs_by_node,
    has_lost_batch_script,
    is_node_recovery_urgent,
    must_requeue_job_before_node_down,
)
from hpctl.faults.hma_marks import find_hma_reason_mark
from hpctl.jobs.advance import JobRecoveryFacts
from hpctl.jobs.exclusions import (
    can_job_start_without_nodes,
    is_job_blocked_by_node_exclusions,
    is_node_in_service,
    list_nodes_excluded_by_policy,
    list_nodes_excluded_for_data_corruption,
)
from hpctl.toolkit.bounds import EARLIEST
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoveryPhase, JobReport, RequestedAction
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.policy import RecoveryPolicy, UnrecoverableJobAction
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.slurm_facts import SlurmJob

SCHEDULES_ON_THE_SECOND_SINCE = "23.11"
"""Since this release slurmctld's background loop, which schedules, wakes as a second begins
(`_slurmctld_background`); before, a second after its last turn, whenever that was."""


PASS_S = 0.5
"""Seconds after a second began at which that turn has come."""


def collect_job_recovery_facts(
    rec: JobRecovery, view: PlanningView, policy: RecoveryPolicy
) -> JobRecoveryFacts:
    """Return what is known now of the job that a recovery treats."""
    cause = view.state.nodes.get(rec.cause)
    bad = [view.scheduler.nodes.get(n) for n in rec.bad_nodes]
    kept = any(
        n is not None
        and n.closed
        and (parse_recovery_id_from_reason(n.reason) or find_hma_reason_mark(n))
        for n in bad
    )
    job = view.scheduler.jobs.get(rec.attempt.job)
    # Closed by any user or tool, it is safe to requeue; a job that runs is disturbed only where we,
    # or HyperPod's health agent, closed it. A maintenance reservation keeps jobs off its nodes as
    # well, and hpctl off closing them.
    reserved = any(name in view.maintenance for name in rec.bad_nodes)
    ours_to_stop = kept or reserved or job is None or not job.running
    cordoned = ours_to_stop and all(
        n is None or n.closed or n.name in view.maintenance for n in bad
    )
    stops = cause is not None and not cause.ended and _should_set_node_down(cause, view, policy)
    stops = stops and not must_requeue_job_before_node_down(rec, view)
    return JobRecoveryFacts(
        job=job,
        cordoned=cordoned or cause is None or cause.ended,
        node_stops_it=stops,
        called_off=cause is not None and cause.ended and not kept,
        remedied=cause is not None and cause.phase is NodeRecoveryPhase.RETURNED and cause.remedied,
        exclude=_list_nodes_to_exclude(rec, job, view),
        forgive=_list_node_exclusions_to_remove(rec, view, policy),
        gone=job is not None and not set(rec.bad_nodes).intersection(job.nodes),
        headless=job is not None
        and (job.batch_host in rec.bad_nodes or has_lost_batch_script(job, view)),
        report=_find_supervisor_report(rec, view),
        asks=_describe_supervisor_requested_action(rec, job, view),
        node_failed_since=_has_node_failed_since(rec, view),
        hardware=any(view.state.is_node_in_recovery(n) for n in rec.ran_on),
        elastic=_is_elastic_job(rec, view),
        able_since=view.able_since,
        hangs=rec.attempt.job in view.hangs,
        works=view.worked.get(rec.attempt.job, EARLIEST) > rec.opened,
        ready=find_earliest_job_restart_time(rec, view)
        if rec.phase is JobRecoveryPhase.RELEASED
        else EARLIEST,
        pass_s=PASS_S
        if view.scheduler.oldest_slurmd_version >= SCHEDULES_ON_THE_SECOND_SINCE
        else CLOCK_MARGIN_S,
    )


def _has_node_failed_since(rec: JobRecovery, view: PlanningView) -> bool:
    """Return whether another node came under treatment since the recovery's last move."""
    return any(
        node.opened >= rec.since
        for node in view.state.nodes.values()
        if node.id != rec.cause and not node.is_for_capacity_change
    )


def _is_elastic_job(rec: JobRecovery, view: PlanningView) -> bool:
    ruled = view.ruled.get(rec.attempt.job)
    return ruled is not None and ruled.policy.nodes is not None


def _find_supervisor_report(rec: JobRecovery, view: PlanningView) -> JobReport | None:
    """Return the newest report of this run's supervisor since the recovery opened."""
    for event in reversed(view.state.reports.get(rec.attempt.job, ())):
        if event.at < rec.opened:
            return None
        if event.report.restarts == rec.attempt.restarts:
            return event.report
    return None


def _describe_supervisor_requested_action(
    rec: JobRecovery, job: SlurmJob | None, view: PlanningView
) -> str:
    """Return what the supervisor of the run that follows the treated one wishes; "": nothing."""
    if job is None or job.restarts <= rec.attempt.restarts:
        return ""
    event = find_last_supervisor_report_of_job_run(job.id, job.restarts, view)
    if event is None or event.report.wish is RequestedAction.NONE:
        return ""
    report = event.report
    why = report.trouble.why if report.trouble else report.why
    return f"its supervisor asks for a {report.wish}: {why}"


def _should_set_node_down(cause: NodeRecovery, view: PlanningView, policy: RecoveryPolicy) -> bool:
    """Return whether the cause's node will be set DOWN: not while a job there cannot be
    requeued."""
    if not is_node_recovery_urgent(cause, view) or cause.phase not in (
        NodeRecoveryPhase.OPEN,
        NodeRecoveryPhase.CORDONED,
    ):
        return False
    if cause.is_for_maintenance or cause.node in view.maintenance:
        return False
    node = view.scheduler.nodes.get(cause.node)
    if policy.node.unrecoverable_jobs is UnrecoverableJobAction.KILL or node is None:
        return True
    if node.down or not node.responding:
        return True
    here = group_jobs_by_node([cause.node], view.scheduler.jobs)[cause.node]
    return all(j.recoverable for j in here if j.running)


def _list_nodes_to_exclude(
    rec: JobRecovery, job: SlurmJob | None, view: PlanningView
) -> tuple[NodeName, ...]:
    """Return its bad nodes that are under treatment, and those that its policy leaves out; none
    where the job could not start without them.

    A dynamic node under treatment is left to its drain: once it is deleted, slurmctld 23.02.3 and
    later refuses every change of a job whose ExcNodeList names it, that of its begin time too.
    """
    treated = {n for n in rec.bad_nodes if view.state.is_node_in_recovery(n)}
    under_treatment = {n for n in treated if not _is_dynamic_node(n, view)}
    exclude = under_treatment.union(rec.exclude)
    if job is None or is_job_blocked_by_node_exclusions(job):
        return ()
    if not can_job_start_without_nodes(
        job, exclude, _compute_minimum_node_count(rec, job, view), view
    ):
        return ()
    return tuple(sorted(exclude))


def _is_dynamic_node(node: NodeName, view: PlanningView) -> bool:
    slurm = view.scheduler.nodes.get(node)
    return slurm is not None and slurm.dynamic


def _compute_minimum_node_count(rec: JobRecovery, job: SlurmJob, view: PlanningView) -> int:
    """Return how many nodes it needs at least: more than it ran on where its owner had shrunk it,
    or where it had lost one with --no-kill.

    Until such a job starts, 22.05.8 shows as NumNodes how many it had last (seen live). After
    --no-kill the requested TRES has what it needs, once a scheduling pass has looked at the job.
    After `scontrol update NumNodes` nothing has: see `is_job_blocked_by_node_exclusions`.
    """
    ruled = view.ruled.get(rec.attempt.job)
    if ruled is not None and ruled.policy.nodes is not None:
        return ruled.policy.nodes[0]
    requested = job.asks.nodes if job.asks is not None else 0
    return max(rec.nodes or len(rec.ran_on), job.wants, requested)


def _list_node_exclusions_to_remove(
    rec: JobRecovery, view: PlanningView, policy: RecoveryPolicy
) -> tuple[NodeName, ...]:
    """Return the nodes that we excluded for this job earlier and that are back in service.

    Without this a job that runs for weeks would end up excluding every node that was ever repaired
    under it, and never start again. A node that is not under treatment, and that the job left
    because it went wrong there again and again, is kept out for as long as its budgets look back.
    slurmctld gives a node work only once its slurmd has answered a ping since RESUME, some 0.5 s
    later, and it starts no scheduling pass then: a job that is let back too soon waits for the next
    one, up to a minute.

    A job that cannot start without them is given all of them at once, except what may corrupt its
    data: the drain of a node under treatment keeps the job off.
    """
    job = view.scheduler.jobs.get(rec.attempt.job)
    ours = job.nodes_excluded_by_hpctl if job is not None else ()
    if job is not None and is_job_blocked_by_node_exclusions(job):
        return tuple(
            sorted(
                set(ours) - list_nodes_excluded_for_data_corruption(rec.attempt.job, view, policy)
            )
        )
    kept = list_nodes_excluded_by_policy(rec.attempt.job, view, policy)
    return tuple(sorted(n for n in ours if n not in kept and is_node_in_service(n, view)))

"""Which nodes hpctl keeps a job off, for how long, and which exclusions have outlived their cause.

Level-triggered: a pending job whose ExcNodeList names, by hpctl's own mark, a node that serves
again is given that node, independent of who wrote the mark and of what the journal still has. So a
daemon that starts repairs what one that was killed, or whose journal was lost, has left.
"""

from collections.abc import Collection
from datetime import datetime
from typing import Final

from hpctl.engine.journal.events import GateBlocked, JobRecoveryOpened
from hpctl.engine.view import PlanningView
from hpctl.jobs.run_gates import RUN_GATES, FailedRunDecision
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.identity import JobId, NodeName, RecoveryId, RuleId
from hpctl.vocabulary.isolation import ItemProcessingFailure, process_items_capturing_failures
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import make_recovery_id
from hpctl.vocabulary.run_policy import RunAction, RunActionDecision
from hpctl.vocabulary.slurm_facts import SlurmJob
from hpctl.vocabulary.trouble import TroubleKind

LIFT_AGAIN_S: Final = 600.0
"""Seconds before a job is looked at again whose exclusions slurmctld did not change."""
_LIFTED: Final = RuleId("run-lift")


def plan_node_exclusion_removals(
    view: PlanningView, policy: RecoveryPolicy, taken: Collection[JobId], now: datetime
) -> tuple[list[JobRecoveryOpened | GateBlocked], list[ItemProcessingFailure]]:
    """Return what opens for each pending job that hpctl keeps off a node for a cause that no longer
    holds. `taken`: the jobs that something is decided on already."""

    def decide_node_exclusion_removal(job: SlurmJob) -> JobRecoveryOpened | GateBlocked | None:
        if job.id in taken or job.id in view.state.open_jobs or view.is_quarantined(job.id):
            return None
        return _open_exclusion_removal_recovery(job, view, policy, now)

    waiting = [job for job in view.scheduler.jobs.values() if _can_remove_node_exclusion(job)]
    found, flaws = process_items_capturing_failures(
        "plan", waiting, lambda job: job.id, decide_node_exclusion_removal
    )
    return [decision for decision in found if decision is not None], flaws


def _can_remove_node_exclusion(job: SlurmJob) -> bool:
    return job.state == "PENDING" and bool(job.admin_comment) and not job.completing


def _open_exclusion_removal_recovery(
    job: SlurmJob, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> JobRecoveryOpened | GateBlocked | None:
    keep_out = (
        list_nodes_excluded_for_data_corruption
        if is_job_blocked_by_node_exclusions(job)
        else list_nodes_excluded_by_policy
    )
    kept = keep_out(job.id, view, policy)
    nodes = [
        n for n in job.nodes_excluded_by_hpctl if n not in kept and is_node_in_service(n, view)
    ]
    if not nodes or _has_recent_exclusion_removal(job.id, view, now):
        return None
    why = f"it waits without {','.join(sorted(nodes))}, in service and not under treatment"
    answer = RunActionDecision(RunAction.NOTIFY, why)
    for gate in RUN_GATES:
        shut = gate.gate(FailedRunDecision(job, answer), view, policy, now)
        if shut is not None:
            text = f"{why}; {shut}"
            return GateBlocked(now, str(job.id), gate.name, text, _LIFTED, known_as=job.shown)
    opened = len(view.state.jobs)
    return JobRecoveryOpened(
        at=now,
        recovery=make_recovery_id("j", job.id, job.attempt, "lift", opened, known=view.state),
        attempt=job.attempt,
        cause=RecoveryId(""),
        bad_nodes=(),
        why=why,
        name=job.name,
        user=job.user,
        partition=job.partition,
        nodes=job.wants,
        lift=tuple(sorted(nodes)),
        known_as=job.shown,
    )


def _has_recent_exclusion_removal(job: JobId, view: PlanningView, now: datetime) -> bool:
    return any(
        rec.lift
        and rec.attempt.job == job
        and now < add_seconds_within_bounds(rec.since, LIFT_AGAIN_S)
        for rec in view.state.jobs.values()
    )


def list_nodes_excluded_by_policy(
    job: JobId, view: PlanningView, policy: RecoveryPolicy
) -> set[NodeName]:
    """Return the nodes that a job's run policy keeps it off although they are not under treatment.

    For as long as its budgets look back; not those that were treated, or have booted, since.
    """
    return _list_node_exclusions_by_failure_kind(job, view, policy)


def _list_node_exclusions_by_failure_kind(
    job: JobId, view: PlanningView, policy: RecoveryPolicy, kind: TroubleKind | None = None
) -> set[NodeName]:
    window, now = policy.job.restart_window_s, view.scheduler.valid_at
    mine = [r for r in view.state.jobs.values() if r.attempt.job == job]
    kept: set[NodeName] = set()
    for rec in mine:
        wanted = kind is None or (rec.trouble is not None and rec.trouble.kind is kind)
        if wanted and now < add_seconds_within_bounds(rec.opened, window):
            kept.update(
                n for n in rec.exclude if not _has_node_recovered_since(n, rec.opened, view)
            )
    return kept


def is_node_in_service(node: NodeName, view: PlanningView) -> bool:
    """Return whether a node is in service, its slurmd answers, and nothing treats it."""
    slurm = view.scheduler.nodes.get(node)
    if slurm is None or node in view.state.open_nodes:
        return False
    return slurm.in_service and slurm.responding


def is_job_blocked_by_node_exclusions(job: SlurmJob) -> bool:
    """Return whether Slurm holds a job that it could not start, and hpctl excluded nodes of it.

    A job that never starts is worse off than one that meets a doubtful node again.
    `can_job_start_without_nodes` cannot prevent this for a job of 22.05 that was shrunk by
    `scontrol update NumNodes`: it is requeued as large as it was submitted, and no field shows that
    before it starts.
    """
    return job.is_held_as_unable_to_start and bool(job.nodes_excluded_by_hpctl)


def list_nodes_excluded_for_data_corruption(
    job: JobId, view: PlanningView, policy: RecoveryPolicy
) -> set[NodeName]:
    """Return the nodes that a job's run policy keeps it off because they may corrupt its data: to
    wait for a person is better than to meet one again."""
    return _list_node_exclusions_by_failure_kind(job, view, policy, TroubleKind.CORRUPTION)


def list_nodes_usable_by_job(job: SlurmJob, view: PlanningView) -> frozenset[NodeName]:
    """Return the nodes of its partitions that Slurm gives away now, to this job or another."""
    wanted = set(job.partition.split(","))
    return frozenset(
        node.name
        for node in view.scheduler.nodes.values()
        if wanted.intersection(node.partitions) and node.in_service
    )


def can_job_start_without_nodes(
    job: SlurmJob, exclude: Collection[NodeName], size: int, view: PlanningView
) -> bool:
    """Return whether a job of so many nodes could start without these, as far as Slurm reports what
    it asks for.

    Where it could not, slurmctld would give it Reason BadConstraints and priority 0, and only a
    change of its ExcNodeList would take those back. A node under treatment is drained anyway.
    """
    fit = list_nodes_usable_by_job(job, view).difference(exclude, job.excluded)
    if job.asks is not None:
        if job.asks.named:
            return False
        wanted = set(job.asks.features.replace("&", " ").split())
        fit = frozenset(n for n in fit if wanted.issubset(view.scheduler.nodes[n].features))
    return len(fit) >= max(size, 1)


def _has_node_recovered_since(node: NodeName, at: datetime, view: PlanningView) -> bool:
    """Return whether a node was treated to the end since, or has booted: nothing old runs there."""
    rid = view.state.last_of_node.get(node)
    treated = rid is not None and view.state.nodes[rid].ended
    slurm = view.scheduler.nodes.get(node)
    booted = slurm is not None and slurm.boot_time is not None and slurm.boot_time > at
    return booted or (treated and rid is not None and view.state.nodes[rid].opened > at)

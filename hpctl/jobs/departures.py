"""Which jobs had left a node before its fault: they wait, but the fault did not hit them."""

from datetime import datetime
from typing import Final

from hpctl.engine.plan import NODE_LOST
from hpctl.engine.preemption import RELEASED
from hpctl.engine.view import PlanningView
from hpctl.faults.reachability import CHECKS
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.node_recovery import NodeRecovery
from hpctl.vocabulary.slurm_facts import SlurmJob

_REGISTERS_S: Final = 120.0
"""Seconds before a requeue in which its node may have booted and registered, which caused it."""


def has_recorded_preemption(job: SlurmJob, view: PlanningView) -> bool:
    """Return whether the last run of a job that waits is known to have been preempted."""
    return any(
        rec.note and rec.attempt.job == job.id and rec.attempt.submit == job.submit
        for rec in view.state.jobs.values()
    )


def has_job_left_node_before_fault(
    job: SlurmJob, cause: NodeRecovery, view: PlanningView, slack_s: float
) -> bool:
    """Return whether a job that waits had left a node before its fault: it was preempted, or a
    person requeued it, and another job started there between, or the fault came much later.

    `slack_s`: seconds that a fault may come after what it does to a job, as for a job that ended.
    A script that requeues its own job after a GPU error may do so before hpctl finds the fault.
    """
    fault = find_node_fault_start_time(cause)
    if has_recorded_preemption(job, view):
        return True
    if fault < add_seconds_within_bounds(job.submit, 1):
        return False
    late = fault > add_seconds_within_bounds(job.submit, slack_s)
    if late and not job.has_launch_failed and not _can_job_have_lost_node(job, cause, view):
        return True
    since = add_seconds_within_bounds(job.submit, -RELEASED.total_seconds())
    return any(
        _has_other_job_started_between(other, since, fault)
        for other in view.scheduler.jobs.values()
        if other.id != job.id and cause.node in other.nodes
    )


def find_node_fault_start_time(cause: NodeRecovery) -> datetime:
    """Return when the fault of a node was first seen."""
    return min((finding.first for finding in cause.findings), default=cause.opened)


def _can_job_have_lost_node(job: SlurmJob, cause: NodeRecovery, view: PlanningView) -> bool:
    """Return whether Slurm may have taken the job off the node itself, which it does long before
    hpctl calls a dead node lost, and where a node has booted under a job."""
    lost = cause.rule == NODE_LOST or any(finding.check in CHECKS for finding in cause.findings)
    if lost:
        return True
    node = view.scheduler.nodes.get(cause.node)
    silent = node is not None and (node.down or not node.responding)
    # After hpctl's own reboot or replacement, a node that is down says nothing of the job's end.
    if silent and not cause.remedied:
        return True
    if node is None or node.slurmd_start is None:
        return False
    if job.ran_from is not None and node.slurmd_start <= job.ran_from:
        return False
    return (
        add_seconds_within_bounds(job.submit, -_REGISTERS_S)
        <= node.slurmd_start
        <= find_node_fault_start_time(cause)
    )


def _has_other_job_started_between(job: SlurmJob, since: datetime, until: datetime) -> bool:
    """Return whether the last run of a job began in a span of time, also where it was requeued
    since."""
    start = job.ran_from or job.start
    return start is not None and since <= start <= until

"""Which jobs had left a node before its fault: they wait, but the fault did not hit them."""

from datetime import datetime

from hpctl.engine.preemption import RELEASED
from hpctl.engine.view import View
from hpctl.toolkit.bounds import add_seconds
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.slurm_facts import SlurmJob


def is_noted_as_preempted(job: SlurmJob, view: View) -> bool:
    """Return whether the last run of a job that waits is known to have been preempted."""
    return any(
        rec.note and rec.attempt.job == job.id and rec.attempt.submit == job.submit
        for rec in view.state.jobs.values()
    )


def had_left(job: SlurmJob, node: NodeName, fault: datetime, view: View) -> bool:
    """Return whether a job that waits had left a node before its fault: it was preempted, or an
    operator requeued it, and another job started there between.

    The time of the requeue, in whole seconds, is not enough to decide: what slurmctld sees of a
    dead node may come long before what hpctl finds.
    """
    if is_noted_as_preempted(job, view):
        return True
    if fault < add_seconds(job.submit, 1):
        return False
    since = add_seconds(job.submit, -RELEASED.total_seconds())
    return any(
        _began_between(other, since, fault)
        for other in view.scheduler.jobs.values()
        if other.id != job.id and node in other.nodes
    )


def _began_between(job: SlurmJob, since: datetime, until: datetime) -> bool:
    """Return whether the last run of a job began in a span of time, also where it was requeued
    since."""
    start = job.ran_from or job.start
    return start is not None and since <= start <= until

"""Which runs a fault hit on a node that an admin keeps in a maintenance reservation.

hpctl opens no recovery for such a node, so the run itself is requeued, away from it.
"""

from datetime import datetime
from typing import Final

from hpctl.engine.view import PlanningView
from hpctl.jobs.restart import choose_restart_method
from hpctl.jobs.run_cases import FailedJobRun
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition, Urgency
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.registration import JobRegistration, parse_registration_comment
from hpctl.vocabulary.slurm_facts import ENDED_BADLY, SlurmJob
from hpctl.vocabulary.trouble import Trouble, TroubleKind

MAINTENANCE_SIGNATURE: Final = "faulty in maintenance"


def find_run_failed_during_maintenance(
    job: SlurmJob, view: PlanningView, policy: RecoveryPolicy
) -> FailedJobRun | None:
    """Return the case of a run whose node has a fault and is held by a maintenance reservation.

    None for a run that began within the reservation, which is the admin's own, and for one that its
    own supervisor can restart.
    """
    if not view.maintenance:
        return None
    registered = parse_registration_comment(job.comment) or JobRegistration()
    if job.running and choose_restart_method(registered).has_supervisor:
        return None
    for node in job.nodes:
        held_by, judged = view.maintenance.get(node), view.assessments.get(node)
        if held_by is None or judged is None or node in view.state.open_nodes:
            continue
        if job.start is None or (held_by.start is not None and job.start > held_by.start):
            continue
        if not _is_urgent_node_fault(judged) or not _has_node_fault_affected_job(
            job, judged.since, policy
        ):
            continue
        why = f"its node {node}, which is in maintenance: {judged.why}"
        trouble = Trouble(TroubleKind.NODE, judged.since, why, MAINTENANCE_SIGNATURE, node=node)
        return FailedJobRun(job.attempt, trouble)
    return None


def _is_urgent_node_fault(judged: NodeAssessment) -> bool:
    faulty = judged.condition is NodeCondition.FAULTY and judged.fault is not None
    return faulty and judged.fault is not None and judged.fault.urgency is Urgency.NOW


def _has_node_fault_affected_job(job: SlurmJob, since: datetime, policy: RecoveryPolicy) -> bool:
    if job.running:
        return True
    if job.state not in ENDED_BADLY:
        return False
    return (
        job.end is None
        or add_seconds_within_bounds(job.end, policy.job.ended_before_fault_s) >= since
    )

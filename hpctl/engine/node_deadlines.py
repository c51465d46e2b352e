"""How long each phase of a node's recovery may last."""

from datetime import datetime

from hpctl.engine import test_reservation
from hpctl.engine.node_history import may_have_begun_remedy
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.policy import RecoveryPolicy, UnrecoverableJobAction
from hpctl.vocabulary.recovery import StepKind


def find_node_recovery_phase_deadline(rec: NodeRecovery, policy: RecoveryPolicy) -> datetime:
    """Return when the phase of a recovery has lasted too long."""
    return add_seconds_within_bounds(rec.since, find_node_phase_timeout_s(rec, policy))


def find_blocked_remedy_phase_deadline(rec: NodeRecovery, policy: RecoveryPolicy) -> datetime:
    """Return when a phase whose remedy a gate blocks has lasted too long.

    The wait for a slot is bounded like the wait for jobs: both end by what others do.
    """
    longest = max(policy.node.vacate_after_jobs_deadline_s, find_node_phase_timeout_s(rec, policy))
    return add_seconds_within_bounds(rec.since, longest)


def find_node_phase_timeout_s(rec: NodeRecovery, policy: RecoveryPolicy) -> float:
    """Return how many seconds the phase that a recovery is in may last."""
    node = policy.node
    after_jobs = rec.urgency is Urgency.AFTER_JOBS
    waits_for_jobs = after_jobs or node.unrecoverable_jobs is UnrecoverableJobAction.WAIT
    kinds = {step.kind for step in rec.steps}
    remedying = node.replace_deadline_s
    vacated = node.replace_deadline_s
    if rec.remedy is Remedy.DELETE and rec.is_for_capacity_change:
        remedying = vacated = policy.autoscale.leave_deadline_s
        if not may_have_begun_remedy(rec):
            # Until then it waits to be deleted; after that it is given back.
            vacated += node.cordon_deadline_s
    elif rec.remedy is Remedy.RESET_GPU and StepKind.RESET in kinds:
        remedying = node.reset_deadline_s
    elif rec.remedy is not Remedy.REPLACE and StepKind.REBOOT in kinds:
        remedying = node.reboot_deadline_s
    return {
        NodeRecoveryPhase.OPEN: node.cordon_deadline_s,
        NodeRecoveryPhase.CORDONED: node.vacate_after_jobs_deadline_s
        if waits_for_jobs
        else node.vacate_deadline_s,
        NodeRecoveryPhase.VACATED: vacated,
        NodeRecoveryPhase.REMEDYING: remedying,
        NodeRecoveryPhase.REJOINING: node.rejoin_deadline_s,
        NodeRecoveryPhase.VERIFYING: node.verify_deadline_s,
        NodeRecoveryPhase.ACCEPTING: _find_node_test_timeout_s(rec, policy),
        NodeRecoveryPhase.UNRESERVING: node.vacate_deadline_s,
    }[rec.phase]


def _find_node_test_timeout_s(rec: NodeRecovery, policy: RecoveryPolicy) -> float:
    """Return the time that the job may wait and run, plus some minutes for what is around it."""
    test = policy.acceptance
    run_s = test.limit_s(test_reservation.choose_acceptance_test_level(rec, policy))
    return test.start_s + run_s + test.result_s + policy.node.doubt_window_s

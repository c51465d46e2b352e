"""The reservation and the job of a node's test, by their names."""

from typing import Final

from hpctl.toolkit.bounds import parse_count
from hpctl.vocabulary.assessment import FaultClass, Remedy, Urgency
from hpctl.vocabulary.identity import JobId, RuleId
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import StepKind, find_last_step_attempt

PREFIX: Final = "hpctl-accept-"
"""How the names of the reservation and of the job of a test begin."""


ORDER: Final = "operator-accept-"
"""The rule of an operator's order to test a node; the level ends it."""


TEST_LADDER: Final = (Remedy.NONE, Remedy.ASK_HUMAN)


ADDED: Final = FaultClass(
    RuleId("instance-added"),
    "a new instance serves only after a test",
    Urgency.AFTER_JOBS,
    TEST_LADDER,
    source="acceptance.add",
)


UPDATED: Final = FaultClass(
    RuleId("node-rebooted"),
    "a node that was rebooted or updated without hpctl serves only after a test",
    Urgency.AFTER_JOBS,
    TEST_LADDER,
    source="acceptance.software_update",
)


SUSPECTED: Final = FaultClass(
    RuleId("node-suspected"),
    "several jobs failed on the node, and no finding explains it",
    Urgency.AFTER_JOBS,
    TEST_LADDER,
    source="acceptance.suspected",
)


def format_acceptance_test_name(rec: NodeRecovery) -> str:
    """Return the name of the reservation and of the job of its newest test."""
    return PREFIX + rec.test


def find_acceptance_test_job_id(rec: NodeRecovery) -> JobId | None:
    """Return the id of the job of its newest test, once slurmctld has answered with it."""
    step = find_last_step_attempt(rec.steps, StepKind.TEST)
    if (
        step is None
        or step.target != format_acceptance_test_name(rec)
        or not step.accepted
        or step.outcome is None
    ):
        return None
    return JobId(parse_count(step.outcome.detail))


def find_leftover_test_reservation(rec: NodeRecovery) -> str:
    """Return the reservation that an ended recovery may have left behind; "" where none."""
    before = [move.phase for move in rec.trail[-2:-1]]
    stuck = rec.phase is NodeRecoveryPhase.ESCALATED and before == [NodeRecoveryPhase.UNRESERVING]
    return format_acceptance_test_name(rec) if stuck else ""


def is_acceptance_test_job(rec: NodeRecovery, job_name: str) -> bool:
    """Return whether a job on the node of a recovery is a test of hpctl's."""
    return job_name.startswith(f"{PREFIX}{rec.id}-")


def _has_rebooted_or_replaced_node(rec: NodeRecovery) -> bool:
    """Return whether the node has booted, or is another instance, since its recovery opened."""
    return rec.generation != rec.opened_for


def choose_acceptance_test_level(rec: NodeRecovery, policy: RecoveryPolicy) -> str:
    """Return which tests the node is to pass after what was done to it; empty: none."""
    wanted = policy.acceptance
    if rec.rule.startswith(ORDER):
        return rec.rule.removeprefix(ORDER)
    by_rule = {
        ADDED.rule: wanted.add,
        UPDATED.rule: wanted.software_update,
        SUSPECTED.rule: wanted.suspected,
    }
    if rec.rule in by_rule:
        level = by_rule[rec.rule]
    elif rec.rule == "operator-return" or (
        rec.is_for_maintenance and not _has_rebooted_or_replaced_node(rec)
    ):
        level = wanted.returned
    elif rec.generation.instance != rec.opened_for.instance:
        level = wanted.replace
    elif rec.generation.boot != rec.opened_for.boot:
        level = wanted.reboot
    else:
        level = wanted.reset if any(s.kind is StepKind.RESET for s in rec.steps) else "off"
    if level == "off" and rec.is_for_maintenance:
        level = wanted.returned
    return "" if level == "off" else level

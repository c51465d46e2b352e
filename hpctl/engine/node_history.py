"""What a node's recovery has done so far, read from its steps."""

from datetime import timedelta
from typing import Final

from hpctl.faults.hma_marks import CHECK, MARKS
from hpctl.vocabulary.assessment import NodeAssessment, Remedy
from hpctl.vocabulary.node_recovery import (
    IN_TEST,
    NodeRecovery,
    NodeRecoveryPhase,
    NodeRecoverySignal,
)
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.recovery import RecoveryStepRecord, StepKind, find_last_step_attempt
from hpctl.vocabulary.slurm_facts import SlurmNode


def suggest_hyperpod_remedy_command(rec: NodeRecovery, policy: RecoveryPolicy) -> str:
    """Return how to ask the service for what is left to it, where no user has; "" elsewhere.

    Slurm keeps one Reason: a mark that landed in the milliseconds between our look and our drain
    leaves no trace in the node's record.
    """
    if (
        policy.mode is not OperatingMode.ASSIST
        or has_health_agent_mark(rec)
        or rec.remedy not in MARKS.values()
    ):
        return ""
    order = f"scontrol update NodeName={rec.node} State=FAIL Reason=Action:{rec.remedy.title()}"
    return f"HyperPod's health agent has not marked the node; `{order}` asks for the same"


def has_health_agent_mark(rec: NodeRecovery) -> bool:
    """Return whether a mark was seen on the node since the recovery opened, or opened it."""
    return rec.marked_at >= 0 or any(f.check == CHECK for f in rec.findings)


UNSAVED: Final = timedelta(seconds=120)
"""slurmctld saves a drain within 5 s: one that is older than this was not lost with it, however
long its start took."""


RESTORED: Final = timedelta(seconds=60)
"""So long after slurmctld's start a node without its drain was restored so, and not resumed."""


def has_node_unexpectedly_left_drain(rec: NodeRecovery, node: SlurmNode | None) -> bool:
    """Return whether a node that we closed, and have not begun to give back, is in service, or is
    DOWN by us without our drain: slurmctld was killed between the two orders."""
    closed = (
        rec.phase is not NodeRecoveryPhase.OPEN
        and rec.phase not in IN_TEST
        and not is_node_being_returned(rec)
    )
    if not closed or node is None:
        return False
    down_by_us = (
        node.down and not node.closed and parse_recovery_id_from_reason(node.reason) == rec.id
    )
    return node.in_service or down_by_us


def has_evidence_newer_than_recovery(judged: NodeAssessment, rec: NodeRecovery) -> bool:
    """Return whether an assessment rests on anything newer than the recovery's own opening.

    A node returned by hand on the same boot still carries the findings it was drained for.
    """
    if judged.generation != rec.opened_for or rec.remedied:
        return True
    return any(f.last > rec.opened for f in judged.findings)


def is_node_being_returned(rec: NodeRecovery) -> bool:
    """Return whether we have begun to give the node back, and have not closed it again since."""
    return find_last_step_attempt(list_steps_since_drain(rec), StepKind.RETURN) is not None


def has_passed_latest_node_test(rec: NodeRecovery, policy: RecoveryPolicy) -> bool:
    """Return whether the newest test ended with a node that may serve again."""
    verdict, _ = rec.newest_test_result
    untested = verdict is NodeRecoverySignal.UNTESTED and policy.acceptance.untested == "return"
    return verdict is NodeRecoverySignal.TEST_PASSED or untested


def list_steps_since_drain(rec: NodeRecovery) -> tuple[RecoveryStepRecord, ...]:
    """Return the steps since we last closed the node."""
    kinds = [step.kind for step in rec.steps]
    last = len(kinds) - kinds[::-1].index(StepKind.DRAIN) if StepKind.DRAIN in kinds else 0
    return rec.steps[last:]


ORDERS: Final = {
    Remedy.REPLACE: StepKind.REPLACE,
    Remedy.REBOOT: StepKind.REBOOT,
    Remedy.DELETE: StepKind.REMOVE,
}
"""The remedies that are orders to the cloud, and their steps."""


def find_last_instance_order(rec: NodeRecovery) -> RecoveryStepRecord | None:
    """Return the newest order to the cloud for the instance that is treated."""
    kind = ORDERS.get(rec.remedy)
    mine = [s for s in rec.steps if s.kind is kind and s.target == rec.generation.instance]
    return mine[-1] if mine else None


def may_have_begun_remedy(rec: NodeRecovery) -> bool:
    """Return whether the remedy was seen to begin, or an order for it was accepted or is in doubt.

    A later refusal removes no doubt: `NodeIdInUse` is what a deletion under way looks like.
    """
    if rec.phase is NodeRecoveryPhase.REMEDYING:
        return True
    kind = ORDERS.get(rec.remedy)
    return any(
        s.in_doubt or s.accepted
        for s in rec.steps
        if s.kind is kind and s.target == rec.generation.instance
    )


def has_unresolved_instance_order(rec: NodeRecovery) -> bool:
    """Return whether an order for this instance was sent whose outcome is not known."""
    kind = ORDERS.get(rec.remedy)
    return any(
        s.in_doubt for s in rec.steps if s.kind is kind and s.target == rec.generation.instance
    )

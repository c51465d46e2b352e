"""A node that slurmctld no longer lists, and one that is another's by the time of an order."""

import pytest
from msgspec.structs import replace

from hpctl.engine.node_deadlines import find_node_recovery_phase_deadline
from hpctl.nodes.advance import advance_node_recovery
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition, Remedy
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase, NodeRecoverySignal
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.recovery import RecoveryPhaseMove, RecoveryStepRecord, StepKind, WaitDecision
from tests.fakes.values import OWN, at, generation
from tests.nodes.test_node_recovery import FACTS, rec

UNLISTED = replace(FACTS, slurm=None, absent=at(0))
WINDOW_S = OWN.node.doubt_window_s


def ordered(kind: StepKind, target: str, outcome: Outcome) -> RecoveryStepRecord:
    return RecoveryStepRecord(kind, 1, target, at(0), outcome, at(0))


@pytest.mark.parametrize("phase", [NodeRecoveryPhase.CORDONED, NodeRecoveryPhase.VACATED])
def test_a_node_that_slurmctld_does_not_list_is_waited_for_and_then_gone(phase):
    waits = advance_node_recovery(rec(phase), UNLISTED, OWN, at(WINDOW_S - 1))
    assert isinstance(waits, WaitDecision)
    assert waits.until == at(WINDOW_S)
    assert "slurmctld has not listed the node since" in waits.why
    ends = advance_node_recovery(rec(phase), UNLISTED, OWN, at(WINDOW_S))
    assert isinstance(ends, RecoveryPhaseMove)
    assert ends.signal is NodeRecoverySignal.NODE_GONE


def test_a_node_that_is_being_replaced_may_be_missing_for_as_long_as_that_takes():
    sent = ordered(StepKind.REPLACE, "i-n1", Outcome.accepted())
    replaced = rec(NodeRecoveryPhase.REMEDYING, ladder=(Remedy.REPLACE,), rung=0, steps=(sent,))
    last = find_node_recovery_phase_deadline(replaced, OWN)
    assert last > at(WINDOW_S + 1)
    assert isinstance(
        advance_node_recovery(replaced, UNLISTED, OWN, at(WINDOW_S + 1)), WaitDecision
    )
    ends = advance_node_recovery(replaced, UNLISTED, OWN, last)
    assert isinstance(ends, RecoveryPhaseMove)
    assert ends.signal is NodeRecoverySignal.NODE_GONE


@pytest.mark.parametrize(
    ("refused", "signal"),
    [
        ("not_ours", NodeRecoverySignal.OPERATOR_TOOK_OVER),
        ("foreign_drain", NodeRecoverySignal.OPERATOR_TOOK_OVER),
        ("ESLURM_ACCESS_DENIED", NodeRecoverySignal.NEEDS_HUMAN),
    ],
)
def test_a_return_that_slurmctld_refuses_is_an_operators_where_the_node_is_theirs(refused, signal):
    healthy = NodeAssessment(generation(), NodeCondition.HEALTHY, at(0))
    no = ordered(StepKind.RETURN, "n1", Outcome.rejected(refused))
    verified = rec(NodeRecoveryPhase.VERIFYING, steps=(no,))
    answer = advance_node_recovery(verified, replace(FACTS, assessment=healthy), OWN, at(3600))
    assert isinstance(answer, RecoveryPhaseMove)
    assert answer.signal is signal

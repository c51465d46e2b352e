"""attempt_node_step in all its cases: when a step is taken, repeated, waited for, given up."""

import pytest

from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.recovery import (
    CONVERGENT,
    RecoveryStepRecord,
    StepKind,
    StepRetryRule,
    StepStartDecision,
    WaitDecision,
    decide_next_step_attempt,
)
from tests.fakes.values import at

REPEAT = StepRetryRule(retry_s=10, attempts=3, doubt_window_s=180)
BUSY = Outcome.rejected("busy", transient=True)
NO = Outcome.rejected("not_ours")
YES = Outcome.accepted()


def record(kind: StepKind, number: int = 1, outcome: Outcome | None = None) -> RecoveryStepRecord:
    return RecoveryStepRecord(kind, number, "t", at(0), outcome, None if outcome is None else at(1))


def ask(kind: StepKind, *steps: RecoveryStepRecord, seconds: float, target: str = "t") -> object:
    return decide_next_step_attempt(steps, kind, target, REPEAT, at(seconds))


def test_another_target_counts_from_one() -> None:
    spent = record(StepKind.REBOOT, 3, NO)
    assert ask(StepKind.REBOOT, spent, seconds=2, target="u") == StepStartDecision(
        StepKind.REBOOT, "u", 1
    )


@pytest.mark.parametrize("kind", sorted(CONVERGENT))
def test_a_convergent_step_in_doubt_after_a_crash_is_repeated_at_once(kind: StepKind) -> None:
    assert ask(kind, record(kind), seconds=0) == StepStartDecision(kind, "t", 2)


@pytest.mark.parametrize("kind", sorted(set(StepKind) - CONVERGENT))
def test_any_other_step_in_doubt_waits_one_window(kind: StepKind) -> None:
    assert ask(kind, record(kind), seconds=179.9).until == at(180)
    assert ask(kind, record(kind), seconds=180) == StepStartDecision(kind, "t", 2)


@pytest.mark.parametrize("kind", [StepKind.REBOOT, StepKind.SIGNAL])
def test_what_is_felt_each_time_is_repeated_once_in_doubt(kind: StepKind) -> None:
    assert ask(kind, record(kind, 2), seconds=1000).code == "in_doubt"


def test_a_replacement_in_doubt_may_use_all_attempts() -> None:
    """The instance id fences it: a repeat cannot hit the fresh machine."""
    assert isinstance(
        ask(StepKind.REPLACE, record(StepKind.REPLACE, 2), seconds=180), StepStartDecision
    )
    assert isinstance(ask(StepKind.REPLACE, record(StepKind.REPLACE, 3), seconds=180), Outcome)


def test_a_transient_rejection_is_tried_again_after_the_pause() -> None:
    busy = record(StepKind.REPLACE, 1, BUSY)
    assert isinstance(ask(StepKind.REPLACE, busy, seconds=10.9), WaitDecision)
    assert ask(StepKind.REPLACE, busy, seconds=11) == StepStartDecision(StepKind.REPLACE, "t", 2)


@pytest.mark.parametrize("kind", StepKind)
def test_a_permanent_rejection_is_handed_back_at_once(kind: StepKind) -> None:
    assert ask(kind, record(kind, 1, NO), seconds=1) == NO


def test_accepted_but_not_seen_is_patient_where_a_repeat_would_be_felt() -> None:
    assert isinstance(
        ask(StepKind.REBOOT, record(StepKind.REBOOT, 1, YES), seconds=180), WaitDecision
    )
    assert isinstance(
        ask(StepKind.REBOOT, record(StepKind.REBOOT, 1, YES), seconds=181), StepStartDecision
    )
    assert isinstance(
        ask(StepKind.DRAIN, record(StepKind.DRAIN, 1, YES), seconds=11), StepStartDecision
    )


@pytest.mark.parametrize("outcome", [None, Outcome.ambiguous("timeout"), BUSY, YES])
def test_when_the_attempts_are_spent_the_last_outcome_comes_back(outcome: Outcome | None) -> None:
    answer = ask(StepKind.DRAIN, record(StepKind.DRAIN, 3, outcome), seconds=500)
    assert isinstance(answer, Outcome)
    assert answer == (outcome or answer)

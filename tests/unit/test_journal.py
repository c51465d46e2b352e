"""What the journal amounts to, and what is corruption."""

import pytest

from hpctl.core.journal import (
    Corrupt,
    Event,
    HoldLifted,
    HoldNoted,
    JobRecoveryOpened,
    RequestTaken,
    SignalSeen,
    StepResolved,
    StepStarted,
    replay,
)
from hpctl.core.model import NodeName, Outcome, RecoveryId, RuleId
from hpctl.core.node_recovery import Phase
from hpctl.core.recovery import StepKind
from tests.fakes.values import at, attempt, opened

N, J = RecoveryId("n-1"), RecoveryId("j-1")
CANCEL = SignalSeen(at(5), N, "operator_cancelled", "eve")
STARTED = StepStarted(at(1), N, StepKind.DRAIN, 1, "n1")
DONE = StepResolved(at(2), N, StepKind.DRAIN, 1, Outcome.accepted())
JOB = JobRecoveryOpened(at(1), J, attempt(), N, (NodeName("n1"),), "its node")
HOLD = HoldNoted(at(0), "n2", "budget", "full", RuleId("xid-79"), True)


def request(verb: str, target: str = "", *, ok: bool = True) -> RequestTaken:
    return RequestTaken(at(3), 1, verb, target, "eve", "done", ok)


CORRUPT: dict[str, list[Event]] = {
    "opened twice": [opened(), opened()],
    "two recoveries of one node": [opened(), opened("n-2")],
    "an id used again": [opened(), CANCEL, opened()],
    "job opened twice": [opened(), JOB, JOB],
    "signal of nobody": [CANCEL],
    "no such signal": [opened(), SignalSeen(at(1), N, "levitated", "")],
    "a signal that the phase does not know": [opened(), SignalSeen(at(1), N, "rejoined", "")],
    "a job's signal for a node": [opened(), SignalSeen(at(1), N, "proved", "")],
    "signal after the end": [opened(), CANCEL, CANCEL],
    "step of nobody": [STARTED],
    "step started after the end": [opened(), CANCEL, STARTED],
    "resolved but never started": [opened(), DONE],
    "resolved twice": [opened(), STARTED, DONE, DONE],
    "another attempt resolved": [
        opened(), STARTED, StepResolved(at(2), N, StepKind.DRAIN, 2, Outcome.accepted()),
    ],
}  # fmt: skip


@pytest.mark.parametrize("events", CORRUPT.values(), ids=CORRUPT)
def test_what_cannot_follow_is_corruption(events: list[Event]) -> None:
    replay(events[:-1])
    with pytest.raises(Corrupt):
        replay(events)


def test_an_answer_after_the_end_is_legal() -> None:
    """A slow cloud answers after an operator has cancelled."""
    state = replay([opened(), STARTED, CANCEL, DONE])
    assert state.nodes[N].phase is Phase.CANCELLED
    assert state.nodes[N].steps[0].outcome == Outcome.accepted()
    assert state.open_nodes == {}


def test_a_new_target_may_count_its_attempts_anew() -> None:
    first = StepStarted(at(1), N, StepKind.REBOOT, 1, "i-1")
    again = StepStarted(at(9), N, StepKind.REBOOT, 1, "i-2")
    answer = StepResolved(at(10), N, StepKind.REBOOT, 1, Outcome.accepted())
    steps = replay([opened(), first, again, answer]).nodes[N].steps
    assert [s.outcome for s in steps] == [None, Outcome.accepted()]


def test_holds_pauses_and_approvals() -> None:
    state = replay([HOLD, request("pause"), request("approve", "n2")])
    assert (state.holds["n2"], state.paused_by) == (HOLD, "eve")
    assert state.approvals == {"n2": at(3)}
    state.fold(request("resume"))
    state.fold(HoldLifted(at(4), "n2"))
    assert (state.holds, state.paused_by) == ({}, "")

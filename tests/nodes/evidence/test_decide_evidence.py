"""When evidence is ordered, what its answer lets happen, and that a remedy waits only so long."""

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.state import replay_events
from hpctl.faults.health import ORDER_S
from hpctl.nodes.advance import advance_node_recovery
from hpctl.nodes.evidence.decide import EVIDENCE, find_recoveries_ready_for_evidence
from hpctl.nodes.testing import NO_TESTING
from hpctl.vocabulary.assessment import Remedy
from hpctl.vocabulary.evidence import (
    EVIDENCE_CHECK,
    KEPT,
    MOST_BYTES,
    NOT_KEPT,
    describe_archive_size_and_digest,
    parse_stored_evidence_archive,
)
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase, NodeRecoverySignal
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import EvidenceCollectionPolicy, OperatingMode
from hpctl.vocabulary.recovery import (
    RecoveryPhaseMove,
    RecoveryStepRecord,
    RecoveryTransitionRecord,
    StepKind,
    StepStartDecision,
    WaitDecision,
)
from tests.fakes.values import OWN, at, does, generation, moves, opened, view_of
from tests.nodes.test_node_recovery import FACTS, OURS, rec

KEEPS = replace(OWN, evidence=EvidenceCollectionPolicy(directory="/fsx/hpctl/evidence", at_once=2))
ANSWERS = replace(FACTS, slurm=OURS, turn=True, silent=False)
VACATED = rec(NodeRecoveryPhase.VACATED, since=at(1))
OFFERED = RecoveryStepRecord(StepKind.EVIDENCE, 1, "n1", at(1), Outcome.accepted(), at(1))
DIGEST = "ab" * 32
ARCHIVE = describe_archive_size_and_digest(1234, DIGEST)


def next_of(recovery=VACATED, facts=ANSWERS, seconds=2, policy=KEEPS):
    return advance_node_recovery(recovery, facts, policy, at(seconds), NO_TESTING, EVIDENCE)


def said(code=KEPT, evidence=ARCHIVE, detail="dmesg", verdict=DeviceVerdict.OK):
    return Finding(EVIDENCE_CHECK, verdict, at(9), at(9), "n-1", code, detail, evidence)


def test_evidence_is_ordered_once_the_node_is_empty_and_before_its_remedy():
    step = does(next_of())
    assert (step.kind, step.target) == (StepKind.EVIDENCE, "n1")
    order = step.evidence
    assert (order.recovery, order.generation) == ("n-1", generation())
    assert order.until == at(2).timestamp() + ORDER_S
    assert order.since <= at(0).timestamp()
    assert (order.remedy, "GPU fell off the bus" in order.why) == ("reboot", True)
    for phase in (NodeRecoveryPhase.OPEN, NodeRecoveryPhase.CORDONED):
        answer = next_of(rec(phase))
        assert not (isinstance(answer, StepStartDecision) and answer.kind is StepKind.EVIDENCE)


def test_the_remedy_follows_at_once_when_the_archive_is_reported():
    waiting = replace(VACATED, steps=(OFFERED,))
    assert isinstance(next_of(waiting, seconds=60), WaitDecision)
    move = moves(next_of(waiting, replace(ANSWERS, evidence=said()), 60))
    assert move.signal is NodeRecoverySignal.EVIDENCE_KEPT
    archive = parse_stored_evidence_archive(move.why)
    assert (archive.path, archive.size, archive.sha256) == (
        "/fsx/hpctl/evidence/n-1.tar.gz", 1234, DIGEST,
    )  # fmt: skip
    after = waiting.on(move.signal, at(60), move.why)
    assert after.phase is NodeRecoveryPhase.VACATED
    assert does(next_of(after, seconds=61)).kind is StepKind.REBOOT


@pytest.mark.parametrize("remedy", [Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE])
def test_every_remedy_that_destroys_waits_and_others_do_not(remedy):
    assert does(next_of(replace(VACATED, ladder=(remedy,)))).kind is StepKind.EVIDENCE
    for harmless in (Remedy.NONE, Remedy.ASK_HUMAN, Remedy.AWAIT):
        assert isinstance(next_of(replace(VACATED, ladder=(harmless,))), RecoveryPhaseMove)


def test_no_evidence_is_kept_where_nothing_is_destroyed_or_no_directory_is_set():
    for policy in (
        OWN,
        replace(KEEPS, mode=OperatingMode.ASSIST),
        replace(KEEPS, mode=OperatingMode.OBSERVE),
        replace(KEEPS, attended=True),
    ):
        answer = next_of(policy=policy, seconds=61)
        assert not (isinstance(answer, StepStartDecision) and answer.kind is StepKind.EVIDENCE), (
            policy.mode
        )


def test_a_remedy_waits_no_longer_than_the_deadline_for_an_answer():
    due = KEEPS.evidence.deadline_s
    for outcome in (Outcome.accepted(), Outcome.ambiguous("lost"), None):
        waiting = replace(VACATED, steps=(replace(OFFERED, outcome=outcome),))
        assert isinstance(next_of(waiting, seconds=due), WaitDecision)
        move = moves(next_of(waiting, seconds=due + 1))
        assert (move.signal, "did not answer within 120 s" in move.why) == (
            NodeRecoverySignal.NO_EVIDENCE, True,
        )  # fmt: skip
    assert isinstance(next_of(facts=replace(ANSWERS, turn=False), seconds=due), WaitDecision)
    late = moves(next_of(facts=replace(ANSWERS, turn=False), seconds=due + 1))
    assert (late.signal, "other nodes kept theirs" in late.why) == (
        NodeRecoverySignal.NO_EVIDENCE,
        True,
    )


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (replace(ANSWERS, silent=True), "its agent does not answer"),
        (replace(ANSWERS, heard=None), "its agent does not answer"),
    ],
)
def test_a_node_that_cannot_answer_delays_its_remedy_by_nothing(facts, why):
    assert isinstance(next_of(facts=facts, seconds=59), WaitDecision)
    move = moves(next_of(facts=facts, seconds=60))
    assert (move.signal, move.why) == (NodeRecoverySignal.NO_EVIDENCE, why)
    after = VACATED.on(move.signal, at(60), move.why)
    assert does(next_of(after, facts, 60)).kind is StepKind.REBOOT


def test_a_node_that_boots_while_it_keeps_evidence_is_not_waited_for():
    waiting = replace(VACATED, steps=(OFFERED,))
    move = moves(next_of(waiting, replace(ANSWERS, heard=generation(boot=2)), 3))
    assert (move.signal, move.why) == (
        NodeRecoverySignal.NO_EVIDENCE, "the node has booted since it was asked",
    )  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [
        said(NOT_KEPT, "", "no directory /fsx", DeviceVerdict.WARN),
        said(evidence=f"{MOST_BYTES + 1} bytes, sha256 {DIGEST}"),
        said(evidence=f"12 bytes, sha256 {DIGEST}\nkept elsewhere"),
        said(evidence="../../etc/shadow"),
        said(evidence=""),
        said(verdict=DeviceVerdict.FAIL),
    ],
)
def test_an_answer_that_names_no_possible_archive_is_no_evidence(answer):
    move = moves(next_of(replace(VACATED, steps=(OFFERED,)), replace(ANSWERS, evidence=answer), 9))
    assert move.signal is NodeRecoverySignal.NO_EVIDENCE
    assert parse_stored_evidence_archive(move.why) is None


def test_what_was_offered_to_no_agent_is_offered_again_and_then_given_up():
    refused = Outcome.rejected("unavailable", "no munged", transient=True)
    step = replace(OFFERED, outcome=refused)
    assert isinstance(next_of(replace(VACATED, steps=(step,)), seconds=2), WaitDecision)
    again = does(next_of(replace(VACATED, steps=(step,)), seconds=12))
    assert (again.attempt, again.evidence.recovery) == (2, "n-1")
    never = replace(OFFERED, outcome=Outcome.rejected("no_agents"))
    move = moves(next_of(replace(VACATED, steps=(never,))))
    assert (move.signal, move.why) == (NodeRecoverySignal.NO_EVIDENCE, "not ordered: no_agents")


def test_evidence_is_kept_once_a_recovery():
    kept = RecoveryTransitionRecord(
        at(9), NodeRecoverySignal.EVIDENCE_KEPT, NodeRecoveryPhase.VACATED, "/e/n-1.tar.gz"
    )
    climbed = replace(VACATED, rung=1, trail=(kept,), steps=(OFFERED,))
    assert does(next_of(climbed, seconds=61)).kind is StepKind.REPLACE


def empty(number: int, **changes):
    """A recovery whose node is empty since `number` tenths of a second."""
    first = replay_events([opened(f"n-{number}", f"n{number}")]).nodes[f"n-{number}"]
    return replace(first, phase=NodeRecoveryPhase.VACATED, since=at(number / 10), **changes)


def look(recoveries, seconds=2, silent=()):
    """The world with these recoveries open, all heard now but those that are silent."""
    view = view_of(nodes=9, seconds=seconds)
    view.state.nodes.update({r.id: r for r in recoveries})
    view.state.open_nodes.update({r.node: r.id for r in recoveries})
    for node in silent:
        view.health[node] = NodeHealth(generation(node), at(seconds - 1000))
    return view


def test_only_so_many_nodes_keep_evidence_at_once_and_the_longest_empty_first():
    many = [empty(n) for n in (3, 1, 2, 4)]
    assert find_recoveries_ready_for_evidence(look(many), (), KEEPS, at(2)) == {"n-1", "n-2"}
    busy = empty(9, steps=(OFFERED,))
    assert find_recoveries_ready_for_evidence(look([*many, busy]), (), KEEPS, at(2)) == {"n-1"}
    assert find_recoveries_ready_for_evidence(look([*many, busy], 122), (), KEEPS, at(122)) == {
        "n-1",
        "n-2",
    }
    # What a gate holds, or cannot answer, takes no turn from the others.
    assert find_recoveries_ready_for_evidence(
        look(many, silent=("n1",)), ("n-2",), KEEPS, at(2)
    ) == {"n-3", "n-4"}

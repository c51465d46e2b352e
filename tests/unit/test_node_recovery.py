"""The node table: every pair of phase and signal, and a deadline for every waiting phase."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from hpctl.core.journal import replay
from hpctl.core.model import (
    Generation,
    Instance,
    InstanceId,
    InstanceStatus,
    Outcome,
    Remedy,
    Urgency,
    own_reason,
)
from hpctl.core.node_actors import NodeFacts
from hpctl.core.node_advance import advance, deadline_of, new_generation
from hpctl.core.node_recovery import ENDS, TRANSITIONS, NodeRecovery, Phase, Signal
from hpctl.core.policy import Mode
from hpctl.core.recovery import Do, Move, StepKind, StepRecord, Wait
from tests.fakes.values import OWN, at, faulty, generation, moves, opened, slurm_job, slurm_node

BASE = replay([opened()]).nodes[opened().recovery]
WAITING = [p for p in Phase if p not in ENDS]
OURS = slurm_node(1, flags=frozenset({"DRAIN"}), reason=own_reason(BASE.id, "Xid 79"))
INSTANCE = Instance(InstanceId("i-n1"), InstanceStatus.RUNNING, node=OURS.name)
FACTS = NodeFacts(OURS, INSTANCE, provider_fresh=True, provider_present=True, heard=generation())
STUCK = {
    Phase.OPEN: replace(FACTS, slurm=None),
    Phase.CORDONED: replace(FACTS, running=(slurm_job(requeue=False),)),
    Phase.VACATED: replace(FACTS, provider_fresh=False),
    Phase.REMEDYING: FACTS,
    Phase.REJOINING: replace(FACTS, instance=None),
    Phase.VERIFYING: replace(FACTS, heard=None),
}


def rec(phase: Phase, **changes: object) -> NodeRecovery:
    return replace(BASE, phase=phase, **changes)  # type: ignore[arg-type]


def test_nothing_leaves_an_end() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] in ENDS]


@pytest.mark.parametrize("phase", WAITING)
def test_every_waiting_phase_can_be_reached_and_ended_by_people_and_deadlines(phase: Phase) -> None:
    assert phase is Phase.OPEN or phase in TRANSITIONS.values()
    ends = {s for (p, s), q in TRANSITIONS.items() if p is phase and q in ENDS}
    assert {Signal.DEADLINE, Signal.OPERATOR_CANCELLED, Signal.NEEDS_HUMAN} <= ends


@pytest.mark.parametrize("phase", WAITING)
def test_every_waiting_phase_has_a_deadline_that_ends_it(phase: Phase) -> None:
    # The drain was tried and refused for now, so that OPEN waits too.
    busy = StepRecord(
        StepKind.DRAIN, 1, "n1", at(0), Outcome.rejected("away", transient=True), at(1e9)
    )
    stuck = rec(phase, steps=(busy,))
    due = deadline_of(stuck, OWN)
    last = (due - at(0)).total_seconds()
    assert last > 0
    before = advance(stuck, STUCK[phase], OWN, at(last - 1))
    assert isinstance(before, Wait)
    assert before.until <= due
    assert (
        TRANSITIONS[phase, Signal(moves(advance(stuck, STUCK[phase], OWN, due)).signal)]
        is Phase.ESCALATED
    )


@pytest.mark.parametrize("phase", [Phase.REMEDYING, Phase.REJOINING])
def test_a_reboot_in_vain_climbs_to_the_next_rung(phase: Phase) -> None:
    reboot = StepRecord(StepKind.REBOOT, 1, "i-n1", at(0), Outcome.accepted(), at(1))
    waiting = rec(phase, steps=(reboot,))
    due = deadline_of(waiting, OWN)
    moved = moves(advance(waiting, STUCK[phase], OWN, due))
    assert moved.signal is Signal.REBOOT_IN_VAIN
    climbed = waiting.on(Signal.REBOOT_IN_VAIN, due, "", None)
    assert (climbed.phase, climbed.remedy) == (Phase.VACATED, Remedy.REPLACE)
    top = replace(waiting, ladder=(Remedy.REBOOT,))
    assert advance(top, STUCK[phase], OWN, due) != moved


@pytest.mark.parametrize("phase", [p for p in WAITING if p is not Phase.OPEN])
@pytest.mark.parametrize(
    "node",
    [slurm_node(1), slurm_node(1, flags=frozenset({"DRAIN"}), reason="bad fan")],
    ids=["resumed", "re-reasoned"],
)
def test_an_operator_wins_in_every_phase_after_our_drain(phase: Phase, node: object) -> None:
    facts = replace(FACTS, slurm=node)  # type: ignore[arg-type]
    assert TRANSITIONS[phase, Signal(moves(advance(rec(phase), facts, OWN, at(1))).signal)] in (
        Phase.CANCELLED,
        Phase.RETURNED,
    )


def test_down_waits_for_jobs_that_are_not_ready_and_for_those_that_cannot_be_requeued() -> None:
    cordoned = rec(Phase.CORDONED)
    ready = replace(FACTS, running=(slurm_job(),), movable=frozenset({1}))
    assert advance(cordoned, ready, OWN, at(1)) == Do(StepKind.DOWN, "n1", 1, BASE.meaning)
    assert isinstance(advance(cordoned, replace(ready, movable=frozenset()), OWN, at(1)), Wait)
    stays = replace(ready, running=(slurm_job(batch=False),))
    assert isinstance(advance(cordoned, stays, OWN, at(1)), Wait)
    lost = replace(stays, slurm=replace(OURS, flags=OURS.flags | {"NOT_RESPONDING"}))
    assert isinstance(advance(cordoned, lost, OWN, at(1)), Do)


def test_after_jobs_never_sets_a_node_down() -> None:
    patient = rec(Phase.CORDONED, urgency=Urgency.AFTER_JOBS)
    facts = replace(FACTS, running=(slurm_job(),), movable=frozenset({1}))
    assert isinstance(advance(patient, facts, OWN, at(800_000)), Wait)


def test_the_remedy_names_the_instance_that_was_sick() -> None:
    assert isinstance(advance(rec(Phase.VACATED), FACTS, OWN, at(59)), Wait)
    assert advance(rec(Phase.VACATED), FACTS, OWN, at(60)) == Do(
        StepKind.REBOOT, "i-n1", 1, BASE.meaning
    )
    assert advance(rec(Phase.VACATED, rung=1), FACTS, OWN, at(60)) == Do(
        StepKind.REPLACE, "i-n1", 1, BASE.meaning
    )


@pytest.mark.parametrize("kind", [StepKind.REBOOT, StepKind.REPLACE])
def test_a_remedy_refused_for_now_is_asked_again_until_the_deadline(kind: StepKind) -> None:
    """Throttled for minutes, or somebody scales the cluster: that is no reason to call a person."""
    busy = Outcome.rejected("ValidationException", "the cluster is Updating", transient=True)
    waiting = rec(Phase.VACATED, rung=int(kind is StepKind.REPLACE))
    asked, now = [], 60.0
    while not isinstance(answer := advance(waiting, FACTS, OWN, at(now)), Move):
        if isinstance(answer, Do):
            asked.append(now)
            step = StepRecord(kind, answer.attempt, answer.target, at(now), busy, at(now))
            waiting = replace(waiting, steps=(*waiting.steps, step))
        else:
            now = (answer.until - at(0)).total_seconds()
    assert answer.signal is Signal.DEADLINE
    assert "the cluster is Updating" in answer.why
    assert now == OWN.node.replace_deadline_s
    pauses = [b - a for a, b in pairwise(asked)]
    assert pauses[:4] == [OWN.node.step_retry_s] * 4
    assert set(pauses[4:]) == {OWN.node.doubt_window_s}


def test_another_instance_under_the_name_means_it_was_done() -> None:
    other = replace(FACTS, instance=replace(INSTANCE, id=InstanceId("i-new")))
    assert (
        moves(advance(rec(Phase.VACATED, rung=1), other, OWN, at(1))).signal
        is Signal.REMEDY_ACCEPTED
    )


@pytest.mark.parametrize("phase", [Phase.CORDONED, Phase.VACATED])
def test_a_mass_event_gives_the_node_back_while_no_instance_was_touched(phase: Phase) -> None:
    mass = replace(FACTS, correlated="3 of 8 nodes")
    assert advance(rec(phase), mass, OWN, at(1)) == Do(StepKind.RETURN, "n1", 1)
    sent = StepRecord(StepKind.RETURN, 1, "n1", at(1), Outcome.accepted(), at(1))
    moved = moves(
        advance(rec(phase, steps=(sent,)), replace(mass, slurm=slurm_node(1)), OWN, at(2))
    )
    assert moved.signal is Signal.WITHDRAWN
    for later_phase in (Phase.REMEDYING, Phase.REJOINING):
        assert not isinstance(advance(rec(later_phase), mass, OWN, at(1)), Do)


def test_without_own_mode_the_remedy_is_left_to_the_service() -> None:
    assist = replace(OWN, mode=Mode.ASSIST)
    assert moves(advance(rec(Phase.VACATED), FACTS, assist, at(1))).signal is Signal.REMEDY_ACCEPTED


@pytest.mark.parametrize(
    ("heard", "seen"),
    [
        (None, False),
        (generation(), False),
        (generation(boot=2), True),
        (Generation(OURS.name, InstanceId("i-other"), generation(boot=2).boot), False),
    ],
)
def test_a_new_generation_is_a_new_boot_of_what_the_cloud_lists(
    heard: Generation | None, seen: bool
) -> None:
    found = new_generation(rec(Phase.REMEDYING), replace(FACTS, heard=heard))
    assert (found is not None) is seen


def test_a_reboot_is_no_replacement() -> None:
    waiting = rec(Phase.REMEDYING, rung=1)
    assert new_generation(waiting, replace(FACTS, heard=generation(boot=2))) is None


def test_a_healthy_generation_is_returned_after_a_while() -> None:
    healthy = replace(faulty(), condition="healthy", findings=())  # type: ignore[arg-type]
    facts = replace(FACTS, assessment=healthy)
    assert isinstance(advance(rec(Phase.VERIFYING), facts, OWN, at(29)), Wait)
    assert advance(rec(Phase.VERIFYING), facts, OWN, at(30)) == Do(StepKind.RETURN, "n1", 1)

"""The node table: every pair of phase and signal, and a deadline for every waiting phase."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.state import replay_events
from hpctl.engine.node_deadlines import find_node_recovery_phase_deadline
from hpctl.engine.timeline import find_next_awaited_event
from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import build_fault_rules
from hpctl.faults.hma_marks import (
    CHECK,
    add_hma_mark_findings,
    find_hma_reason_mark,
    is_hma_mark_fulfilled,
)
from hpctl.nodes.actors import NodeFacts
from hpctl.nodes.advance import advance_node_recovery, find_new_generation
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition, Remedy, Urgency
from hpctl.vocabulary.cloud_facts import Instance, InstanceStatus
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.node_recovery import (
    ENDS,
    IN_TEST,
    TRANSITIONS,
    NodeRecovery,
    NodeRecoveryPhase,
    NodeRecoverySignal,
)
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import OperatingMode
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import (
    RecoveryPhaseMove,
    RecoveryStepRecord,
    StepKind,
    StepStartDecision,
    WaitDecision,
)
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.fakes.values import (
    OWN,
    at,
    does,
    faulty,
    generation,
    moves,
    opened,
    slurm_job,
    slurm_node,
)

BASE = replay_events([opened()]).nodes[opened().recovery]
WAITING = [p for p in NodeRecoveryPhase if p not in {*ENDS, *IN_TEST}]
"""Those of a test are treated by the room that tests: test_acceptance.py."""
OURS = slurm_node(1, flags=frozenset({"DRAIN"}), reason=format_hpctl_node_reason(BASE.id, "Xid 79"))
INSTANCE = Instance("i-n1", InstanceStatus.RUNNING, node=OURS.name)
FACTS = NodeFacts(OURS, INSTANCE, provider_fresh=True, provider_present=True, heard=generation())
STUCK = {
    NodeRecoveryPhase.OPEN: replace(FACTS, slurm=None),
    NodeRecoveryPhase.CORDONED: replace(FACTS, running=(slurm_job(requeue=False),)),
    NodeRecoveryPhase.VACATED: replace(FACTS, provider_fresh=False),
    NodeRecoveryPhase.REMEDYING: FACTS,
    NodeRecoveryPhase.REJOINING: replace(FACTS, instance=None),
    NodeRecoveryPhase.VERIFYING: replace(FACTS, heard=None),
}


def rec(phase: NodeRecoveryPhase, **changes) -> NodeRecovery:
    return replace(BASE, phase=phase, **changes)


def signal_of(recovery: NodeRecovery, facts: NodeFacts, seconds: float = 1) -> NodeRecoverySignal:
    return NodeRecoverySignal(
        moves(advance_node_recovery(recovery, facts, OWN, at(seconds))).signal
    )


@pytest.mark.parametrize("phase", WAITING)
def test_every_waiting_phase_has_a_deadline_that_ends_it(phase):
    # The drain was tried and refused for now, so that OPEN waits too.
    refused = Outcome.rejected("away", transient=True)
    stuck = rec(
        phase, steps=(RecoveryStepRecord(StepKind.DRAIN, 1, "n1", at(0), refused, at(1e9)),)
    )
    due = find_node_recovery_phase_deadline(stuck, OWN)
    last = (due - at(0)).total_seconds()
    assert last > 0
    assert advance_node_recovery(stuck, STUCK[phase], OWN, at(last - 1)).until <= due
    end = TRANSITIONS[phase, signal_of(stuck, STUCK[phase], last)]
    assert end is NodeRecoveryPhase.ESCALATED


@pytest.mark.parametrize("phase", [NodeRecoveryPhase.REMEDYING, NodeRecoveryPhase.REJOINING])
def test_a_reboot_in_vain_climbs_to_the_next_rung(phase):
    reboot = RecoveryStepRecord(StepKind.REBOOT, 1, "i-n1", at(0), Outcome.accepted(), at(1))
    waiting = rec(phase, steps=(reboot,))
    due = find_node_recovery_phase_deadline(waiting, OWN)
    moved = moves(advance_node_recovery(waiting, STUCK[phase], OWN, due))
    assert moved.signal is NodeRecoverySignal.REBOOT_IN_VAIN
    climbed = waiting.on(NodeRecoverySignal.REBOOT_IN_VAIN, due, "", None)
    assert (climbed.phase, climbed.remedy) == (NodeRecoveryPhase.VACATED, Remedy.REPLACE)
    assert (
        advance_node_recovery(replace(waiting, ladder=(Remedy.REBOOT,)), STUCK[phase], OWN, due)
        != moved
    )


@pytest.mark.parametrize("phase", [p for p in WAITING if p is not NodeRecoveryPhase.OPEN])
@pytest.mark.parametrize(
    "node",
    [slurm_node(1), slurm_node(1, flags=frozenset({"DRAIN"}), reason="bad fan")],
    ids=["resumed", "re-reasoned"],
)
def test_an_operator_wins_in_every_phase_after_our_drain(phase, node):
    signal = signal_of(rec(phase), replace(FACTS, slurm=node))
    assert TRANSITIONS[phase, signal] in (NodeRecoveryPhase.CANCELLED, NodeRecoveryPhase.RETURNED)
    assert signal in (NodeRecoverySignal.OPERATOR_TOOK_OVER, NodeRecoverySignal.RETURN_SEEN)


def test_down_waits_for_jobs_that_are_not_ready_and_for_those_that_cannot_be_requeued():
    cordoned = rec(NodeRecoveryPhase.CORDONED)
    ready = replace(FACTS, running=(slurm_job(),), movable=frozenset({1}))
    assert advance_node_recovery(cordoned, ready, OWN, at(1)) == StepStartDecision(
        StepKind.DOWN, "n1", 1, BASE.meaning
    )
    assert isinstance(
        advance_node_recovery(cordoned, replace(ready, movable=frozenset()), OWN, at(1)),
        WaitDecision,
    )
    stays = replace(ready, running=(slurm_job(batch=False),))
    assert isinstance(advance_node_recovery(cordoned, stays, OWN, at(1)), WaitDecision)
    lost = replace(stays, slurm=replace(OURS, flags=OURS.flags | {"NOT_RESPONDING"}))
    assert isinstance(advance_node_recovery(cordoned, lost, OWN, at(1)), StepStartDecision)


def test_after_jobs_never_sets_a_node_down():
    patient = rec(NodeRecoveryPhase.CORDONED, urgency=Urgency.AFTER_JOBS)
    facts = replace(FACTS, running=(slurm_job(),), movable=frozenset({1}))
    assert isinstance(advance_node_recovery(patient, facts, OWN, at(800_000)), WaitDecision)


def test_the_remedy_names_the_instance_that_was_sick():
    assert isinstance(
        advance_node_recovery(rec(NodeRecoveryPhase.VACATED), FACTS, OWN, at(59)), WaitDecision
    )
    for rung, kind in enumerate((StepKind.REBOOT, StepKind.REPLACE)):
        remedy = advance_node_recovery(
            rec(NodeRecoveryPhase.VACATED, rung=rung), FACTS, OWN, at(60)
        )
        assert remedy == StepStartDecision(kind, "i-n1", 1, BASE.meaning)


@pytest.mark.parametrize("kind", [StepKind.REBOOT, StepKind.REPLACE])
def test_a_remedy_refused_for_now_is_asked_again_until_the_deadline(kind):
    """Throttled for minutes, or somebody scales the cluster: that is no reason to call a person."""
    busy = Outcome.rejected("ValidationException", "the cluster is Updating", transient=True)
    waiting = rec(NodeRecoveryPhase.VACATED, rung=int(kind is StepKind.REPLACE))
    asked, now = [], 60.0
    while not isinstance(
        answer := advance_node_recovery(waiting, FACTS, OWN, at(now)), RecoveryPhaseMove
    ):
        if isinstance(answer, StepStartDecision):
            asked.append(now)
            step = RecoveryStepRecord(kind, answer.attempt, answer.target, at(now), busy, at(now))
            waiting = replace(waiting, steps=(*waiting.steps, step))
        else:
            now = (answer.until - at(0)).total_seconds()
    assert answer.signal is NodeRecoverySignal.DEADLINE
    assert "the cluster is Updating" in answer.why
    assert now == OWN.node.replace_deadline_s
    pauses = [b - a for a, b in pairwise(asked)]
    assert pauses[:4] == [OWN.node.step_retry_s] * 4
    assert set(pauses[4:]) == {OWN.node.doubt_window_s}


def test_another_instance_under_the_name_means_it_was_done():
    other = replace(FACTS, instance=replace(INSTANCE, id="i-new"))
    assert (
        signal_of(rec(NodeRecoveryPhase.VACATED, rung=1), other)
        is NodeRecoverySignal.REMEDY_ACCEPTED
    )


@pytest.mark.parametrize("phase", [NodeRecoveryPhase.CORDONED, NodeRecoveryPhase.VACATED])
def test_a_mass_event_gives_the_node_back_while_no_instance_was_touched(phase):
    mass = replace(FACTS, correlated="3 of 8 nodes")
    assert advance_node_recovery(rec(phase), mass, OWN, at(1)) == StepStartDecision(
        StepKind.RETURN, "n1", 1
    )
    sent = RecoveryStepRecord(StepKind.RETURN, 1, "n1", at(1), Outcome.accepted(), at(1))
    back = replace(mass, slurm=slurm_node(1))
    assert signal_of(rec(phase, steps=(sent,)), back, 2) is NodeRecoverySignal.WITHDRAWN
    for later_phase in (NodeRecoveryPhase.REMEDYING, NodeRecoveryPhase.REJOINING):
        assert not isinstance(
            advance_node_recovery(rec(later_phase), mass, OWN, at(1)), StepStartDecision
        )


@pytest.mark.parametrize(
    ("heard", "seen"),
    [
        (None, False),
        (generation(), False),
        (generation(boot=2), True),
        (NodeGeneration(OURS.name, "i-other", generation(boot=2).boot), False),
    ],
)
def test_a_new_generation_is_a_new_boot_of_what_the_cloud_lists(heard, seen):
    facts = replace(FACTS, heard=heard)
    assert (find_new_generation(rec(NodeRecoveryPhase.REMEDYING), facts) is not None) is seen
    assert find_new_generation(rec(NodeRecoveryPhase.REMEDYING, rung=1), facts) is None, (
        "no replacement"
    )


def test_a_healthy_generation_is_returned_after_a_while():
    facts = replace(FACTS, assessment=replace(faulty(), condition="healthy", findings=()))
    assert isinstance(
        advance_node_recovery(rec(NodeRecoveryPhase.VERIFYING), facts, OWN, at(29)), WaitDecision
    )
    assert advance_node_recovery(
        rec(NodeRecoveryPhase.VERIFYING), facts, OWN, at(30)
    ) == StepStartDecision(StepKind.RETURN, "n1", 1)


MARKED = slurm_node(1, flags=frozenset({"FAIL"}), reason="Action:Replace")
ASSIST = replace(OWN, mode=OperatingMode.ASSIST)


@pytest.mark.parametrize(
    ("reason", "mark"),
    [
        ("Action:Replace", "Action:Replace"), ("Action:Reboot", "Action:Reboot"),
        ("Action:Replace : Not responding", "Action:Replace"),
        ("Action:Reboot : reboot issued : Not responding", "Action:Reboot"), ("action:replace", ""),
        ("Action:Replace ", ""), ("Action:Replace.", ""), ("Action:Replace please", ""),
        (" Action:Replace", ""), ("Action:", ""), ("hpctl:n-1 Action:Replace", ""), ("", ""),
    ],
)  # fmt: skip
def test_only_the_marks_to_the_letter_count(reason, mark):
    for flag in ("FAIL", "DRAIN"):
        assert find_hma_reason_mark(slurm_node(1, flags=frozenset({flag}), reason=reason)) == mark
    assert find_hma_reason_mark(slurm_node(1, state="DOWN", reason=reason)) == mark
    assert find_hma_reason_mark(slurm_node(1, reason=reason)) == "", "in service: an old Reason"


def view(**changes) -> SchedulerView:
    node = replace(MARKED, **changes)
    return SchedulerView(at(0), {node.name: node})


def rule_of(seen: SchedulerView, instance: Instance | None = None, heard: bool = True) -> str:
    known = {MARKED.name: NodeHealth(generation(), at(0))} if heard else {}
    health = add_hma_mark_findings(known, seen, {MARKED.name: instance} if instance else {})
    judged = assess_health(health[MARKED.name], build_fault_rules(), at(1))
    assert judged.condition is NodeCondition.FAULTY
    assert judged.findings[0].detail == "Action:Replace"
    return judged.fault.rule


def launched(when):
    return Instance("i-n1", InstanceStatus.RUNNING, launched=when)


def test_a_mark_is_evidence_until_what_it_asks_for_was_done():
    assert (rule_of(view()), rule_of(view(), heard=False)) == ("hma-replace", "hma-replace")
    assert rule_of(view(reason_at=at(-9), boot_time=at(-99))) == "hma-replace"
    rebooted = view(reason_at=at(-9), boot_time=at(-5))
    assert rule_of(rebooted) == "hma-spent"
    assert rule_of(rebooted, launched(at(-99))) == "hma-replace", "booted, and the same instance"
    assert rule_of(rebooted, launched(at(-6))) == "hma-spent"
    unregistered = view(reason_at=at(-9), boot_time=at(-99))
    assert rule_of(unregistered, launched(at(-6))) == "hma-spent", "another instance is on its way"
    again = replace(MARKED, reason="Action:Reboot", reason_at=at(-9), boot_time=at(-5))
    assert is_hma_mark_fulfilled(again, launched(at(-99)))


def did(recovery: NodeRecovery, kind: StepKind) -> NodeRecovery:
    """The recovery after one more accepted step."""
    done = RecoveryStepRecord(kind, len(recovery.steps) + 1, "n1", at(0), Outcome.accepted(), at(0))
    return replace(recovery, steps=(*recovery.steps, done))


@pytest.mark.parametrize(
    "phase",
    [
        NodeRecoveryPhase.CORDONED,
        NodeRecoveryPhase.VACATED,
        NodeRecoveryPhase.REMEDYING,
        NodeRecoveryPhase.REJOINING,
    ],
)
def test_in_mode_own_a_mark_is_written_down_and_the_node_closed_again(phase):
    facts = replace(FACTS, slurm=replace(MARKED, reason="Action:Reboot"))
    treated = did(rec(phase), StepKind.DRAIN)
    first = moves(advance_node_recovery(treated, facts, OWN, at(1)))
    assert first.signal is NodeRecoverySignal.MARKED
    noted = treated.on(NodeRecoverySignal.MARKED, at(1), first.why, None)
    assert noted.since == treated.since, "it puts no deadline off"
    answer = does(advance_node_recovery(noted, facts, OWN, at(1)))
    assert (answer.kind, answer.attempt) == (StepKind.DRAIN, 2)
    kept = advance_node_recovery(noted, facts, ASSIST, at(1))
    assert not (isinstance(kept, StepStartDecision) and kept.kind is StepKind.DRAIN), (
        "the service reads it"
    )


def test_a_mark_that_comes_again_and_again_is_handed_to_a_person():
    treated = rec(NodeRecoveryPhase.CORDONED)
    for _ in range(2 * OWN.node.step_attempts):
        treated = did(treated, StepKind.DRAIN)
    treated = treated.on(NodeRecoverySignal.MARKED, at(1), "", None)
    answer = moves(advance_node_recovery(treated, replace(FACTS, slurm=MARKED), OWN, at(1)))
    assert answer.signal is NodeRecoverySignal.NEEDS_HUMAN
    assert "again and again" in answer.why


INVALID = slurm_node(
    1, flags=frozenset({"DRAIN", "INVALID_REG"}), reason="gres/gpu count too low (7 < 8)"
)
"""As slurmctld 23.02 and later leave a drained node whose registration they call invalid."""


@pytest.mark.parametrize("phase", [p for p in WAITING if p not in IN_TEST])
def test_slurmctlds_reason_over_ours_is_no_operators_and_is_replaced(phase):
    drained = did(rec(phase), StepKind.DRAIN)
    answer = advance_node_recovery(drained, replace(FACTS, slurm=INVALID), OWN, at(1))
    assert (answer.kind, answer.attempt) == (StepKind.DRAIN, 2)
    for _ in range(2 * OWN.node.step_attempts):
        drained = did(drained, StepKind.DRAIN)
    answer = moves(advance_node_recovery(drained, replace(FACTS, slurm=INVALID), OWN, at(1)))
    assert answer.signal is NodeRecoverySignal.NEEDS_HUMAN
    assert "again and again: gres/gpu" in answer.why


def test_a_reason_that_slurmctld_removed_is_written_again():
    """As it does when a drained node that its power saving has stopped registers."""
    nameless = replace(FACTS, slurm=replace(OURS, reason=""))
    drained = did(rec(NodeRecoveryPhase.REMEDYING), StepKind.DRAIN)
    answer = advance_node_recovery(drained, nameless, OWN, at(1))
    assert (answer.kind, answer.attempt) == (StepKind.DRAIN, 2)


POWERED_DOWN = replace(OURS, flags=frozenset({"DRAIN", "POWERED_DOWN"}))


def test_a_node_that_is_powered_down_is_not_taken_for_one_that_came_back():
    facts = replace(FACTS, slurm=POWERED_DOWN)
    answer = advance_node_recovery(rec(NodeRecoveryPhase.REJOINING), facts, OWN, at(1))
    assert isinstance(answer, WaitDecision)
    assert "POWER_UP" in answer.why


@pytest.mark.parametrize("phase", [NodeRecoveryPhase.REMEDYING, NodeRecoveryPhase.REJOINING])
def test_a_reboot_of_a_node_that_was_powered_down_since_is_not_called_in_vain(phase):
    rebooting = did(replace(rec(phase), ladder=(Remedy.REBOOT, Remedy.REPLACE)), StepKind.REBOOT)
    facts = replace(FACTS, slurm=POWERED_DOWN)
    answer = moves(
        advance_node_recovery(
            rebooting, facts, OWN, find_node_recovery_phase_deadline(rebooting, OWN)
        )
    )
    assert answer.signal is NodeRecoverySignal.DEADLINE


def test_a_verified_node_that_is_powered_down_is_given_back():
    silent = NodeAssessment(generation(), NodeCondition.UNKNOWN, at(0), why="agent-silent")
    facts = replace(FACTS, slurm=POWERED_DOWN, assessment=silent)
    assert advance_node_recovery(
        rec(NodeRecoveryPhase.VERIFYING), facts, OWN, at(1)
    ) == StepStartDecision(StepKind.RETURN, "n1", 1)


@pytest.mark.parametrize(
    "node",
    [replace(INVALID, flags=frozenset({"DRAIN"})), replace(INVALID, reason_by="ann")],
    ids=["resumed and drained by slurmctld since", "a person's words"],
)
def test_slurms_words_where_slurm_cannot_have_overwritten_ours_are_an_operators_turn(node):
    drained = did(rec(NodeRecoveryPhase.CORDONED), StepKind.DRAIN)
    answer = moves(advance_node_recovery(drained, replace(FACTS, slurm=node), OWN, at(1)))
    assert answer.signal is NodeRecoverySignal.OPERATOR_TOOK_OVER


@pytest.mark.parametrize("mode", [OWN, ASSIST])
def test_who_takes_a_mark_off_before_our_drain_keeps_the_node(mode):
    marked = Finding(CHECK, DeviceVerdict.FAIL, at(0), at(0), code="reboot")
    in_service = replace(FACTS, slurm=slurm_node(1))
    opened = rec(NodeRecoveryPhase.OPEN)
    for seen in (
        replace(opened, findings=(marked,)),
        opened.on(NodeRecoverySignal.MARKED, at(1), "", None),
    ):
        assert (
            moves(advance_node_recovery(seen, in_service, mode, at(2))).signal
            is NodeRecoverySignal.OPERATOR_TOOK_OVER
        )
    drained = advance_node_recovery(opened, in_service, mode, at(2))
    assert isinstance(drained, StepStartDecision), "nobody had closed it, so nobody resumed it"
    assert drained.kind is StepKind.DRAIN


def test_a_fail_in_other_words_is_an_operators_and_no_resume():
    other = replace(MARKED, reason="bad fan, Ann")
    drained = did(rec(NodeRecoveryPhase.CORDONED), StepKind.DRAIN)
    answer = moves(advance_node_recovery(drained, replace(FACTS, slurm=other), OWN, at(1)))
    assert answer.signal is NodeRecoverySignal.OPERATOR_TOOK_OVER
    assert "changed the Reason" in answer.why
    assert "resumed" not in answer.why


@pytest.mark.parametrize(
    ("drained", "booted", "now", "again"),
    [
        (10, 12, 14, True),
        (10.6, 10, 14, True),  # slurmctld tells whole seconds
        (10, None, 14, False),
        (14, 10, 15, False),  # drained under this very slurmctld: an operator resumed it
        (10, 200, 202, False),  # saved long before
        (10, 12, 80, False),  # an operator came after slurmctld
    ],
)
@pytest.mark.parametrize(
    "seen",
    [
        {"state": "IDLE", "reason": ""},
        # The order that set it DOWN came after slurmctld's start.
        {"state": "DOWN", "reason": format_hpctl_node_reason(BASE.id, "Xid 79")},
    ],
    ids=["in service", "down"],
)
def test_a_drain_that_slurmctld_forgot_is_made_again(drained, booted, now, again, seen):
    step = RecoveryStepRecord(StepKind.DRAIN, 1, "ip-1", at(0), Outcome.accepted(), at(drained))
    treated = replace(rec(NodeRecoveryPhase.CORDONED), steps=(step,))
    node = replace(MARKED, flags=frozenset(), **seen)
    facts = replace(FACTS, slurm=node, booted=None if booted is None else at(booted))
    answer = advance_node_recovery(treated, facts, OWN, at(now))
    if again:
        assert (answer.kind, answer.attempt) == (StepKind.DRAIN, 2)
    else:
        assert answer.signal is NodeRecoverySignal.OPERATOR_TOOK_OVER


def test_in_verifying_a_new_mark_is_a_new_fault_and_an_old_one_is_not():
    verifying = did(rec(NodeRecoveryPhase.VERIFYING), StepKind.DRAIN)
    new = replace(MARKED, reason_at=at(5), boot_time=at(0))
    assert signal_of(verifying, replace(FACTS, slurm=new), 6) is NodeRecoverySignal.FAULT_AGAIN
    old = replace(MARKED, reason_at=at(-1), boot_time=at(0))
    assert signal_of(verifying, replace(FACTS, slurm=old), 6) is NodeRecoverySignal.MARKED


def test_in_mode_assist_a_node_is_set_down_under_its_mark():
    facts = replace(FACTS, slurm=replace(MARKED, state="MIXED"), running=(slurm_job(),))
    noted = rec(NodeRecoveryPhase.OPEN).on(NodeRecoverySignal.MARKED, at(1), "", None)
    answer = moves(advance_node_recovery(noted, facts, ASSIST, at(1)))
    assert answer.signal is NodeRecoverySignal.CORDON_SEEN
    closed = noted.on(answer.signal, at(1), answer.why, None)
    down = does(
        advance_node_recovery(closed, replace(facts, movable=frozenset({1})), ASSIST, at(2))
    )
    assert (down.kind, down.reason) == (StepKind.DOWN, "Action:Replace")


def test_in_mode_assist_a_person_reads_how_to_ask_for_what_was_not_asked_for():
    left = did(rec(NodeRecoveryPhase.REMEDYING, ladder=(Remedy.REPLACE,)), StepKind.DRAIN)
    order = "scontrol update NodeName=n1 State=FAIL Reason=Action:Replace"
    late = moves(advance_node_recovery(left, FACTS, ASSIST, at(1e6)))
    assert late.signal is NodeRecoverySignal.DEADLINE
    assert order in late.why
    assert order in find_next_awaited_event(left, ASSIST).what
    assert order not in find_next_awaited_event(left, OWN).what
    assert (
        order
        not in find_next_awaited_event(
            left.on(NodeRecoverySignal.MARKED, at(1), "", None), ASSIST
        ).what
    )


@pytest.mark.parametrize(("code", "signal"), [("Replace", "replace_asked"), ("Reboot", "marked")])
def test_a_mark_that_asks_for_more_climbs_before_anything_was_done(code, signal):
    gentle = rec(
        NodeRecoveryPhase.VACATED,
        ladder=(Remedy.REBOOT, Remedy.REPLACE),
        urgency=Urgency.AFTER_JOBS,
    )
    facts = replace(FACTS, slurm=replace(MARKED, reason=f"Action:{code}"))
    answer = moves(advance_node_recovery(did(gentle, StepKind.DRAIN), facts, OWN, at(1)))
    assert answer.signal == signal
    moved = gentle.on(answer.signal, at(1), "", None)
    assert moved.urgency is Urgency.NOW
    assert moved.remedy is (Remedy.REPLACE if code == "Replace" else Remedy.REBOOT)
    rebooted = did(did(gentle, StepKind.DRAIN), StepKind.REBOOT)
    assert signal_of(rebooted, facts) is NodeRecoverySignal.MARKED, (
        "the reboot is under way: verifying tells"
    )


@pytest.mark.parametrize(("code", "climbs"), [("Replace", True), ("Reboot", False)])
def test_a_replacement_asked_for_during_the_reboot_is_ordered_unless_the_node_is_well(code, climbs):
    """Mode own drains the node again, which takes the mark off."""
    rebooting = rec(NodeRecoveryPhase.REMEDYING, ladder=(Remedy.REBOOT, Remedy.REPLACE))
    why = f"MIXED+FAIL: Action:{code}"
    noted = did(rebooting.on(NodeRecoverySignal.MARKED, at(1), why, None), StepKind.DRAIN)
    back = replace(noted, phase=NodeRecoveryPhase.VERIFYING, since=at(2))
    ill = NodeAssessment(replace(generation(), boot="b2"), NodeCondition.SUSPECT, at(2))
    back = replace(back, generation=ill.generation)
    facts = replace(FACTS, heard=ill.generation, assessment=ill)
    answer = advance_node_recovery(back, facts, OWN, at(3))
    assert isinstance(answer, RecoveryPhaseMove) == climbs
    assert isinstance(advance_node_recovery(back, facts, ASSIST, at(3)), WaitDecision), (
        "the service acts on its marks"
    )
    if isinstance(answer, RecoveryPhaseMove):
        assert back.on(answer.signal, at(3), answer.why, None).remedy is Remedy.REPLACE
    well = replace(facts, assessment=replace(ill, condition=NodeCondition.HEALTHY))
    assert isinstance(advance_node_recovery(back, well, OWN, at(1000)), StepStartDecision), (
        "it is given back"
    )

"""ACCEPTING and UNRESERVING: what is done in which order, and what each end of a test means."""

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import NodeRecoveryOpened, RequestTaken, SignalSeen, StepStarted
from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.engine.node_deadlines import find_node_recovery_phase_deadline
from hpctl.engine.test_reservation import (
    ADDED,
    choose_acceptance_test_level,
    find_acceptance_test_job_id,
    format_acceptance_test_name,
)
from hpctl.engine.view import Request
from hpctl.faults.catalogue import build_fault_rules
from hpctl.nodes import advance as node_advance
from hpctl.nodes.acceptance import command
from hpctl.nodes.acceptance.daemon import ACCEPTANCE
from hpctl.nodes.actors import NodeFacts
from hpctl.vocabulary.assessment import NodeCondition, Remedy
from hpctl.vocabulary.model import TEST_SUMMARY, DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.node_recovery import (
    TRANSITIONS,
    NodeRecovery,
    NodeRecoveryPhase,
    NodeRecoverySignal,
)
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import AcceptanceTestPolicy
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import (
    RecoveryPhaseMove,
    RecoveryStepRecord,
    StepKind,
    StepStartDecision,
    WaitDecision,
)
from tests.fakes.engine import advance_all, plan, take
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
    view_of,
)

TESTED = replace(OWN, acceptance=AcceptanceTestPolicy(replace="full", reboot="quick"))
BASE = replay_events([opened()]).nodes["n-1"]
DRAINED = slurm_node(
    1, flags=frozenset({"DRAIN"}), reason=format_hpctl_node_reason(BASE.id, "Xid 79")
)
BOOTED = generation(boot=2)


def advance(rec, facts, policy, now):
    return node_advance.advance_node_recovery(rec, facts, policy, now, ACCEPTANCE)


def step(
    kind: StepKind, target: str = "hpctl-accept-n-1-1", detail: str = ""
) -> RecoveryStepRecord:
    return RecoveryStepRecord(kind, 1, target, at(0), Outcome.accepted(detail), at(1))


DRAIN, RESUME = step(StepKind.DRAIN, "n1"), step(StepKind.RESUME, "n1")
ISOLATE, SUBMIT = step(StepKind.ISOLATE), step(StepKind.TEST, detail="17")


def in_test(*steps: RecoveryStepRecord, **changes) -> NodeRecovery:
    verifying = replace(
        BASE, phase=NodeRecoveryPhase.VERIFYING, generation=BOOTED, steps=(DRAIN, *steps)
    )
    return replace(verifying.on(NodeRecoverySignal.ACCEPTANCE_DUE, at(0), "quick"), **changes)


def facts(node=DRAINED, **changes) -> NodeFacts:
    return NodeFacts(node, heard=BOOTED, **changes)


OPEN = in_test(ISOLATE, RESUME, SUBMIT)
INSIDE = facts(slurm_node(1), held=True)


def result(
    verdict: DeviceVerdict = DeviceVerdict.OK, code: str = "", name: str = "acceptance.gemm"
) -> Finding:
    return Finding(name, verdict, at(2), at(3), "n-1-1", code, "slow" if code else "")


def with_results(*found: Finding) -> NodeFacts:
    return replace(INSIDE, results=(*found, result(name=TEST_SUMMARY)))


def job(state: str = "RUNNING", **changes):
    return slurm_job(17, state=state, nodes=("n1",), **changes)


def by_slurm(reason: str):
    return slurm_node(1, flags=frozenset({"DRAIN"}), reason=reason)


@pytest.mark.parametrize(
    ("rule", "now", "level"),
    [
        ("xid-79", generation(), ""),
        ("xid-79", BOOTED, "quick"),
        ("xid-79", generation(instance="i-new"), "full"),
        ("operator-accept-full", generation(), "full"),
        ("operator-return", generation(), ""),
    ],
)
def test_what_was_done_chooses_the_level(rule, now, level):
    assert choose_acceptance_test_level(replace(BASE, rule=rule, generation=now), TESTED) == level


def test_a_healthy_node_is_tested_before_it_serves():
    verified = replace(BASE, phase=NodeRecoveryPhase.VERIFYING, generation=BOOTED, steps=(DRAIN,))
    heard = replace(facts(), assessment=replace(faulty(), condition="healthy"))
    assert (
        moves(advance(verified, heard, TESTED, at(31))).signal is NodeRecoverySignal.ACCEPTANCE_DUE
    )
    assert does(advance(verified, heard, OWN, at(31))).kind is StepKind.RETURN


def test_the_node_is_reserved_then_resumed_then_tested():
    name = format_acceptance_test_name(in_test())
    first = advance(in_test(), facts(), TESTED, at(1))
    assert first == StepStartDecision(StepKind.ISOLATE, name, 1, nodes=("n1",))
    second = advance(in_test(ISOLATE), facts(held=True), TESTED, at(1))
    assert second == StepStartDecision(StepKind.RESUME, "n1", 1)
    third = does(advance(in_test(ISOLATE, RESUME), INSIDE, TESTED, at(1)))
    assert (third.kind, third.target, third.limit_s) == (StepKind.TEST, name, 180.0)
    assert third.command.endswith("--level quick --id n-1-1")
    deaf = replace(INSIDE, slurm=slurm_node(1, flags=frozenset({"NOT_RESPONDING"})))
    assert isinstance(advance(in_test(ISOLATE, RESUME), deaf, TESTED, at(1)), WaitDecision)
    assert find_acceptance_test_job_id(OPEN) == 17
    assert isinstance(advance(OPEN, replace(INSIDE, test=job()), TESTED, at(2)), WaitDecision)
    # The reservation is gone again: nobody submits into nothing, and the node is reserved anew.
    lost = does(advance(in_test(RESUME), facts(slurm_node(1)), TESTED, at(20)))
    assert lost.kind is StepKind.ISOLATE


def test_an_order_in_doubt_is_given_again_by_its_name():
    doubt = replace(SUBMIT, outcome=None, resolved=None)
    again = does(advance(in_test(ISOLATE, RESUME, doubt), INSIDE, TESTED, at(2)))
    assert (again.kind, again.attempt) == (StepKind.TEST, 2)


@pytest.mark.parametrize(
    ("seen", "signal"),
    [
        (with_results(result()), NodeRecoverySignal.TEST_PASSED),
        (
            with_results(result(), result(DeviceVerdict.UNKNOWN, name="acceptance.efa")),
            NodeRecoverySignal.TEST_PASSED,
        ),
        (with_results(result(DeviceVerdict.UNKNOWN)), NodeRecoverySignal.UNTESTED),
        (with_results(), NodeRecoverySignal.UNTESTED),
        (with_results(result(DeviceVerdict.FAIL)), NodeRecoverySignal.TEST_FAILED),
        (with_results(result(DeviceVerdict.FAIL, "reset")), NodeRecoverySignal.TEST_ASKS_RESET),
        (
            with_results(result(DeviceVerdict.FAIL, "reboot"), result()),
            NodeRecoverySignal.TEST_ASKS_REBOOT,
        ),
        (
            with_results(
                result(DeviceVerdict.FAIL, "reboot"), result(DeviceVerdict.FAIL, "replace")
            ),
            NodeRecoverySignal.TEST_ASKS_REPLACE,
        ),
        (replace(INSIDE, heard=generation(boot=3)), NodeRecoverySignal.TEST_FAILED),
        (replace(INSIDE, slurm=slurm_node(1, state="DOWN")), NodeRecoverySignal.TEST_FAILED),
        (
            replace(INSIDE, assessment=replace(faulty(), generation=BOOTED)),
            NodeRecoverySignal.FAULT_AGAIN,
        ),
        (replace(INSIDE, test=job("TIMEOUT", end=at(100))), NodeRecoverySignal.TEST_FAILED),
        (replace(INSIDE, test=job("NODE_FAIL", end=at(100))), NodeRecoverySignal.TEST_FAILED),
        (replace(INSIDE, test=job("CANCELLED", end=at(100))), NodeRecoverySignal.UNTESTED),
        (INSIDE, NodeRecoverySignal.UNTESTED),
        (replace(INSIDE, test=job("PENDING")), NodeRecoverySignal.UNTESTED),
        (
            facts(slurm_node(1, flags=frozenset({"DRAIN"}), reason="fan")),
            NodeRecoverySignal.OPERATOR_TOOK_OVER,
        ),
        (replace(INSIDE, slurm=by_slurm("Prolog error")), NodeRecoverySignal.TEST_FAILED),
        (
            replace(with_results(result()), slurm=by_slurm("Kill task failed")),
            NodeRecoverySignal.TEST_FAILED,
        ),
        (
            replace(
                with_results(result(DeviceVerdict.FAIL, "reboot")),
                slurm=by_slurm("gres/gpu count reported"),
            ),
            NodeRecoverySignal.TEST_ASKS_REBOOT,
        ),
    ],
)
def test_each_end_of_a_test_is_a_signal(seen, signal):
    answer = moves(advance(OPEN, seen, TESTED, at(400)))
    assert answer.signal is signal
    assert OPEN.on(answer.signal, at(400), answer.why).phase is NodeRecoveryPhase.UNRESERVING


def test_a_command_that_failed_without_a_result_is_quoted():
    said = "test: /bin/sh: 1: /opt/none: not found exit code 127"
    answer = moves(
        advance(OPEN, replace(INSIDE, test=job("FAILED", comment=said)), TESTED, at(400))
    )
    assert answer.signal is NodeRecoverySignal.UNTESTED
    assert "/opt/none: not found exit code 127; run `hpctl acceptance check`" in answer.why
    foreign = replace(INSIDE, test=job("FAILED", comment="hpctl:{}"))
    assert "has reported no result" in moves(advance(OPEN, foreign, TESTED, at(400))).why


def test_no_result_is_waited_for_and_no_running_job_is_cut_short():
    assert isinstance(
        advance(OPEN, replace(with_results(result()), test=job()), TESTED, at(5)), WaitDecision
    )
    ended = replace(INSIDE, test=job("COMPLETED", end=at(100)))
    assert isinstance(advance(OPEN, ended, TESTED, at(150)), WaitDecision)
    assert isinstance(
        advance(OPEN, replace(INSIDE, test=job("PENDING")), TESTED, at(290)), WaitDecision
    )
    late = moves(
        advance(
            OPEN,
            replace(INSIDE, test=job()),
            TESTED,
            find_node_recovery_phase_deadline(OPEN, TESTED),
        )
    )
    assert late.signal is NodeRecoverySignal.DEADLINE


@pytest.mark.parametrize("condition", [NodeCondition.SUSPECT, NodeCondition.UNKNOWN])
def test_no_result_counts_while_the_node_itself_is_in_doubt(condition):
    doubted = replace(faulty(seconds=5), generation=BOOTED, condition=condition)
    for found in (result(), result(DeviceVerdict.UNKNOWN)):
        seen = replace(with_results(found), assessment=doubted)
        assert isinstance(advance(OPEN, seen, TESTED, at(6)), WaitDecision)
        proven = replace(seen, assessment=replace(doubted, condition=NodeCondition.FAULTY))
        assert moves(advance(OPEN, proven, TESTED, at(9))).signal is NodeRecoverySignal.FAULT_AGAIN
        well = replace(seen, assessment=replace(doubted, condition=NodeCondition.HEALTHY))
        assert isinstance(advance(OPEN, well, TESTED, at(9)), RecoveryPhaseMove)


def ended(signal: NodeRecoverySignal, rec: NodeRecovery = OPEN) -> NodeRecovery:
    return rec.on(signal, at(10), "because")


@pytest.mark.parametrize(
    ("signal", "last"),
    [
        (NodeRecoverySignal.TEST_FAILED, NodeRecoverySignal.UNRESERVED),
        (NodeRecoverySignal.FAULT_AGAIN, NodeRecoverySignal.UNRESERVED),
        (NodeRecoverySignal.UNTESTED, NodeRecoverySignal.NEEDS_HUMAN),
        (NodeRecoverySignal.DEADLINE, NodeRecoverySignal.NEEDS_HUMAN),
        (NodeRecoverySignal.OPERATOR_CANCELLED, NodeRecoverySignal.OPERATOR_CANCELLED),
    ],
)
def test_a_node_that_has_not_passed_is_drained_before_anything_is_let_go(signal, last):
    rec, busy = ended(signal), replace(INSIDE, test=job())
    drain = does(advance(rec, busy, TESTED, at(11)))
    assert (drain.kind, drain.attempt) == (StepKind.DRAIN, 2)
    rec = replace(rec, steps=(*rec.steps, replace(DRAIN, attempt=2)))
    closed = replace(busy, slurm=DRAINED)
    assert does(advance(rec, closed, TESTED, at(11))).kind is StepKind.END_TEST
    idle = replace(closed, test=job("CANCELLED"))
    assert does(advance(rec, idle, TESTED, at(11))).kind is StepKind.UNRESERVE
    assert moves(advance(rec, replace(idle, held=False), TESTED, at(11))).signal is last


def test_a_job_in_doubt_is_ended_by_its_name_before_its_reservation_goes():
    doubt = replace(SUBMIT, outcome=Outcome.ambiguous("timeout"))
    rec = ended(NodeRecoverySignal.OPERATOR_CANCELLED, in_test(ISOLATE, RESUME, doubt, DRAIN))
    seen = facts(held=True)
    assert does(advance(rec, seen, TESTED, at(11))).kind is StepKind.END_TEST
    rec = replace(rec, steps=(*rec.steps, step(StepKind.END_TEST)))
    assert does(advance(rec, seen, TESTED, at(11))).kind is StepKind.UNRESERVE


def test_a_node_that_has_passed_serves_as_its_reservation_goes():
    rec = ended(NodeRecoverySignal.TEST_PASSED)
    assert does(advance(rec, INSIDE, TESTED, at(11))).kind is StepKind.UNRESERVE
    done = moves(advance(rec, replace(INSIDE, held=False), TESTED, at(11)))
    assert done.signal is NodeRecoverySignal.RETURN_SEEN
    foreign = slurm_node(1, flags=frozenset({"DRAIN"}), reason="fan")
    assert (
        moves(advance(rec, facts(foreign), TESTED, at(11))).signal
        is NodeRecoverySignal.OPERATOR_TOOK_OVER
    )


def test_a_drain_after_the_test_is_repeated_whatever_the_drains_before_it_took():
    """Until the phase's deadline: an undrained node in a reservation would be lost there."""
    rec = ended(NodeRecoverySignal.TEST_FAILED)
    before = tuple(replace(DRAIN, attempt=n) for n in range(1, 5))
    doubt = replace(DRAIN, attempt=5, outcome=None, resolved=None)
    rec = replace(rec, steps=(*before, RESUME, doubt))
    again = does(advance(rec, INSIDE, TESTED, at(11)))
    assert (again.kind, again.attempt, again.why) == (StepKind.DRAIN, 6, rec.newest_test_result[1])
    unanswered = replace(doubt, attempt=6, outcome=Outcome.ambiguous("timeout"), resolved=at(11))
    rec = replace(rec, steps=(*rec.steps[:-1], unanswered))
    assert isinstance(advance(rec, INSIDE, TESTED, at(12)), WaitDecision)
    assert does(advance(rec, INSIDE, TESTED, at(11 + TESTED.node.step_retry_s))).attempt == 7


def failed_after_all(seen: NodeFacts) -> None:
    rec = ended(NodeRecoverySignal.TEST_PASSED)
    move = moves(advance(rec, seen, TESTED, at(11)))
    assert move.signal is NodeRecoverySignal.FAULT_AGAIN
    again = rec.on(move.signal, at(11), move.why)
    assert (again.phase, again.rung) == (NodeRecoveryPhase.UNRESERVING, rec.rung + 1)
    assert does(advance(again, seen, TESTED, at(12))).kind is StepKind.DRAIN
    assert [t.result for t in command.list_recovery_tests(again)] == ["failed"]
    again = replace(again, steps=(*again.steps, replace(DRAIN, attempt=2)))
    free = replace(seen, slurm=DRAINED, held=False)
    assert moves(advance(again, free, TESTED, at(13))).signal is NodeRecoverySignal.UNRESERVED


def test_a_node_that_turns_out_faulty_before_its_reservation_goes_does_not_serve():
    failed_after_all(replace(INSIDE, assessment=replace(faulty(), generation=BOOTED)))


def test_a_node_that_slurmctld_drains_is_drained_in_our_name_before_it_is_treated():
    failed_after_all(replace(INSIDE, slurm=by_slurm("Kill task failed")))
    rec, seen = (
        ended(NodeRecoverySignal.TEST_FAILED),
        replace(INSIDE, slurm=by_slurm("Prolog error")),
    )
    assert does(advance(rec, seen, TESTED, at(11))).kind is StepKind.DRAIN


MARKED = slurm_node(1, flags=frozenset({"FAIL"}), reason="Action:Reboot")


def test_a_mark_on_a_node_that_has_passed_is_not_lost_with_its_reservation():
    rec, seen = ended(NodeRecoverySignal.TEST_PASSED), replace(INSIDE, slurm=MARKED)
    move = moves(advance(rec, seen, TESTED, at(11)))
    assert (move.signal, "Action:Reboot" in move.why) == (NodeRecoverySignal.FAULT_AGAIN, True)
    rec = rec.on(move.signal, at(11), move.why)
    move = moves(advance(rec, seen, TESTED, at(12)))
    rec = rec.on(move.signal, at(12), move.why)
    assert (move.signal, rec.phase) == (NodeRecoverySignal.MARKED, NodeRecoveryPhase.UNRESERVING)
    assert does(advance(rec, seen, TESTED, at(13))).kind is StepKind.DRAIN
    rec = replace(rec, steps=(*rec.steps, replace(DRAIN, attempt=2)))
    free = replace(seen, slurm=DRAINED, held=False)
    assert moves(advance(rec, free, TESTED, at(14))).signal is NodeRecoverySignal.UNRESERVED


def test_a_mark_on_a_node_that_serves_already_opens_a_separate_recovery():
    # Jobs may be on it by now, which only a recovery that begins anew makes room for.
    move = moves(advance(ended(NodeRecoverySignal.TEST_PASSED), facts(MARKED), TESTED, at(11)))
    assert move.signal is NodeRecoverySignal.RETURN_SEEN


@pytest.mark.parametrize("end", [("acceptance_due", "test_passed"), ()])
@pytest.mark.parametrize(("seconds", "opens"), [(13, False), (17, True), (20, True)])
def test_what_befell_a_node_while_it_was_given_back_is_new(end, seconds, opens):
    state = replay_events([opened()])
    for number, signal in enumerate(["cordon_seen", "jobs_gone", "nothing_to_remedy"], 1):
        state.fold(SignalSeen(at(number), "n-1", signal, ""))
    if not end:
        state.fold(StepStarted(at(15), "n-1", StepKind.RETURN, 1, "n1"))
    for number, signal in enumerate(end):
        state.fold(SignalSeen(at(15 + 3 * number), "n-1", signal, ""))
    state.fold(SignalSeen(at(19), "n-1", "return_seen", ""))
    view = view_of(state=state, sick=[faulty(seconds=seconds)], seconds=25)
    assert bool(plan(view, OWN, build_fault_rules(), {}, at(25)).opens) is opens


def test_a_reservation_that_does_not_go_is_asked_for_less_often_and_shows_in_the_end():
    rec, now = ended(NodeRecoverySignal.TEST_PASSED), 11.0
    refused = Outcome.rejected("busy", "its job is completing", transient=True)
    due, asked = find_node_recovery_phase_deadline(rec, TESTED), 0
    while at(now) < due:
        answer, asked = does(advance(rec, INSIDE, TESTED, at(now))), asked + 1
        tried = RecoveryStepRecord(
            answer.kind, answer.attempt, answer.target, at(now), refused, at(now)
        )
        rec = replace(rec, steps=(*rec.steps, tried))
        while at(now) < due and isinstance(advance(rec, INSIDE, TESTED, at(now)), WaitDecision):
            now += 1
    assert asked < 60
    assert answer.kind is StepKind.UNRESERVE
    assert does(advance(rec, INSIDE, TESTED, due)).kind is StepKind.DRAIN
    rec = replace(rec, steps=(*rec.steps, replace(DRAIN, attempt=2)))
    closed = replace(INSIDE, slurm=DRAINED)
    while isinstance(answer := advance(rec, closed, TESTED, due), StepStartDecision):
        tried = RecoveryStepRecord(answer.kind, answer.attempt, answer.target, due, refused, due)
        rec = replace(rec, steps=(*rec.steps, tried))
    assert moves(answer).signal is NodeRecoverySignal.DEADLINE
    # It went after all, just before anybody was called.
    assert does(advance(rec, facts(), TESTED, due)).kind is StepKind.RETURN


def test_a_node_is_let_out_of_the_reservation_that_an_earlier_test_has_left():
    state = replay_events([opened()])
    for signal in ["cordon_seen", "jobs_gone", "nothing_to_remedy", "acceptance_due"]:
        state.fold(SignalSeen(at(1), "n-1", signal, ""))
    for number, signal in enumerate(["test_passed", "deadline"]):
        state.fold(SignalSeen(at(2 + number), "n-1", signal, ""))
    state.fold(opened("n-2", seconds=9, rule="operator-return", by="eve", findings=()))
    for signal in ["cordon_seen", "jobs_gone", "nothing_to_remedy"]:
        state.fold(SignalSeen(at(10), "n-2", signal, ""))
    view = view_of(state=state, seconds=60, reservations={"hpctl-accept-n-1-1": ("n1",)})
    ours = slurm_node(1, flags=frozenset({"DRAIN"}), reason=format_hpctl_node_reason("n-2", ""))
    seen = replace(view.scheduler, nodes={**view.scheduler.nodes, "n1": ours})
    view = replace(view, scheduler=seen)
    (due,) = advance_all(view, TESTED, at(60)).due
    assert (due.recovery, due.do.kind, due.do.target) == (
        "n-2",
        StepKind.UNRESERVE,
        "hpctl-accept-n-1-1",
    )
    (due,) = advance_all(replace(view, reservations={}), TESTED, at(60)).due
    assert due.do.kind is StepKind.RETURN


def test_an_untested_node_serves_only_where_the_policy_says_so():
    lenient = replace(TESTED, acceptance=replace(TESTED.acceptance, untested="return"))
    free = replace(INSIDE, held=False)
    assert moves(advance(ended(NodeRecoverySignal.UNTESTED), free, lenient, at(11))).signal is (
        NodeRecoverySignal.RETURN_SEEN
    )


@pytest.mark.parametrize(
    ("ladder", "rung", "signal", "remedy"),
    [
        ("reboot replace", 0, NodeRecoverySignal.TEST_FAILED, "replace"),
        ("reset_gpu reboot replace", 0, NodeRecoverySignal.TEST_FAILED, "reboot"),
        ("reset_gpu reboot replace", 0, NodeRecoverySignal.TEST_ASKS_REPLACE, "replace"),
        ("reboot replace", 0, NodeRecoverySignal.TEST_ASKS_REBOOT, "replace"),
        ("replace", 0, NodeRecoverySignal.TEST_ASKS_REPLACE, "replace"),
        ("replace", 0, NodeRecoverySignal.TEST_ASKS_REBOOT, None),
        ("none ask_human", 0, NodeRecoverySignal.TEST_ASKS_REPLACE, "ask_human"),
    ],
)
def test_a_failed_test_climbs_to_what_it_asks_for(ladder, rung, signal, remedy):
    rungs = tuple(map(Remedy, ladder.split()))
    steps = (step(StepKind.REPLACE, "i-n1"),) if ladder == "replace" else ()
    rec = ended(signal, replace(in_test(*steps), ladder=rungs, rung=rung))
    assert (rec.ladder[rec.rung] if rec.rung < len(rungs) else None) == remedy
    if ladder == "replace":  # and its replacement not a third time
        rec = replace(
            rec,
            steps=(*rec.steps, step(StepKind.REPLACE, "i-2")),
            phase=NodeRecoveryPhase.ACCEPTING,
        )
        assert ended(signal, replace(rec, rung=0)).rung == 1


def test_what_a_test_found_is_kept_with_the_recovery():
    state = replay_events([opened()])
    for signal in ["cordon_seen", "jobs_gone", "nothing_to_remedy", "acceptance_due"]:
        state.fold(SignalSeen(at(1), "n-1", signal, ""))
    state.fold(SignalSeen(at(2), "n-1", "test_failed", "slow", tests=(result(DeviceVerdict.FAIL),)))
    assert [f.check for f in state.nodes["n-1"].tests] == ["acceptance.gemm"]


def asked(view, verb="accept-quick", target="n1"):
    *events, answer = take(Request(1, at(0), verb, target, "eve", "root"), view, OWN, at(0))
    assert isinstance(answer, RequestTaken)
    return answer, events


def test_an_operator_has_idle_nodes_tested_and_no_others():
    answer, (event,) = asked(view_of())
    assert isinstance(event, NodeRecoveryOpened)
    assert (answer.ok, event.rule, event.ladder) == (
        True,
        "operator-accept-quick",
        (Remedy.NONE, Remedy.ASK_HUMAN),
    )
    busy, none = asked(view_of(jobs=(slurm_job(),)))
    assert (busy.ok, none) == (False, [])
    assert "job 1 is on n1" in busy.answer
    assert "no agent" in asked(view_of(health={}))[0].answer


def test_a_test_is_not_cancelled_while_its_reservation_is_deleted():
    state = replay_events([opened()])
    for signal in ["cordon_seen", "jobs_gone", "nothing_to_remedy", "acceptance_due"]:
        state.fold(SignalSeen(at(1), "n-1", signal, ""))
    assert asked(view_of(state=state), "cancel", "n-1")[0].ok
    state.fold(SignalSeen(at(2), "n-1", "operator_cancelled", ""))
    assert not asked(view_of(state=state), "cancel", "n-1")[0].ok


@pytest.mark.parametrize(("launched", "found"), [(-60, ["n1"]), (-9000, []), (None, [])])
def test_a_new_instance_is_tested_where_it_is_asked_for(launched, found):
    view = view_of(2)
    time = None if launched is None else at(launched)
    view = replace(view, instances={"n1": replace(view.instances["n1"], launched=time)})
    tested = replace(OWN, acceptance=AcceptanceTestPolicy(add="quick"))
    for policy, wanted in ((tested, found), (OWN, [])):
        opens = plan(view, policy, build_fault_rules(), {}, at(0)).opens
        assert [e.generation.node for e in opens if e.rule == ADDED.rule] == wanted


def test_a_node_that_passes_and_is_slow_beside_its_peers_fails_its_test() -> None:
    figures = Finding(
        "acceptance.gemm", DeviceVerdict.OK, at(2), at(3), "n-1-1", evidence='{"bf16_tflops": 600}'
    )
    peers = {
        f"n-{n}": replace(
            replay_events([opened(f"n-{n}", f"n{n}")]).nodes[f"n-{n}"],
            tests=(replace(figures, evidence=f'{{"bf16_tflops": {700 + n}}}'),),
        )
        for n in range(2, 8)
    }
    for tested, slow in (
        (figures, True),
        (replace(figures, evidence='{"bf16_tflops": 695}'), False),
    ):
        found = (tested, result(name=TEST_SUMMARY))
        state = EngineState(nodes=peers | {OPEN.id: OPEN}, open_nodes={OPEN.node: OPEN.id})
        view = view_of(state=state, health={OPEN.node: NodeHealth(BOOTED, at(3), found)})
        (move,) = advance_all(view, TESTED, at(3)).moves
        assert move.signal == (
            NodeRecoverySignal.TEST_FAILED if slow else NodeRecoverySignal.TEST_PASSED
        )
        assert ("85% of the median" in move.why) is slow, move.why


STUCK = {
    NodeRecoveryPhase.ACCEPTING: NodeFacts(None, heard=generation()),
    NodeRecoveryPhase.UNRESERVING: NodeFacts(slurm_node(1), heard=generation(), held=True),
}


@pytest.mark.parametrize("phase", STUCK)
def test_every_phase_of_a_test_has_a_deadline_that_ends_it(phase):
    # The drain was tried and refused for now.
    refused = Outcome.rejected("away", transient=True)
    drain = RecoveryStepRecord(StepKind.DRAIN, 1, "n1", at(0), refused, at(1e9))
    stuck = replace(BASE, phase=phase, steps=(drain,))
    due = find_node_recovery_phase_deadline(stuck, OWN)
    last = (due - at(0)).total_seconds()
    assert last > 0
    assert advance(stuck, STUCK[phase], OWN, at(last - 1)).until <= due
    signal = NodeRecoverySignal(moves(advance(stuck, STUCK[phase], OWN, at(last))).signal)
    ends = {
        NodeRecoveryPhase.ACCEPTING: NodeRecoveryPhase.UNRESERVING,
        NodeRecoveryPhase.UNRESERVING: NodeRecoveryPhase.ESCALATED,
    }
    assert TRANSITIONS[phase, signal] is ends[phase]


@pytest.mark.parametrize(
    "node",
    [slurm_node(1), slurm_node(1, flags=frozenset({"DRAIN"}), reason="bad fan")],
    ids=["resumed", "re-reasoned"],
)
def test_an_operator_wins_over_a_test(node):
    seen = NodeFacts(node, heard=generation())
    signal = moves(
        advance(replace(BASE, phase=NodeRecoveryPhase.ACCEPTING), seen, OWN, at(1))
    ).signal
    assert signal is NodeRecoverySignal.OPERATOR_TOOK_OVER


@pytest.mark.parametrize("phase", STUCK)
def test_an_hpctl_without_tests_ends_what_one_with_tests_has_begun(phase):
    answer = moves(
        node_advance.advance_node_recovery(replace(BASE, phase=phase), STUCK[phase], OWN, at(1))
    )
    after = TRANSITIONS[phase, answer.signal]
    assert after in (NodeRecoveryPhase.UNRESERVING, NodeRecoveryPhase.ESCALATED)

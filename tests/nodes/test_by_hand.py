"""Orders by hand as rows of the one table: refusals, doubt, deletions, and what is taken back."""

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.state import replay_events
from hpctl.faults.catalogue import FaultClassOverride, build_fault_rules
from hpctl.nodes.actors import NodeFacts
from hpctl.nodes.advance import advance_node_recovery
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.cloud_facts import Instance, InstanceStatus
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, RuleId
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase, NodeRecoverySignal
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import NodeRecoveryPolicy
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import (
    RecoveryPhaseMove,
    RecoveryStepRecord,
    StepKind,
    StepStartDecision,
    WaitDecision,
)
from tests.fakes.values import OWN, at, does, generation, moves, opened, slurm_job, slurm_node

ATTENDED = replace(OWN, attended=True, node=NodeRecoveryPolicy(doubt_window_s=20.0))
BASE = replace(
    replay_events([opened()]).nodes[opened().recovery], ladder=(Remedy.REPLACE,), by="ana",
    urgency=Urgency.AFTER_JOBS,
)  # fmt: skip
OURS = slurm_node(1, flags=frozenset({"DRAIN"}), reason=format_hpctl_node_reason(BASE.id, "by ana"))
INSTANCE = Instance("i-n1", InstanceStatus.RUNNING, node=OURS.name)
FACTS = NodeFacts(OURS, INSTANCE, provider_fresh=True, provider_present=True, heard=generation())
STEPS = {
    Remedy.REPLACE: StepKind.REPLACE,
    Remedy.REBOOT: StepKind.REBOOT,
    Remedy.DELETE: StepKind.REMOVE,
}
DENIED = Outcome.rejected("AccessDeniedException", "not authorized")
IN_USE = Outcome.rejected("InstanceIdInUse", "in use", transient=True)
DOUBT = Outcome.ambiguous("InDoubt", "no reply")


def vacated(*outcomes: Outcome | None, remedy: Remedy = Remedy.REPLACE) -> NodeRecovery:
    """The recovery of an empty node, with an order for each of these outcomes, seconds apart."""
    steps = tuple(
        RecoveryStepRecord(STEPS[remedy], number, "i-n1", at(number), outcome, at(number))
        for number, outcome in enumerate(outcomes, 1)
    )
    return replace(BASE, phase=NodeRecoveryPhase.VACATED, ladder=(remedy,), steps=steps)


def ask(rec: NodeRecovery, facts: NodeFacts = FACTS, seconds: float = 2, policy=ATTENDED):
    return advance_node_recovery(rec, facts, policy, at(seconds))


@pytest.mark.parametrize("remedy", STEPS)
def test_each_remedy_is_its_order_by_instance_id(remedy):
    answer = does(ask(vacated(remedy=remedy)))
    assert (answer.kind, answer.target) == (STEPS[remedy], "i-n1")


def test_a_refusal_gives_the_node_back_and_ends_the_recovery():
    refused = vacated(DENIED)
    answer = does(ask(refused))
    assert (answer.kind, answer.target) == (StepKind.RETURN, "n1")
    given = RecoveryStepRecord(StepKind.RETURN, 1, "n1", at(2), Outcome.accepted(), at(2))
    back = replace(refused, steps=(*refused.steps, given))
    move = moves(ask(back, replace(FACTS, slurm=slurm_node(1))))
    assert move.signal is NodeRecoverySignal.WITHDRAWN
    assert "AccessDeniedException" in move.why


def test_a_dead_node_cannot_be_given_back_and_ends_the_order_all_the_same():
    dead = replace(OURS, state="DOWN", flags=frozenset({"DRAIN", "NOT_RESPONDING"}))
    move = moves(ask(vacated(DENIED), replace(FACTS, slurm=dead)))
    assert move.signal is NodeRecoverySignal.WITHDRAWN
    assert "it stays drained" in move.why


def test_the_daemon_hands_a_refusal_to_a_person_with_the_node_closed():
    assert moves(ask(vacated(DENIED), policy=OWN)).signal is NodeRecoverySignal.NEEDS_HUMAN


def test_a_node_on_which_another_operation_works_stays_closed():
    assert moves(ask(vacated(IN_USE))).signal is NodeRecoverySignal.NEEDS_HUMAN
    assert moves(ask(vacated(IN_USE), policy=OWN)).signal is NodeRecoverySignal.REMEDY_ACCEPTED


def test_in_use_after_doubt_is_the_order_that_was_in_doubt():
    assert moves(ask(vacated(DOUBT, IN_USE))).signal is NodeRecoverySignal.REMEDY_ACCEPTED


def test_a_refusal_after_doubt_gives_no_node_back():
    assert moves(ask(vacated(DOUBT, DENIED))).signal is NodeRecoverySignal.NEEDS_HUMAN


@pytest.mark.parametrize("remedy", [Remedy.REPLACE, Remedy.DELETE])
def test_an_order_in_doubt_is_sent_once_more_only(remedy):
    assert isinstance(ask(vacated(DOUBT, remedy=remedy), seconds=20), WaitDecision)
    again = does(ask(vacated(DOUBT, remedy=remedy), seconds=22))
    assert again.attempt == 2
    assert isinstance(ask(vacated(DOUBT, DOUBT, remedy=remedy), seconds=21), WaitDecision)
    move = moves(ask(vacated(DOUBT, DOUBT, remedy=remedy), seconds=23))
    assert move.signal is NodeRecoverySignal.NEEDS_HUMAN


@pytest.mark.parametrize("outcome", [DOUBT, None])
def test_a_reboot_in_doubt_is_not_repeated(outcome):
    rec = vacated(outcome, remedy=Remedy.REBOOT)
    assert isinstance(ask(rec, seconds=20), WaitDecision)
    assert moves(ask(rec, seconds=22)).signal is NodeRecoverySignal.NEEDS_HUMAN


def test_another_boot_settles_the_doubt_about_a_reboot_and_takes_no_refusal_back():
    booted = replace(FACTS, heard=NodeGeneration(OURS.name, InstanceId("i-n1"), BootId("another")))
    move = moves(ask(vacated(DOUBT, remedy=Remedy.REBOOT), booted, seconds=90))
    assert move.signal is NodeRecoverySignal.REMEDY_ACCEPTED
    refused = moves(ask(vacated(IN_USE, remedy=Remedy.REBOOT), booted))
    assert refused.signal is NodeRecoverySignal.NEEDS_HUMAN


@pytest.mark.parametrize(
    ("remedy", "status", "shows"),
    [
        (Remedy.REPLACE, InstanceStatus.SHUTTING_DOWN, True),
        (Remedy.REPLACE, InstanceStatus.PENDING, True),
        (Remedy.REPLACE, InstanceStatus.FAILURE, False),
        (Remedy.REPLACE, InstanceStatus.DETACHING, False),
        (Remedy.REBOOT, InstanceStatus.ATTACHING, False),
        (Remedy.REPLACE, InstanceStatus.UNKNOWN, False),
        (Remedy.DELETE, InstanceStatus.DETACHING, False),
        (Remedy.DELETE, InstanceStatus.SHUTTING_DOWN, True),
        (Remedy.DELETE, InstanceStatus.PENDING, False),
    ],
)
def test_what_the_instance_shows_settles_the_doubt(remedy, status, shows):
    facts = replace(FACTS, instance=replace(INSTANCE, status=status))
    answer = ask(vacated(DOUBT, remedy=remedy), facts)
    assert (
        isinstance(answer, RecoveryPhaseMove)
        and answer.signal is NodeRecoverySignal.REMEDY_ACCEPTED
    ) is shows


def test_a_deletion_ends_when_the_instance_is_no_longer_listed():
    deleting = replace(
        vacated(Outcome.accepted(), remedy=Remedy.DELETE), phase=NodeRecoveryPhase.REMEDYING
    )
    assert isinstance(ask(deleting), WaitDecision)
    assert isinstance(
        ask(deleting, replace(FACTS, instance=None, provider_fresh=False)), WaitDecision
    )
    move = moves(ask(deleting, replace(FACTS, instance=None)))
    assert deleting.on(move.signal, at(3), move.why).phase is NodeRecoveryPhase.REMOVED


def test_an_instance_that_no_list_has_is_deleted_by_an_order_all_the_same():
    """A list may leave it out for a moment: that proves no deletion before one was ordered."""
    answer = does(ask(vacated(remedy=Remedy.DELETE), replace(FACTS, instance=None)))
    assert answer.kind is StepKind.REMOVE


def test_a_node_that_was_replaced_was_not_deleted():
    other = replace(FACTS, instance=replace(INSTANCE, id="i-new"))
    ordered = vacated(Outcome.accepted(), remedy=Remedy.DELETE)
    doubtful = vacated(DOUBT, remedy=Remedy.DELETE)
    for rec in (doubtful, replace(ordered, phase=NodeRecoveryPhase.REMEDYING)):
        move = moves(ask(rec, other))
        assert move.signal is NodeRecoverySignal.NEEDS_HUMAN
        assert "i-new" in move.why


@pytest.mark.parametrize(
    "phase", [NodeRecoveryPhase.OPEN, NodeRecoveryPhase.CORDONED, NodeRecoveryPhase.VACATED]
)
def test_an_order_that_is_taken_back_gives_the_node_back(phase):
    facts = replace(FACTS, withdrawn="interrupted", running=(slurm_job(),))
    answer = ask(replace(BASE, phase=phase), facts)
    if phase is NodeRecoveryPhase.OPEN:
        assert moves(answer).signal is NodeRecoverySignal.WITHDRAWN
    else:
        assert does(answer).kind is StepKind.RETURN


def test_now_orders_first_and_sets_the_node_down_when_the_service_has_accepted():
    now = replace(BASE, phase=NodeRecoveryPhase.CORDONED, urgency=Urgency.NOW)
    busy = replace(FACTS, running=(slurm_job(requeue=False),))
    assert moves(ask(now, busy)).signal is NodeRecoverySignal.JOBS_GONE
    accepted = replace(vacated(Outcome.accepted()), urgency=Urgency.NOW)
    ordered = replace(accepted, phase=NodeRecoveryPhase.REMEDYING)
    assert does(ask(ordered, busy)).kind is StepKind.DOWN
    down = replace(busy, slurm=replace(OURS, state="DOWN"))
    assert not isinstance(ask(ordered, down), StepStartDecision)
    waits = replace(ordered, urgency=Urgency.AFTER_JOBS)
    assert not isinstance(ask(waits, busy), StepStartDecision)


def test_a_node_that_is_deleted_at_once_is_set_down_though_its_instance_is_gone():
    """Else slurmctld takes its jobs for running until SlurmdTimeout."""
    ordered = replace(vacated(Outcome.accepted(), remedy=Remedy.DELETE), urgency=Urgency.NOW)
    gone = replace(FACTS, instance=None, running=(slurm_job(),))
    for outcome in (Outcome.accepted(), DOUBT):
        rec = replace(vacated(outcome, remedy=Remedy.DELETE), urgency=Urgency.NOW)
        assert moves(ask(rec, gone)).signal is NodeRecoverySignal.REMEDY_ACCEPTED
    deleting = replace(ordered, phase=NodeRecoveryPhase.REMEDYING)
    assert does(ask(deleting, gone)).kind is StepKind.DOWN
    down = replace(gone, slurm=replace(OURS, state="DOWN"))
    assert moves(ask(deleting, down)).signal is NodeRecoverySignal.INSTANCE_GONE


@pytest.mark.parametrize("taken", [slurm_node(1), replace(OURS, reason="bob: bad cable")])
def test_who_takes_the_node_over_before_the_order_has_it_and_after_it_is_waited_for(taken):
    facts = replace(FACTS, slurm=taken, running=(slurm_job(),))
    for waiting in (replace(BASE, phase=NodeRecoveryPhase.CORDONED), vacated(DOUBT)):
        assert moves(ask(waiting, facts)).signal is NodeRecoverySignal.OPERATOR_TOOK_OVER
    ordered = replace(
        vacated(Outcome.accepted()), phase=NodeRecoveryPhase.REMEDYING, urgency=Urgency.NOW
    )
    assert isinstance(ask(ordered, facts), WaitDecision)
    accepted = moves(ask(vacated(Outcome.accepted()), facts))
    assert accepted.signal is NodeRecoverySignal.REMEDY_ACCEPTED
    assert moves(ask(ordered, facts, policy=OWN)).signal is NodeRecoverySignal.OPERATOR_TOOK_OVER


def test_a_node_that_stays_down_rejoins_when_another_slurmd_has_registered():
    fresh = NodeGeneration(OURS.name, InstanceId("i-new"), BootId("b"))
    rec = replace(vacated(Outcome.accepted()), phase=NodeRecoveryPhase.REJOINING, generation=fresh)
    there = replace(FACTS, instance=replace(INSTANCE, id="i-new"), heard=fresh)
    old = replace(there, slurm=replace(OURS, state="DOWN", slurmd_start=at(-60)))
    new = replace(there, slurm=replace(OURS, state="DOWN", slurmd_start=at(60)))
    assert isinstance(ask(rec, old, seconds=90), WaitDecision)
    assert moves(ask(rec, new, seconds=90)).signal is NodeRecoverySignal.REJOINED
    assert isinstance(ask(rec, new, seconds=90, policy=OWN), WaitDecision)


def test_no_fault_deletes_a_node():
    with pytest.raises(ValueError, match="no fault class deletes a node"):
        build_fault_rules({RuleId("xid-79"): FaultClassOverride(ladder=(Remedy.DELETE,))})

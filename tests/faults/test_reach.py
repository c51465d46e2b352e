"""Nodes out of reach: which signs there are, when they count, and what is never a fault."""

from datetime import datetime

import pytest
from msgspec.structs import replace

from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import build_fault_rules
from hpctl.faults.reachability import (
    Signs,
    add_unreachable_node_findings,
    find_node_unreachable_symptom,
    is_reachable,
)
from hpctl.vocabulary.assessment import NodeCondition
from hpctl.vocabulary.cloud_facts import Instance, InstanceStatus
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import NodeHealth
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmNode
from tests.fakes.values import T0 as NOW
from tests.fakes.values import at

RULES = build_fault_rules()
N1, N2 = "n1", "n2"
SEEN = Instance("i-1", InstanceStatus.RUNNING, node=N1)
DOWN = SlurmNode(N1, "DOWN", frozenset({"NOT_RESPONDING"}), "Not responding")


def health(name: str, heard: datetime) -> NodeHealth:
    return NodeHealth(NodeGeneration(name, "i-1", "b-1"), heard)


def judged(node, *, silent_s=1.0, lasts_s=0.0, instance=SEEN, others_heard=True):
    """What n1 amounts to after something that was seen on it has lasted for so long."""
    known = {N1: health(N1, at(-silent_s)), N2: health(N2, at(-1.0 if others_heard else -900.0))}
    view = SchedulerView(NOW, {N1: node, N2: SlurmNode(N2, "IDLE")})
    signs: Signs = {}
    for now in (at(-lasts_s), NOW):
        then = {n: replace(h, last_heard=min(h.last_heard, now)) for n, h in known.items()}
        parts, signs = add_unreachable_node_findings(then, view, {N1: instance}, RULES, now, signs)
    return assess_health(parts[N1], RULES, NOW), signs


@pytest.mark.parametrize(
    ("node", "instance", "rule"),
    [
        (DOWN, SEEN, "slurm-down"),
        (replace(DOWN, reason="Node unexpectedly rebooted"), SEEN, "slurm-rebooted"),
        (SlurmNode(N1, "IDLE"), replace(SEEN, status=InstanceStatus.FAILURE), "cloud-failed"),
    ],
)
def test_what_lasts_is_faulty_though_the_agent_is_heard(node, instance, rule):
    soon, _ = judged(node, lasts_s=30, instance=instance)
    assert soon.condition is NodeCondition.SUSPECT
    assert soon.until == at(30)
    late, _ = judged(node, lasts_s=61, instance=instance)
    assert (late.condition, late.fault.rule) == (NodeCondition.FAULTY, rule)


def test_a_silent_agent_is_unknown_and_after_minutes_a_fault():
    node = SlurmNode(N1, "ALLOCATED")
    soon, _ = judged(node, silent_s=60, lasts_s=40)
    assert soon.condition is NodeCondition.UNKNOWN
    assert soon.until is not None
    late, _ = judged(node, silent_s=130, lasts_s=101)
    assert (late.condition, late.fault.rule) == (NodeCondition.FAULTY, "agent-silent")


def test_silence_of_all_agents_says_nothing_of_the_nodes():
    found, signs = judged(SlurmNode(N1, "IDLE"), silent_s=900, lasts_s=800, others_heard=False)
    assert found.condition is NodeCondition.UNKNOWN
    assert not signs


def test_a_slurmd_that_does_not_answer_yet_is_suspect():
    found, _ = judged(SlurmNode(N1, "ALLOCATED", frozenset({"NOT_RESPONDING"})), lasts_s=900)
    assert found.condition is NodeCondition.SUSPECT
    assert "slurm-silent" in found.why


def test_slurms_own_drain_for_a_person_is_shown_and_not_treated():
    reason = "gres/gpu count reported lower than configured (7 < 8)"
    found, _ = judged(SlurmNode(N1, "IDLE", frozenset({"DRAIN"}), reason), lasts_s=900)
    assert found.condition is NodeCondition.SUSPECT
    assert "slurm-gres" in found.why


def test_slurms_own_drain_that_a_restart_cures_is_a_fault_by_slurms_own_time():
    node = SlurmNode(N1, "IDLE", frozenset({"DRAIN"}), "Kill task failed", reason_at=at(-59))
    found, _ = judged(node)
    assert (found.condition, found.until) == (NodeCondition.SUSPECT, at(1))
    found, _ = judged(replace(node, reason_at=at(-61)))
    assert (found.condition, found.fault.rule) == (NodeCondition.FAULTY, "slurm-unkillable")


def test_the_words_of_slurm_under_a_persons_account_are_a_persons():
    node = SlurmNode(N1, "IDLE", frozenset({"DRAIN"}), "Kill task failed", reason_by="ann")
    found, signs = judged(node, lasts_s=900)
    assert found.condition is NodeCondition.HEALTHY
    assert not signs


@pytest.mark.parametrize(
    "flag", ["POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "MAINT", "REBOOT_ISSUED", "DRAIN"]
)
@pytest.mark.parametrize("state", ["DOWN", "IDLE"])
def test_what_a_user_wants_is_no_fault(state, flag):
    reason = "disk swap, Ann : Not responding" if flag == "DRAIN" else ""
    node = SlurmNode(N1, state, frozenset({flag, "NOT_RESPONDING"}), reason)
    assert find_node_unreachable_symptom(node) == ""
    for silent_s in (1.0, 900.0):
        found, signs = judged(node, silent_s=silent_s, lasts_s=800)
        assert found.condition is not NodeCondition.FAULTY
        assert not signs


@pytest.mark.parametrize(
    "node",
    [
        replace(DOWN, reason="broken fan, Ann"),
        replace(DOWN, reason="hpctl:n-1 GPU fell off the bus", flags=frozenset({"DRAIN"})),
        SlurmNode(N1, "IDLE", frozenset({"PLANNED"})),
    ],
)
def test_a_node_in_an_operators_hands_is_left_alone(node):
    found, _ = judged(node, lasts_s=900)
    assert found.condition is NodeCondition.HEALTHY


WORKED_ON = sorted(set(InstanceStatus) - {InstanceStatus.RUNNING, InstanceStatus.FAILURE})


@pytest.mark.parametrize("status", WORKED_ON)
def test_an_instance_that_the_service_works_on_is_left_alone(status):
    found, _ = judged(DOWN, lasts_s=900, instance=replace(SEEN, status=status))
    assert found.condition is NodeCondition.HEALTHY
    node = SlurmNode(N1, "IDLE")
    assert is_reachable(node, SEEN)
    assert not is_reachable(node, replace(SEEN, status=status))


def test_a_look_that_remembers_nothing_goes_by_slurms_own_time():
    node = replace(DOWN, reason_at=at(-300))
    parts, _ = add_unreachable_node_findings(
        {N1: health(N1, NOW)}, SchedulerView(NOW, {N1: node}), {}, RULES, NOW
    )
    assert assess_health(parts[N1], RULES, NOW).condition is NodeCondition.FAULTY

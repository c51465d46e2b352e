"""Which of several faults opens a recovery, what goes past the gates, and what is told to wait."""

import pytest
from msgspec.structs import replace

from hpctl.engine.gates import build_recovery_gate_counts
from hpctl.engine.journal.events import Event, GateBlocked, NodeRecoveryOpened, SignalSeen
from hpctl.engine.plan import decide_candidate
from hpctl.engine.view import PlanningView, RecoveryCandidate
from hpctl.faults.catalogue import build_fault_rules
from hpctl.vocabulary.assessment import Remedy
from hpctl.vocabulary.identity import RecoveryId, RuleId
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmReservation
from tests.fakes.engine import plan
from tests.fakes.values import (
    FAULT,
    OWN,
    at,
    faulty,
    generation,
    node_name,
    opened,
    slurm_node,
    view_of,
)

RULES = build_fault_rules()
N1 = node_name(1)
CHECK = RULES.classes[RuleId("gpu-count-nvml")]
ROOMY = replace(OWN, budgets=replace(OWN.budgets, open_min=5, partition_min=5))


def open_nodes(view: PlanningView, policy: RecoveryPolicy = OWN) -> dict[str, str]:
    """Return the rules of the recoveries that a plan opens, by node."""
    decided = plan(view, policy, RULES, {}, at(0))
    found = [e for e in decided.opens if isinstance(e, NodeRecoveryOpened)]
    return {e.generation.node: e.rule for e in found}


def test_a_fault_of_a_node_s_own_opens_where_its_strongest_is_a_mass_event_s() -> None:
    """The broken check says nothing of a node, and would hide what ails one of them."""
    sick = [faulty(node_name(i), CHECK) for i in (1, 2, 3)]
    also = {RuleId("xid-63"): at(-20), RuleId("xid-79"): at(-5)}
    both = replace(sick[0], also=also)
    assert open_nodes(view_of(sick=sick), ROOMY) == {}
    assert open_nodes(view_of(sick=[both, *sick[1:]]), ROOMY) == {N1: "xid-79"}


@pytest.mark.parametrize(("ladder", "opens"), [((Remedy.AWAIT,), True), (FAULT.ladder, False)])
def test_a_full_budget_keeps_no_instance_that_goes_anyway(
    ladder: tuple[Remedy, ...], opens: bool
) -> None:
    view = view_of(log=[opened(f"n-{i}", node_name(i)) for i in range(2, 7)])
    fault = replace(FAULT, ladder=ladder)
    one = RecoveryCandidate(
        generation(), slurm_node(1), fault, at(-10), "a spot notice", heard=at(0)
    )
    decided = decide_candidate(
        one, view, build_recovery_gate_counts(view, [one], OWN, at(0)), OWN, at(0)
    )
    if opens:
        assert isinstance(decided, NodeRecoveryOpened)
        assert "drain_budget (the instance goes anyway)" in decided.passed
    else:
        assert isinstance(decided, GateBlocked)
        assert decided.approvable


@pytest.mark.parametrize(("rule", "again"), [("slurm-down", False), ("xid-79", True)])
def test_a_node_that_stays_down_overrules_no_person_who_cancelled(rule: str, again: bool) -> None:
    """Since when it is down begins again with each daemon: that is no new evidence."""
    cancel = SignalSeen(at(-60), RecoveryId("n-1"), "operator_cancelled", "eve")
    log: list[Event] = [opened(seconds=-90, rule=RuleId(rule)), cancel]
    down = RULES.classes[RuleId("slurm-down")]
    view = view_of(sick=[faulty(N1, down)], log=log)
    assert open_nodes(view) == ({N1: "slurm-down"} if again else {})


def test_a_remedy_that_waits_in_a_maintenance_window_is_reported_once() -> None:
    """The window and the mass event both hold it; an approval would not help before its end."""
    sick = [faulty(node_name(i)) for i in (1, 2, 3)]
    decided = plan(view_of(sick=sick), ROOMY, RULES, {}, at(0))
    log: list[Event] = list(decided.opens)
    nodes = {}
    for event in decided.opens:
        assert isinstance(event, NodeRecoveryOpened)
        log += [SignalSeen(at(1), event.recovery, s, "") for s in ("cordon_seen", "jobs_gone")]
        name, flags = event.generation.node, frozenset({"DRAIN"})
        reason = format_hpctl_node_reason(event.recovery, "x")
        nodes[name] = replace(slurm_node(), name=name, flags=flags, reason=reason)
    window = SlurmReservation("bios", (N1,), at(-60), at(3600), True)
    view = view_of(
        sick=sick, log=log, scheduler=SchedulerView(at(0), nodes, {}), maintenance={N1: window}
    )
    told = {(hold.target, hold.gate) for hold in plan(view, ROOMY, RULES, {}, at(2)).holds}
    assert told == {(N1, "maintenance"), ("n2", "correlated"), ("n3", "correlated")}

"""A node that an operator keeps in service with a known fault, or leaves closed, stays listed."""

import pytest
from msgspec.structs import replace

from hpctl.engine.explain_view import build_explain_view
from hpctl.engine.journal.events import GateBlocked, RequestTaken, SignalSeen
from hpctl.engine.journal.state import replay_events
from hpctl.engine.plan import find_node_recovery_candidates
from hpctl.engine.requests import process_operator_request
from hpctl.engine.status_view import choose_cluster_status_exit_code, make_cluster_status_view
from hpctl.engine.untreated import find_nodes_without_active_recovery
from hpctl.engine.view import Request
from hpctl.engine.world import World
from hpctl.faults.catalogue import build_fault_rules
from hpctl.toolkit.output import ExitCode
from hpctl.vocabulary.cloud_facts import Instance, InstanceStatus
from hpctl.vocabulary.identity import InstanceId
from hpctl.vocabulary.instance_join import InstanceNodeMapping
from hpctl.vocabulary.model import ClearCondition
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.fakes.values import OWN, at, faulty, finding, opened, slurm_node, view_of

RESUMED = [
    opened(),
    SignalSeen(at(1), "n-1", "cordon_seen", ""),
    SignalSeen(at(2), "n-1", "operator_took_over", "another user or tool resumed the node"),
]
CANCELED = [*RESUMED[:2], SignalSeen(at(2), "n-1", "operator_cancelled", "cancelled by eve")]
DRAINED = slurm_node(
    1, flags=frozenset({"DRAIN"}), reason=format_hpctl_node_reason("n-1", "Xid 79")
)
SERVES = slurm_node(1)


def world(log, node=SERVES, judged=None, **changes) -> World:
    sick = {} if judged is None else {"n1": judged}
    values = {
        "policy": OWN, "state": replay_events(log), "slurm": SchedulerView(at(9), {"n1": node}),
        "assessments": sick, "candidates": (), **changes,
    }  # fmt: skip
    return World(at(10), **values)


@pytest.mark.parametrize(
    ("log", "node", "how"),
    [
        (RESUMED, SERVES, "in service"),
        (RESUMED, slurm_node(1, flags=frozenset({"DRAIN"}), reason="bad fan"), "'bad fan'"),
        (CANCELED, DRAINED, "out of service"),
        (CANCELED, SERVES, "in service"),
    ],
)
def test_a_faulty_node_that_nothing_treats_is_a_problem(log, node, how):
    view = make_cluster_status_view(world(log, node, faulty()))
    (line,) = [p for p in view.problems if p.startswith("n1 ")]
    assert how in line
    assert "Xid 79 on 0000:3b:00" in line
    assert line.endswith("hpctl explain n1")
    assert choose_cluster_status_exit_code(view) is ExitCode.PROBLEM


@pytest.mark.parametrize("status", [InstanceStatus.PENDING, InstanceStatus.SYSTEM_UPDATING])
@pytest.mark.parametrize(
    ("log", "node"),
    [(RESUMED, slurm_node(1, flags=frozenset({"DRAIN"}), reason="bad fan")), (CANCELED, DRAINED)],
    ids=["drained by an admin", "left drained by a canceled recovery"],
)
def test_no_person_is_asked_to_replace_a_node_that_is_being_replaced(log, node, status):
    instances = {node.name: Instance(InstanceId("i-2"), status, node=node.name)}
    view = make_cluster_status_view(
        world(log, node, faulty(), joined=InstanceNodeMapping(instances))
    )
    assert view.person_tasks == ()
    (line,) = view.problems
    assert "`hpctl replace" not in line
    assert f"HyperPod, which calls its instance i-2 {status}" in line
    (row,) = view.out_of_service
    assert row.by == "hyperpod"
    running = {node.name: replace(instances[node.name], status=InstanceStatus.RUNNING)}
    view = make_cluster_status_view(world(log, node, faulty(), joined=InstanceNodeMapping(running)))
    assert "hpctl replace n1" in view.person_tasks[0].commands


def test_a_node_left_drained_by_a_canceled_recovery_is_a_problem_though_no_fault_is_known():
    (line,) = make_cluster_status_view(world(CANCELED, DRAINED)).problems
    assert "out of service" in line
    assert "cancelled by eve" in line


def test_untreated_omits_healthy_nodes_and_drains_of_other_users():
    assert make_cluster_status_view(world(RESUMED)).problems == ()
    theirs = slurm_node(1, flags=frozenset({"DRAIN"}), reason="bad fan")
    assert make_cluster_status_view(world(RESUMED, theirs)).problems == ()


def test_treated_or_blocked_node_is_listed_once():
    assert find_nodes_without_active_recovery(world(RESUMED[:2], DRAINED, faulty())) == []
    hold = GateBlocked(at(5), "n1", "budget", "2 recoveries are open", "xid-79", True)
    problems = make_cluster_status_view(world([*RESUMED, hold], SERVES, faulty())).problems
    assert len(problems) == 1


def test_a_hold_is_shown_with_the_reason_of_the_last_cycle():
    hold = GateBlocked(at(5), "n1", "drain_budget", "4 nodes are closed", "xid-79", True)
    now = replace(hold, at=at(9), why="3 nodes are closed")
    (shown,) = make_cluster_status_view(
        world([*RESUMED, hold], SERVES, faulty(), holds=(now,))
    ).holds
    assert (shown.since, shown.why) == (at(5), "3 nodes are closed")


def test_an_escalated_node_waits_for_a_person_and_is_listed_once():
    log = [*RESUMED[:2], SignalSeen(at(2), "n-1", "needs_human", "ask_human")]
    assert len(make_cluster_status_view(world(log, DRAINED, faulty())).problems) == 1


def test_explain_says_by_whose_act_since_when_and_what_ends_it():
    view = build_explain_view(world(RESUMED, SERVES, faulty()), build_fault_rules(), "n1")
    assert view.headline.startswith("n1 is in service with a fault known since 2026-03-01 11:59:50")
    assert "another user or tool resumed the node" in view.headline
    assert "`hpctl replace n1`" in view.next.what
    assert "`hpctl undrain n1`, which accepts the fault" in view.next.what
    assert "new evidence" in view.next.what


def test_explain_names_what_clears_the_fault():
    gone = replace(faulty(), findings=(replace(finding(), clears=ClearCondition.GONE),))
    view = build_explain_view(world(RESUMED, SERVES, gone), build_fault_rules(), "n1")
    assert view.next.what.startswith("its check to pass")
    view = build_explain_view(world(RESUMED, SERVES, faulty()), build_fault_rules(), "n1")
    assert view.next.what.startswith("a restart of its instance")


def test_explain_of_a_node_that_stays_drained_names_its_return():
    view = build_explain_view(world(CANCELED, DRAINED), build_fault_rules(), "n-1")
    assert view.next.what.startswith("a person to run `hpctl undrain n1`")


def asked(log, node=SERVES, sick=()):
    shown = view_of(log=log, sick=sick, scheduler=SchedulerView(at(0), {"n1": node}))
    *events, answer = process_operator_request(
        Request(1, at(3), "return", "n1", "eve", "a test"), shown, OWN, at(3)
    )
    return events, answer


def test_hpctl_return_of_a_node_in_service_accepts_its_known_fault_and_drains_nothing():
    events, answer = asked(RESUMED, sick=[faulty()])
    assert (events, answer.ok) == ([], True)
    accepted = world([*RESUMED, answer], SERVES, faulty())
    assert make_cluster_status_view(accepted).problems == ()
    again = faulty(seconds=20)
    assert make_cluster_status_view(world([*RESUMED, answer], SERVES, again)).problems


def test_hpctl_return_of_a_healthy_node_in_service_is_refused_as_ever():
    events, answer = asked(RESUMED)
    assert (events, answer.ok) == ([], False)


@pytest.mark.parametrize(("seconds", "treated"), [(-10, False), (2.5, True)])
def test_only_evidence_after_the_resume_opens_another_recovery(seconds, treated):
    view = view_of(log=RESUMED, sick=[faulty(seconds=seconds)], seconds=10)
    found, _ = find_node_recovery_candidates(view, build_fault_rules(), at(10))
    assert bool(found) is treated


def test_an_acceptance_is_replayed():
    answer = RequestTaken(at(3), 1, "return", "n1", "eve", "", True, "a test")
    assert replay_events([*RESUMED, answer]).returned == {"n1": at(3)}

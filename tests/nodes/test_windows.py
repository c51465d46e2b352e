"""Maintenance windows, decided: which are taken, what an open one does, which nodes are closed."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from hpctl.engine.gates import build_recovery_gate_counts
from hpctl.engine.journal.events import (
    GateBlocked,
    NodeRecoveryOpened,
    SignalSeen,
    StepResolved,
    StepStarted,
)
from hpctl.engine.journal.state import replay_events
from hpctl.engine.maintenance_times import (
    END_LEAD_S,
    find_nodes_of_due_maintenance_windows,
    get_maintenance_window_lead_s,
)
from hpctl.engine.plan import plan_recoveries
from hpctl.engine.requests import process_operator_request
from hpctl.engine.test_reservation import choose_acceptance_test_level
from hpctl.engine.view import PlanningView, Request
from hpctl.faults.catalogue import build_fault_rules
from hpctl.jobs.plan_hits import plan_fault_affected_job_recoveries
from hpctl.nodes.actors import NodeFacts
from hpctl.nodes.advance import advance_node_recovery
from hpctl.nodes.windows.decide import (
    CLOSE_S,
    OVER,
    advance_window,
    find_window_candidates,
    make_admin_reservation_windows,
)
from hpctl.nodes.windows.jobs_ahead import find_jobs_on_window_nodes
from hpctl.nodes.windows.kind import WINDOWS
from hpctl.nodes.windows.requests import ADD, END, PREFIX, add_window, end_window, find_window
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition, Remedy, Urgency
from hpctl.vocabulary.change import (
    ChangeKind,
    ChangeOpened,
    ClusterChange,
    ClusterChangePhase,
    ClusterChangeSignal,
)
from hpctl.vocabulary.identity import BootId
from hpctl.vocabulary.node_recovery import (
    MAINTENANCE_BEGINS,
    MAINTENANCE_OVER,
    NodeRecoveryPhase,
    NodeRecoverySignal,
)
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import AcceptanceTestPolicy, OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import (
    Next,
    RecoveryPhaseMove,
    StepKind,
    StepStartDecision,
    WaitDecision,
)
from hpctl.vocabulary.slurm_facts import SlurmReservation
from tests.fakes.values import (
    OWN,
    at,
    attempt,
    faulty,
    generation,
    opened,
    slurm_job,
    slurm_node,
    view_of,
)

HOUR = 3600.0
NAME = f"{PREFIX}1"
LEAD = get_maintenance_window_lead_s(OWN)
WINDOW = ChangeOpened(
    at(-HOUR), "m-1", ChangeKind.MAINTENANCE, NAME, "cables", nodes=("n1", "n2"), start=at(0),
    end=at(HOUR), by="ana",
)  # fmt: skip
HELD = SlurmReservation(NAME, ("n1", "n2"), at(0), at(HOUR), True)
HERS = SlurmReservation("bios", ("n1", "n2"), at(0), at(HOUR), True)


def seen(*signals: ClusterChangeSignal, seconds: float = -HOUR) -> list[SignalSeen]:
    return [SignalSeen(at(seconds), "m-1", signal, "seen") for signal in signals]


RESERVED = [WINDOW, *seen(ClusterChangeSignal.RESERVED)]
BEGUN = [*RESERVED, *seen(ClusterChangeSignal.BEGAN, seconds=0)]
OVER_AT = 1800.0
ENDED = [*BEGUN, *seen(ClusterChangeSignal.GONE, seconds=OVER_AT)]


def moves(rid: str, *signals: NodeRecoverySignal, start: float) -> list[SignalSeen]:
    """The signals of a node's recovery, a tenth of a second apart."""
    return [SignalSeen(at(start + i / 10), rid, s, "seen") for i, s in enumerate(signals)]


def world(log, *reservations: SlurmReservation, seconds: float = 0, **changes: Any) -> PlanningView:
    view = view_of(log=log, seconds=seconds, **changes)
    now = at(seconds)
    held = {
        n: r
        for r in reservations
        for n in r.nodes
        if r.start is not None and r.end is not None and r.start <= now < r.end
    }
    listed = {r.name: r for r in reservations}
    return replace(
        view, scheduler=replace(view.scheduler, reservations=listed), begun=held, maintenance=held
    )


def step(
    log, *reservations: SlurmReservation, seconds: float, policy: RecoveryPolicy = OWN
) -> Next:
    view = world(log, *reservations, seconds=seconds)
    return advance_window(view.state.changes["m-1"], view, policy, at(seconds))


def signal_of(answer: Next) -> str:
    assert isinstance(answer, RecoveryPhaseMove), answer
    return str(answer.signal)


def test_a_window_is_journaled_first_and_reserved_then():
    answer = step([WINDOW], seconds=-HOUR)
    assert isinstance(answer, StepStartDecision)
    assert (answer.kind, answer.target, answer.nodes) == (StepKind.MAINTAIN, NAME, WINDOW.nodes)
    assert (answer.start, answer.end) == (at(0), at(HOUR))


@pytest.mark.parametrize(
    ("log", "reservations", "seconds", "signal"),
    [
        ([WINDOW], [HELD], -HOUR, ClusterChangeSignal.RESERVED),
        ([WINDOW], [], HOUR, ClusterChangeSignal.DEADLINE),
        (RESERVED, [HELD], 0, ClusterChangeSignal.BEGAN),
        (RESERVED, [], -5, ClusterChangeSignal.GONE),
        (RESERVED, [], 2 * HOUR, ClusterChangeSignal.BEGAN),
        (RESERVED, [replace(HELD, end=at(2 * HOUR))], -5, ClusterChangeSignal.CHANGED),
        (RESERVED, [replace(HELD, start=at(60))], -5, ClusterChangeSignal.CHANGED),
        (BEGUN, [replace(HELD, nodes=("n1",))], 5, ClusterChangeSignal.CHANGED),
        (BEGUN, [replace(HELD, maintenance=False)], 5, ClusterChangeSignal.GONE),
        (BEGUN, [], 5, ClusterChangeSignal.GONE),
        (BEGUN, [HELD], HOUR, ClusterChangeSignal.GONE),
        (
            [*BEGUN, *seen(ClusterChangeSignal.END_ASKED, seconds=5)],
            [],
            6,
            ClusterChangeSignal.GONE,
        ),
    ],
)
def test_a_window_follows_its_reservation(log, reservations, seconds, signal):
    assert signal_of(step(log, *reservations, seconds=seconds)) == signal


@pytest.mark.parametrize("seconds", [1, HOUR / 2, HOUR - END_LEAD_S - 1])
def test_a_window_whose_reservation_was_deleted_while_no_daemon_ran_has_not_begun(seconds):
    gone = step(RESERVED, seconds=seconds)
    assert isinstance(gone, RecoveryPhaseMove)
    assert (gone.signal, gone.why) == (
        ClusterChangeSignal.GONE,
        "its reservation was deleted while no daemon ran",
    )
    log = [*RESERVED, *seen(ClusterChangeSignal.GONE, seconds=seconds)]
    assert change(log).phase is ClusterChangePhase.CANCELLED
    assert due(log, seconds=seconds + 1) == {}


@pytest.mark.parametrize("seconds", [HOUR - END_LEAD_S, HOUR, 2 * HOUR])
def test_a_window_that_came_to_its_end_while_no_daemon_ran_has_begun(seconds):
    assert signal_of(step(RESERVED, seconds=seconds)) == ClusterChangeSignal.BEGAN


@pytest.mark.parametrize("log", [RESERVED, BEGUN])
def test_a_window_waits_for_its_next_time(log):
    answer = step(log, HELD, seconds=-LEAD - 9 if log is RESERVED else 5)
    assert isinstance(answer, WaitDecision)
    assert answer.until == (at(-LEAD) if log is RESERVED else at(HOUR - END_LEAD_S))


def test_nothing_moves_while_the_reservations_were_not_read():
    view = world(BEGUN, seconds=5)
    view = replace(view, scheduler=replace(view.scheduler, reservations=None))
    assert isinstance(advance_window(view.state.changes["m-1"], view, OWN, at(5)), WaitDecision)


def test_a_reservation_that_slurmctld_refuses_fails_the_window_with_its_words():
    refused = Outcome.rejected("ESLURM_ACCESS_DENIED", "Access/permission denied")
    log = [
        WINDOW,
        StepStarted(at(-HOUR), "m-1", StepKind.MAINTAIN, 1, NAME),
        StepResolved(at(-HOUR), "m-1", StepKind.MAINTAIN, 1, refused),
    ]
    answer = step(log, seconds=-HOUR + 60)
    assert isinstance(answer, RecoveryPhaseMove)
    assert answer.signal is ClusterChangeSignal.REFUSED
    assert "Access/permission denied" in answer.why


ENDING = [*BEGUN, *seen(ClusterChangeSignal.END_ASKED, seconds=5)]


def test_an_end_that_was_asked_for_deletes_the_reservation_once_the_nodes_are_closed():
    assert isinstance(step(ENDING, HELD, seconds=6), WaitDecision)
    view = world(ENDING, HELD, seconds=6)
    drained = {n: slurm_node(i, flags=frozenset({"DRAIN"})) for i, n in ((1, "n1"), (2, "n2"))}
    nodes = {**view.scheduler.nodes, **drained}
    view = replace(view, scheduler=replace(view.scheduler, nodes=nodes))
    late = step(ENDING, HELD, seconds=5 + CLOSE_S)
    for answer in (advance_window(view.state.changes["m-1"], view, OWN, at(6)), late):
        assert isinstance(answer, StepStartDecision)
        assert (answer.kind, answer.target) == (StepKind.UNRESERVE, NAME)


def followed(
    view: PlanningView, seconds: float, policy: RecoveryPolicy = OWN
) -> list[ChangeOpened]:
    return list(make_admin_reservation_windows(view, policy, at(seconds)))


def test_an_admins_reservation_is_followed_once_it_has_begun():
    assert followed(world([], HERS, seconds=-1), -1) == []
    (window,) = followed(world([], HERS, seconds=1), 1)
    assert (window.group, window.own, window.nodes, window.by) == ("bios", False, HERS.nodes, "")
    assert (window.start, window.end) == (HERS.start, HERS.end)
    assert followed(world([window], HERS, seconds=2), 2) == []
    assert followed(world([], HERS, seconds=1), 1, RecoveryPolicy(mode=OperatingMode.OBSERVE)) == []


@pytest.mark.parametrize("name", ["hpctl-spares-workers", "hpctl-accept-n-1-1"])
def test_hpctls_own_reservations_are_no_windows(name):
    assert followed(world([], replace(HERS, name=name), seconds=1), 1) == []


@pytest.mark.parametrize("log", [RESERVED, BEGUN])
def test_a_window_that_an_admin_changes_keeps_its_name_and_reason(log):
    changed = [*log, *seen(ClusterChangeSignal.CHANGED, seconds=5)]
    later = replace(HELD, start=at(60), end=at(2 * HOUR), nodes=("n2", "n3"))
    (window,) = followed(world(changed, later, seconds=6), 6)
    assert (window.group, window.own, window.by, window.why) == (NAME, True, "ana", "cables")
    assert (window.nodes, window.end, window.cause) == (("n2", "n3"), at(2 * HOUR), "m-1")
    state = replay_events([*changed, window])
    assert find_window("m-1", state) == state.changes[window.recovery]


def due(log, *reservations: SlurmReservation, seconds: float, **changes: Any) -> dict[str, str]:
    view = world(log, *reservations, seconds=seconds, **changes)
    treated = set(view.state.open_nodes)
    found = find_window_candidates(view, OWN, treated, at(seconds))
    return {str(c.node.name): str(c.fault.rule) for c in found}


BOTH_BEGIN = {"n1": MAINTENANCE_BEGINS, "n2": MAINTENANCE_BEGINS}
BOTH_OVER = {"n1": MAINTENANCE_OVER, "n2": MAINTENANCE_OVER}


@pytest.mark.parametrize(
    ("log", "seconds", "found"),
    [
        (RESERVED, -LEAD - 1, {}), (RESERVED, -LEAD, BOTH_BEGIN), (RESERVED, -1, BOTH_BEGIN),
        (RESERVED, 1, {}), (BEGUN, 1, {}), (BEGUN, HOUR - END_LEAD_S - 1, {}),
        (BEGUN, HOUR - END_LEAD_S, BOTH_OVER), (ENDED, OVER_AT, BOTH_OVER),
        (ENDED, OVER_AT + 86399, BOTH_OVER), (ENDED, OVER_AT + 86401, {}),
    ],
)  # fmt: skip
def test_nodes_are_closed_before_a_window_and_before_its_end(log, seconds, found):
    held = [] if log is ENDED else [HELD]
    assert due(log, *held, seconds=seconds) == found


def test_a_window_that_ended_before_it_began_closes_no_node():
    log = [*RESERVED, *seen(ClusterChangeSignal.END_ASKED, ClusterChangeSignal.GONE, seconds=-60)]
    assert due(log, seconds=-59) == {}


def test_nodes_of_a_window_that_an_admin_extends_stay_open_until_its_new_end():
    """An admin may try them with jobs in the reservation."""
    longer = replace(HELD, end=at(3 * HOUR), nodes=("n2",))
    log = [*BEGUN, *seen(ClusterChangeSignal.CHANGED, seconds=100)]
    assert due(log, longer, seconds=100) == {"n1": MAINTENANCE_OVER}
    log += followed(world(log, longer, seconds=100), 100)
    log += [SignalSeen(at(101), log[-1].recovery, s, "seen") for s in ("reserved", "began")]
    assert due(log, longer, seconds=102) == {"n1": MAINTENANCE_OVER}
    assert due(log, longer, seconds=3 * HOUR - END_LEAD_S) == BOTH_OVER
    assert due(log, seconds=3 * HOUR + 1) == BOTH_OVER


def test_no_room_is_made_for_an_admins_own_reservation_nor_twice():
    hers = [replace(WINDOW, own=False), *seen(ClusterChangeSignal.RESERVED)]
    assert due(hers, HELD, seconds=-1) == {}
    asked = opened("n-9", "n1", -LEAD, rule=MAINTENANCE_BEGINS, by="ana")
    resumed = moves("n-9", NodeRecoverySignal.OPERATOR_TOOK_OVER, start=-50)
    assert due([*RESERVED, asked, *resumed], HELD, seconds=-1) == {"n2": MAINTENANCE_BEGINS}


def test_a_node_that_a_recovery_treats_is_left_to_it():
    assert due([*RESERVED, opened("n-9", "n1", -60)], HELD, seconds=-1) == {
        "n2": MAINTENANCE_BEGINS
    }
    assert due([*ENDED, opened("n-9", "n1", 60)], seconds=OVER_AT) == {"n2": MAINTENANCE_OVER}


def test_a_node_on_which_a_job_ran_through_the_window_is_left_to_it():
    job = slurm_job(7, nodes=("n1",), start=at(-60))
    assert due(ENDED, seconds=OVER_AT, jobs=[job]) == {"n2": MAINTENANCE_OVER}
    test = slurm_job(7, nodes=("n1",), start=at(60))
    assert due(ENDED, seconds=OVER_AT, jobs=[test]) == BOTH_OVER


def test_a_node_that_another_window_holds_is_verified_after_that():
    assert due(ENDED, replace(HERS, nodes=("n1",)), seconds=OVER_AT) == {"n2": MAINTENANCE_OVER}


def test_a_verified_node_is_not_verified_again():
    log = [
        *ENDED,
        opened("n-9", "n1", OVER_AT, rule=MAINTENANCE_OVER, ladder=OVER.ladder, by="ana"),
        *moves(
            "n-9",
            NodeRecoverySignal.CORDON_SEEN,
            NodeRecoverySignal.JOBS_GONE,
            NodeRecoverySignal.NOTHING_TO_REMEDY,
            NodeRecoverySignal.RETURN_SEEN,
            start=OVER_AT + 1,
        ),
    ]
    assert due(log, seconds=OVER_AT + 60) == {"n2": MAINTENANCE_OVER}


def opens(
    view: PlanningView, seconds: float, policy: RecoveryPolicy = OWN
) -> list[NodeRecoveryOpened]:
    made = plan_recoveries(view, policy, build_fault_rules(), {}, at(seconds), (WINDOWS,))
    return [o for o in made.opens if isinstance(o, NodeRecoveryOpened)]


def test_the_end_of_a_window_of_the_whole_cluster_is_held_by_no_budget():
    names = tuple(f"n{i}" for i in range(1, 9))
    log = [replace(WINDOW, nodes=names), *ENDED[1:]]
    found = opens(world(log, seconds=OVER_AT), OVER_AT)
    assert sorted(str(o.generation.node) for o in found) == list(names)
    assert {o.by for o in found} == {"ana"}


def test_nodes_that_a_window_closes_use_up_no_budget():
    log = [opened("n-9", "n1", 0, rule=MAINTENANCE_BEGINS, by="ana"), opened("n-8", "n2", 0)]
    assert build_recovery_gate_counts(view_of(log=log), (), OWN, at(0)).open == 1


def test_a_faulty_node_is_closed_before_its_window_ends_so_that_no_job_comes_between():
    view = world(BEGUN, HELD, seconds=HOUR - 30, sick=[faulty()])
    assert {str(o.generation.node) for o in opens(view, HOUR - 30)} == {"n1", "n2"}
    view = world(ENDED, seconds=OVER_AT, sick=[faulty()])
    found = {str(o.generation.node): o.rule for o in opens(view, OVER_AT)}
    assert found == {"n1": "xid-79", "n2": MAINTENANCE_OVER}, "its own recovery, and one alone"


def test_a_paused_node_is_held():
    paused = Request(1, at(0), "pause", "", "bo", "root", '{"nodes":"n1"}')
    log = [*ENDED, *process_operator_request(paused, view_of(), OWN, at(0))]
    made = plan_recoveries(
        world(log, seconds=OVER_AT), OWN, build_fault_rules(), {}, at(OVER_AT), (WINDOWS,)
    )
    assert [h.gate for h in made.holds if isinstance(h, GateBlocked)] == ["paused"]


REC = opened(
    "n-9", "n1", -60, rule=MAINTENANCE_BEGINS, ladder=(Remedy.NONE, Remedy.ASK_HUMAN), by="ana",
    urgency=Urgency.NOW,
)  # fmt: skip
OURS = slurm_node(
    1, flags=frozenset({"DRAIN"}), reason=format_hpctl_node_reason("n-9", "a window begins")
)
FACTS = NodeFacts(OURS, provider_fresh=True, heard=generation())
DRAINED = [REC, *moves("n-9", NodeRecoverySignal.CORDON_SEEN, start=-59)]
IN_WINDOW = [*DRAINED, *moves("n-9", NodeRecoverySignal.MAINTENANCE_BEGAN, start=0)]


def treated(log, seconds: float, **facts: Any) -> Next:
    rec = replay_events(log).nodes["n-9"]
    return advance_node_recovery(rec, replace(FACTS, **facts), OWN, at(seconds))


def test_a_vacated_node_waits_for_its_window_and_is_never_set_down():
    job = slurm_job(7, nodes=("n1",))
    assert isinstance(treated(DRAINED, -50, running=(job,), begins=at(0)), WaitDecision)
    waits = treated(DRAINED, -50, begins=at(0))
    assert isinstance(waits, WaitDecision)
    assert waits.until == at(0)
    assert signal_of(treated(DRAINED, -50)) == NodeRecoverySignal.JOBS_GONE, (
        "the window was deleted"
    )


def test_within_the_window_nothing_is_done_and_a_resume_by_an_admin_is_seen():
    held = {"maintenance": "the window holds the node"}
    assert signal_of(treated(DRAINED, 1, **held)) == NodeRecoverySignal.MAINTENANCE_BEGAN
    assert isinstance(treated(IN_WINDOW, 2, **held), WaitDecision)
    taken = treated(IN_WINDOW, 2, slurm=slurm_node(1), **held)
    assert signal_of(taken) == NodeRecoverySignal.OPERATOR_TOOK_OVER


def test_the_node_is_drained_in_the_window_shortly_before_its_end():
    began = [REC, *moves("n-9", NodeRecoverySignal.MAINTENANCE_BEGAN, start=0)]
    answer = treated(began, 2, slurm=slurm_node(1), maintenance="the window holds the node")
    assert isinstance(answer, StepStartDecision)
    assert answer.kind is StepKind.DRAIN


AFTER = [
    *IN_WINDOW,
    *moves(
        "n-9", NodeRecoverySignal.MAINTENANCE_ENDED, NodeRecoverySignal.JOBS_GONE, start=HOUR,
    ),
]  # fmt: skip
VERIFYING = [*AFTER, *moves("n-9", NodeRecoverySignal.NOTHING_TO_REMEDY, start=HOUR + 2)]
HEALTHY = NodeAssessment(generation(), NodeCondition.HEALTHY, at(0))
SICK = faulty(seconds=30)


def test_a_boot_in_the_window_is_taken_over():
    booted = replace(generation(), boot=BootId("another"))
    for log in (AFTER, VERIFYING):
        answer = treated(log, HOUR + 5, heard=booted, assessment=HEALTHY)
        assert signal_of(answer) == NodeRecoverySignal.NEW_GENERATION_SEEN


def test_a_healthy_node_is_returned_and_a_faulty_one_handed_to_its_own_recovery():
    healthy = treated(VERIFYING, HOUR + 9999, assessment=HEALTHY)
    assert isinstance(healthy, StepStartDecision)
    assert healthy.kind is StepKind.RETURN
    assert (
        signal_of(treated(VERIFYING, HOUR + 5, assessment=SICK)) == NodeRecoverySignal.FAULT_FOUND
    )
    log = [*VERIFYING, *moves("n-9", NodeRecoverySignal.FAULT_FOUND, start=HOUR + 5)]
    rec = replay_events(log).nodes["n-9"]
    assert (rec.phase, rec.withdrawn) == (NodeRecoveryPhase.CANCELLED, True)
    view = view_of(log=log, sick=[SICK], seconds=HOUR + 6)
    nodes = {**view.scheduler.nodes, "n1": OURS}
    view = replace(view, scheduler=replace(view.scheduler, nodes=nodes))
    assert [o.rule for o in opens(view, HOUR + 6)] == ["xid-79"]


@pytest.mark.parametrize(
    ("boot", "levels", "level"),
    [
        ("boot-n1", {"returned": "quick"}, "quick"), ("boot-n1", {"reboot": "full"}, ""),
        ("another", {"reboot": "full"}, "full"), ("another", {"returned": "quick"}, "quick"),
    ],
)  # fmt: skip
def test_the_node_is_tested_as_a_returned_or_rebooted_one(boot, levels, level):
    rec = replay_events([REC]).nodes["n-9"]
    if boot == "another":
        rec = replace(rec, generation=replace(rec.generation, boot=BootId(boot)))
    command = ("run",)
    policy = RecoveryPolicy(acceptance=AcceptanceTestPolicy(command=command, **levels))
    assert choose_acceptance_test_level(rec, policy) == level


def test_jobs_are_saved_and_requeued_but_their_restarts_are_not_counted():
    comment = 'hpctl:{"save_signal":"USR1"}'
    job = slurm_job(1, comment=comment)
    view = view_of(jobs=[job], log=DRAINED)
    (decided,), _ = plan_fault_affected_job_recoveries(view, OWN, {"n1": [job]}, at(-50))
    assert (decided.save_signal, decided.supervised, decided.over_budget) == ("USR1", False, "")
    assert decided.attempt == attempt()
    view = view_of(jobs=[job], log=IN_WINDOW)
    assert plan_fault_affected_job_recoveries(view, OWN, {"n1": [job]}, at(5))[0] == []


def asked(**changes: Any) -> Request:
    detail = {
        "start": "2026-03-01T13:00:00Z", "end": "2026-03-01T14:00:00Z", "why": "cables",
        "nodes": "n[1-2]", **changes,
    }  # fmt: skip
    return Request(1, at(0), ADD, "", "ana", "root", json.dumps(detail))


def test_a_window_is_taken():
    ok, answer, (window,) = add_window(asked(), world([]), OWN, at(0))
    assert ok
    assert isinstance(window, ChangeOpened)
    assert window.group == PREFIX + window.recovery.removeprefix("m-")
    assert (window.nodes, window.by, window.why) == (("n1", "n2"), "ana", "cables")
    assert (window.start, window.end) == (at(HOUR), at(2 * HOUR))
    assert answer.split()[0] == window.group
    ok, _, (every,) = add_window(asked(nodes="", every=True), world([]), OWN, at(0))
    assert len(every.nodes) == 8
    ok, _, (part,) = add_window(asked(nodes="", partition="all"), world([]), OWN, at(0))
    assert part.nodes == every.nodes


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"end": "2026-03-01T11:00:00Z"}, "is past"),
        ({"start": "2026-03-01T11:00:00Z"}, "is past"),
        (
            {"end": "2026-03-01T13:00:00Z"},
            "2026-03-01 13:00:00 UTC, is not after its beginning, 2026-03-01 13:00:00 UTC",
        ),
        ({"nodes": "n[1-99]"}, "Slurm knows no node 'n"),
        ({"nodes": ""}, "needs nodes"),
        ({"nodes": "n["}, "bracket"),
        ({"nodes": "", "partition": "nope"}, "no partition 'nope'"),
        ({"why": " "}, "needs a reason"),
        ({"color": "red"}, "unknown field"),
    ],
)
def test_a_window_that_cannot_be_is_refused(changes, why):
    ok, answer, events = add_window(asked(**changes), world([]), OWN, at(0))
    assert (ok, events) == (False, [])
    assert why in answer


def test_windows_of_a_node_do_not_overlap_an_admins_own_among_them():
    mine = replace(WINDOW, start=at(HOUR), end=at(2 * HOUR))
    ok, answer, _ = add_window(asked(), world([mine]), OWN, at(0))
    assert not ok
    assert f"{NAME} has n[1-2]" in answer
    hers = replace(HERS, nodes=("n2",), start=at(HOUR), end=at(2 * HOUR))
    assert not add_window(asked(), world([], hers), OWN, at(0))[0]
    apart = replace(mine, start=at(2 * HOUR), end=at(3 * HOUR))
    assert add_window(asked(), world([apart]), OWN, at(0))[0]
    assert add_window(asked(nodes="n3"), world([mine]), OWN, at(0))[0]


def test_in_mode_observe_and_without_slurm_no_window_is_taken():
    assert "mode observe" in add_window(asked(), world([]), RecoveryPolicy(), at(0))[1]
    assert "cannot be read" in add_window(asked(), world([], current=False), OWN, at(0))[1]


def test_where_hpctl_may_do_nothing_no_window_is_taken_nor_ended():
    (paused,) = process_operator_request(
        Request(1, at(0), "pause", "", "bo", "root", '{"nodes":"n2","why":"mine"}'),
        view_of(),
        OWN,
        at(0),
    )
    answer = add_window(asked(), world([paused]), OWN, at(0))[1]
    assert answer == "n2 is paused by bo: mine; lift it first: `hpctl unpause n2`"
    assert add_window(asked(nodes="n1"), world([paused]), OWN, at(0))[0]
    assert ended(NAME, [*BEGUN, paused])[:2] == (False, answer)
    assert "STOP" in add_window(asked(), world([], stopped="STOP exists"), OWN, at(0))[1]
    elsewhere = replace(OWN, partitions=frozenset({"gpu"}))
    assert "n[1-2]: in none" in add_window(asked(), world([]), elsewhere, at(0))[1]


def ended(target: str, log) -> tuple[bool, str, Any]:
    return end_window(Request(1, at(5), END, target, "bo", "root"), world(log), OWN, at(5))


def test_a_window_is_ended_by_its_name_its_id_or_the_end_of_its_name():
    for target in (NAME, "m-1", "1"):
        ok, _, (event,) = ended(target, BEGUN)
        assert ok
        assert event == SignalSeen(
            at(5), "m-1", ClusterChangeSignal.END_ASKED, "bo asked for its end"
        )


@pytest.mark.parametrize(
    ("log", "says"), [(BEGUN, "are verified before"), (RESERVED, "before it has begun")]
)
def test_an_end_says_what_becomes_of_the_nodes(log, says):
    ok, answer, _ = ended(NAME, log)
    assert ok
    assert says in answer


@pytest.mark.parametrize(
    ("target", "log", "why"),
    [
        ("nothing", BEGUN, f"open: {NAME}"),
        (NAME, ENDED, "has ended already (done)"),
        ("m-1", [replace(WINDOW, own=False)], "scontrol delete ReservationName="),
    ],
)  # fmt: skip
def test_a_window_that_cannot_be_ended_says_why(target, log, why):
    ok, answer, events = ended(target, log)
    assert (ok, list(events)) == (False, [])
    assert why in answer


def test_what_becomes_of_each_job_is_said_before():
    window = replace(WINDOW, start=at(HOUR), end=at(2 * HOUR))
    comment = 'hpctl:{"save_signal":"USR1"}'
    jobs = [
        slurm_job(1, comment=comment, partition="all"),
        slurm_job(2, requeue=False, partition="all"),
        slurm_job(3, end=at(60), partition="all"),
        slurm_job(4, partition="all", nodes=tuple(f"n{i}" for i in range(1, 9))),
        slurm_job(5, nodes=("n7",), partition="all"),
    ]
    ahead = {j.id: j for j in find_jobs_on_window_nodes(window, view_of(jobs=jobs), OWN, at(0))}
    assert sorted(ahead) == [1, 2, 3, 4]
    assert (ahead[1].moves, ahead[1].saves) == (True, "USR1")
    assert "starts elsewhere" in ahead[1].fate
    assert "then requeued at " in ahead[1].fate
    assert "CANNOT be requeued" in ahead[2].fate
    assert "ends at its time limit" in ahead[3].fate
    assert "6 nodes are left, it needs 8" in ahead[4].fate
    (soon, *_) = find_jobs_on_window_nodes(window, view_of(jobs=jobs), OWN, at(HOUR - 1))
    assert "then requeued at once; " in soon.fate


def test_a_restart_of_the_daemon_knows_the_windows_and_reads_reservations_when_due():
    state = replay_events(RESERVED)
    assert [w.opened.group for w in state.windows] == [NAME]
    assert not state.is_cluster_resizing
    assert find_nodes_of_due_maintenance_windows(state, OWN, at(-LEAD - 1)) == set()
    assert find_nodes_of_due_maintenance_windows(state, OWN, at(-LEAD)) == {"n1", "n2"}
    assert find_nodes_of_due_maintenance_windows(replay_events([WINDOW]), OWN, at(-HOUR)) == {
        "n1",
        "n2",
    }


def change(log) -> ClusterChange:
    return replay_events(log).changes["m-1"]


def test_a_window_ends_as_what_became_of_it():
    assert change(ENDED).phase is ClusterChangePhase.DONE
    gone = [*RESERVED, *seen(ClusterChangeSignal.GONE)]
    assert change(gone).phase is ClusterChangePhase.CANCELLED

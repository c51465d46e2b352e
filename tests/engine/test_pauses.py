"""Pauses of nodes and partitions as the loop meets them: gates, steps, deadlines, requests."""

import json

import pytest
from msgspec.structs import replace

from hpctl.engine.advance import advance_open_recoveries
from hpctl.engine.journal.events import PAUSE_ENDED, NodeRecoveryOpened, RequestTaken
from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.engine.pauses import (
    find_pause_covering_recovery,
    find_recovery_operational_start_time,
    list_pause_end_events,
)
from hpctl.engine.plan import plan_recoveries
from hpctl.engine.requests import process_operator_request
from hpctl.engine.view import Request
from hpctl.faults.catalogue import build_fault_rules
from hpctl.jobs.kind import JOBS
from hpctl.nodes.kind import make_node_recovery_kind
from hpctl.vocabulary.pause import find_active_pauses
from tests.fakes.values import OWN, at, faulty, opened, view_of


def asked(verb: str = "pause", **detail: object) -> Request:
    return Request(1, at(0), verb, "", "ana", "root", json.dumps(detail) if detail else "")


def answered(request: Request, log=(), seconds: float = 0) -> RequestTaken:
    (event,) = process_operator_request(request, view_of(log=log), OWN, at(seconds))
    assert isinstance(event, RequestTaken)
    return event


def test_the_old_form_pauses_the_cluster_until_it_is_lifted():
    event = answered(asked())
    assert (event.target, event.answer, event.ok) == (
        "",
        "paused: nothing new is opened and no step is taken",
        True,
    )
    state = replay_events([event])
    assert [p.scope for p in find_active_pauses(state.pauses, at(1e6))] == [""]
    assert (
        find_active_pauses(replay_events([event, answered(asked("unpause"))]).pauses, at(1)) == []
    )


def test_a_pause_says_who_why_and_until_when():
    event = answered(asked(nodes="n[1-2]", why="cables", until="2026-03-01T12:01:00Z"))
    assert (event.target, event.why, event.until) == ("n[1-2]", "cables", at(60))
    assert event.answer.startswith("paused until 2026-03-01 12:01:00 UTC: nothing new")
    (pause,) = replay_events([event]).pauses.values()
    assert pause.text == "n[1-2] is paused by ana until 2026-03-01 12:01:00 UTC: cables"


@pytest.mark.parametrize(
    ("detail", "why"),
    [
        ({"nodes": "n99"}, "Slurm knows no node 'n99'"),
        ({"partition": "nope"}, "Slurm knows no partition 'nope'"),
        ({"until": "2026-03-01T11:00:00Z"}, "is past"),
        ({"nodes": "n["}, "not a pause"),
    ],
)
def test_a_pause_that_cannot_be_is_refused_and_changes_nothing(detail, why):
    event = answered(asked(**detail))
    assert not event.ok
    assert why in event.answer
    assert replay_events([event]).pauses == {}


def test_what_no_pause_covers_cannot_be_lifted_and_the_open_ones_are_named():
    log = [answered(asked(nodes="n1"))]
    event = answered(asked("unpause", nodes="n2"), log)
    assert not event.ok
    assert "hpctl unpause n1" in event.answer
    assert answered(asked("unpause", nodes="n1"), log).ok


def test_a_node_that_is_paused_is_blocked_and_the_others_are_treated():
    log = [answered(asked(nodes="n1", why="cables"))]
    view = view_of(sick=[faulty(), faulty("n2")], log=log)
    made = plan_recoveries(view, OWN, build_fault_rules(), {}, at(0), ())
    assert [o.generation.node for o in made.opens if isinstance(o, NodeRecoveryOpened)] == ["n2"]
    (hold,) = made.holds
    assert (hold.target, hold.gate, hold.why) == ("n1", "paused", "n1 is paused by ana: cables")


def due(log) -> list[str]:
    view = view_of(log=log)
    kinds = (make_node_recovery_kind(), JOBS)
    return sorted(d.do.target for d in advance_open_recoveries(view, OWN, at(1), kinds).due)


def test_a_paused_node_gets_no_step_and_another_does():
    log = [opened(), opened("n-2", "n2")]
    assert due(log) == ["n1", "n2"]
    assert due([*log, answered(asked(nodes="n1"))]) == ["n2"]
    assert due([*log, answered(asked())]) == []


def test_a_partition_covers_its_nodes():
    log = [opened(), answered(asked(partition="all"))]
    assert find_pause_covering_recovery(opened().recovery, view_of(log=log), at(1)) is not None


def test_no_deadline_runs_while_a_node_is_paused_and_after():
    event = answered(asked(nodes="n1", until="2026-03-01T12:01:00Z"))
    view = replace(view_of(log=[opened(), opened("n-2", "n2"), event]), able_since=at(-9))
    assert find_recovery_operational_start_time(opened().recovery, view, at(30)) == at(30)
    assert find_recovery_operational_start_time(opened().recovery, view, at(99)) == at(60)
    assert find_recovery_operational_start_time(opened("n-2", "n2").recovery, view, at(99)) == at(
        -9
    )


def test_the_end_of_a_pause_is_journaled_once_and_ends_no_other():
    state = EngineState()
    for detail in ({"until": "2026-03-01T12:01:00Z"}, {"nodes": "n1"}):
        state.fold(answered(asked(**detail)))
    assert list_pause_end_events(state, at(59)) == []
    (event,) = list_pause_end_events(state, at(61))
    assert (event.verb, event.by, event.target) == (PAUSE_ENDED, "hpctl", "")
    assert "by ana has reached its end" in event.answer
    state.fold(event)
    assert list_pause_end_events(state, at(62)) == []
    assert [p.scope for p in find_active_pauses(state.pauses, at(62))] == ["n1"]

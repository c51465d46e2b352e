"""Made-up runs: where the run is after each event, and that the answers are `decide`'s own."""

from __future__ import annotations

import pytest

from hpctl.jobs.rehearsal import Played, ScenarioError, parse, play, restarts
from hpctl.policies import merged
from hpctl.policies import parse as policy_of


def played(text: str, policy: str = "") -> tuple[Played, ...]:
    return play(merged([policy_of(policy)]), parse(text))


def lines(text: str, policy: str = "") -> list[tuple[str, int]]:
    return [(p.action, p.nodes) for p in played(text, policy)]


def test_a_spare_takes_over_and_then_other_nodes_do() -> None:
    text = """
nodes: 3
spares: 1
events:
- {at: 1, kind: node, node: n1, progress: 1}
- {at: 2, kind: node, node: n2, progress: 2}
- {at: 3, kind: node, node: n5, progress: 3}
"""
    answers = played(text)
    assert [(p.action, p.nodes) for p in answers] == [("step", 3), ("requeue", 3), ("step", 3)]
    assert answers[-1].exclude == ("n1", "n2", "n5")
    assert restarts(answers) == 3


def test_events_come_in_the_order_of_their_times_and_repeat() -> None:
    text = "nodes: 1\nevents: [{at: 1m, kind: slow, repeat: 3}, {at: 90s, kind: spike}]"
    assert [(p.at_s, p.event) for p in played(text)] == [
        (60, "slow"),
        (90, "spike"),
        (120, "slow"),
        (180, "slow"),
    ]


def test_a_run_without_nodes_waits_for_one() -> None:
    text = """
nodes: 2
pool: 0
events:
- {at: 1, kind: node, node: n1}
- {at: 2, returned: [n1]}
"""
    first, second = played(text)
    assert (first.action, first.nodes) == ("requeue", 0)
    assert first.why.endswith("; the job waits in the queue for nodes")
    assert (second.action, second.nodes) == ("none", 2)


def test_a_run_that_nothing_can_help_is_held_until_it_is_released() -> None:
    text = """
nodes: 2
pool: 0
requeue: false
events:
- {at: 1, kind: node, node: n1}
- {at: 2, kind: crash}
- {at: 3, returned: [n1]}
- {at: 4, released: true}
- {at: 5, kind: crash}
- {at: 6, released: true}
"""
    answers = played(text)
    assert [(p.action, p.nodes) for p in answers] == [
        ("hold", 0),
        ("none", 0),
        ("none", 0),
        ("none", 2),
        ("step", 2),
        ("none", 2),
    ]
    assert answers[1].why.startswith("nothing runs: hpctl: too few healthy nodes")
    assert answers[-1].why == "nothing is held"


def test_growing_inside_the_allocation_and_by_a_requeue() -> None:
    text = """
nodes: 4
pool: 0
events:
- {at: 1, kind: node, node: n1}
- {at: 2, returned: [n1]}
"""
    shrunk, grown = played(text, "nodes: 2-4")
    assert (shrunk.action, shrunk.nodes) == ("step", 3)
    assert (grown.action, grown.nodes) == ("grow", 4)
    assert "by a requeue" not in grown.why
    dear = text + "restart_cost_s: 5d\n"
    assert lines(dear, "nodes: 2-4")[-1] == ("none", 3)
    assert lines(text)[0] == ("requeue", 0)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "nodes.*field required"),
        ("nodes: 2\nevents: []", "needs at least 1 of them"),
        ("nodes: 2\nnames: [a]\nevents: [{at: 1, kind: nan}]", "fewer than nodes"),
        ("nodes: 2\nevents: [{at: 1}]", "is one of: kind, returned, released"),
        ("nodes: 2\nevents: [{at: 1, kind: nan, node: x}]", "there is no node 'x'"),
    ],
)
def test_scenarios_that_make_no_sense(text: str, problem: str) -> None:
    with pytest.raises(ScenarioError, match=problem):
        parse(text)

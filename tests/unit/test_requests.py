"""Operators' requests: what each changes, and what it is told when it cannot."""

from collections.abc import Sequence

import pytest

from hpctl.core.journal import (
    Event,
    HoldNoted,
    JobRecoveryOpened,
    NodeRecoveryOpened,
    RequestTaken,
    SignalSeen,
    replay,
)
from hpctl.core.model import (
    Health,
    Instance,
    InstanceId,
    InstanceStatus,
    RecoveryId,
    Remedy,
    RuleId,
    SchedulerView,
    Urgency,
    own_reason,
)
from hpctl.core.requests import take
from hpctl.core.view import Request, View
from tests.fakes.values import OWN, at, attempt, generation, node_name, opened, slurm_node, view_of

HOLD = HoldNoted(at(-5), "n2", "budget", "2 are open", RuleId("xid-79"), True)
FIRM = HoldNoted(at(-5), "n3", "foreign_drain", "bad fan", RuleId("xid-79"), False)
JOB = JobRecoveryOpened(at(-1), RecoveryId("j-1"), attempt(), RecoveryId("n-1"), (), "its node")
OURS = {"flags": frozenset({"DRAIN"}), "reason": own_reason(RecoveryId("n-0"), "x")}


def asked(verb: str, target: str, view: View) -> tuple[RequestTaken, list[Event]]:
    events = take(Request(7, at(-1), verb, target, "eve", "MUNGE uid 1001"), view, OWN, at(0))
    taken = events[-1]
    assert isinstance(taken, RequestTaken)
    assert (taken.request, taken.by) == (7, "eve")
    replay([*(view.log if hasattr(view, "log") else [])])
    return taken, events[:-1]


def with_node(**changes: object) -> View:
    scheduler = SchedulerView(at(0), {node_name(1): slurm_node(1, **changes)})
    return view_of(scheduler=scheduler)


@pytest.mark.parametrize(
    ("verb", "target", "log", "words"),
    [
        ("dance", "", [], "no such request"),
        ("approve", "n9", [HOLD], "nothing is held for 'n9'; held now: n2"),
        ("approve", "n3", [FIRM], "no approval can lift"),
        ("cancel", "n-7", [], "no open recovery 'n-7'"),
        ("replace", "n99", [], "Slurm knows no node 'n99'"),
        ("replace", "n1", [opened()], "treats n1 already"),
        ("return", "n1", [], "not drained by hpctl"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_reason(
    verb: str, target: str, log: Sequence[Event], words: str
) -> None:
    taken, events = asked(verb, target, view_of(log=log))
    assert not taken.ok
    assert words in taken.answer
    assert events == []


def test_an_approval_names_the_gate() -> None:
    taken, _ = asked("approve", "n2", view_of(log=[HOLD]))
    assert (taken.ok, "budget" in taken.answer) == (True, True)
    assert replay([HOLD, taken]).approvals == {"n2": at(0)}


@pytest.mark.parametrize("target", ["n-1", "n1", "j-1"])
def test_cancel_takes_a_recovery_or_a_node(target: str) -> None:
    log = [opened(), JOB]
    taken, events = asked("cancel", target, view_of(log=log))
    assert taken.ok
    (signal,) = events
    assert isinstance(signal, SignalSeen)
    assert signal.recovery == ("j-1" if target == "j-1" else "n-1")
    state = replay([*log, signal])
    assert len(state.open_nodes) + len(state.open_jobs) == 1


@pytest.mark.parametrize(
    ("verb", "remedy", "urgency"),
    [
        ("replace", Remedy.REPLACE, Urgency.AFTER_JOBS),
        ("reboot", Remedy.REBOOT, Urgency.AFTER_JOBS),
        ("replace-now", Remedy.REPLACE, Urgency.NOW),
        ("reboot-now", Remedy.REBOOT, Urgency.NOW),
    ],
)
def test_an_order_opens_a_recovery_past_the_counting_gates(
    verb: str, remedy: Remedy, urgency: Urgency
) -> None:
    full = [opened(f"n-{i}", node_name(i)) for i in (2, 3)]
    taken, events = asked(verb, "n1", view_of(log=full))
    assert taken.ok, taken.answer
    (order,) = events
    assert isinstance(order, NodeRecoveryOpened)
    assert (order.by, order.ladder, order.urgency) == ("eve", (remedy,), urgency)
    assert order.rule == f"operator-{remedy}"
    assert "budget (waved by eve)" in order.passed


def test_an_order_does_not_pass_the_safety_gates() -> None:
    taken, events = asked("replace", "n1", with_node(flags=frozenset({"DRAIN"}), reason="bad fan"))
    assert (taken.ok, events) == (False, [])
    assert "foreign_drain" in taken.answer


def test_a_return_needs_a_node_that_hpctl_drained() -> None:
    taken, events = asked("return", "n1", with_node(**OURS))
    assert taken.ok
    (order,) = events
    assert isinstance(order, NodeRecoveryOpened)
    assert order.ladder == (Remedy.NONE,)


def test_an_order_speaks_of_what_stands_there_now() -> None:
    """An agent's word, or else the cloud's; for an instance that never came up, the cloud's."""
    _, (order,) = asked("replace", "n1", view_of())
    assert isinstance(order, NodeRecoveryOpened)
    assert order.generation == generation()
    _, (order,) = asked("replace", "n1", view_of(health={}))
    assert isinstance(order, NodeRecoveryOpened)
    assert order.generation.instance == "i-n1"
    fresh = Instance(InstanceId("i-new"), InstanceStatus.FAILURE, node=node_name(1))
    view = view_of(
        instances={node_name(1): fresh}, health={node_name(1): Health(generation(), at(-900))}
    )
    _, (order,) = asked("replace", "n1", view)
    assert isinstance(order, NodeRecoveryOpened)
    assert order.generation.instance == "i-new"

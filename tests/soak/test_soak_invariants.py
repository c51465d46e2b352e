"""What the soak finds broken, in journals and logs of calls that are written down here."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from hpctl.engine.journal.events import Event, SignalSeen, StepStarted
from hpctl.engine.journal.state import replay_events
from hpctl.vocabulary.recovery import StepKind
from tests.docs.pages import read_rows
from tests.fakes.values import at, opened
from tests.soak.__main__ import GROUPS
from tests.soak.invariants import REBOOT, over_budget, repeated_orders, repeated_steps
from tests.soak.surroundings import OWN_FAULTS


def begun(number: int, step: StepKind = StepKind.REBOOT, attempt: int = 1) -> StepStarted:
    """A step of the recovery `n-NUMBER`, on the instance `i-NUMBER`."""
    return StepStarted(at(number), f"n-{number}", step, attempt, f"i-{number}")


def treated(count: int, by: str = "") -> list[Event]:
    """So many recoveries, each of a node of its own."""
    return [opened(f"n-{n}", f"n{n}", by=by) for n in range(1, count + 1)]


def test_a_step_that_begins_twice_under_one_number_is_found() -> None:
    again = begun(1, attempt=2)
    assert repeated_steps([*treated(2), begun(1), again, begun(2)]) == []
    (found,) = repeated_steps([*treated(1), begun(1), again, again])
    assert "2 times" in found


def test_one_remedy_more_than_the_budget_is_found() -> None:
    three = [*treated(3), begun(1), begun(2), begun(3)]
    assert over_budget(three, 3) == []
    (found,) = over_budget(three, 2)
    assert "3 remedies at once" in found


@pytest.mark.parametrize(
    "between",
    [[SignalSeen(at(3), "n-1", "operator_cancelled", "eve")], [begun(1, StepKind.DRAIN)]],
    ids=["one has ended", "no remedy"],
)
def test_what_has_ended_and_what_is_no_remedy_take_no_budget(between: Sequence[Event]) -> None:
    first = begun(1) if isinstance(between[0], SignalSeen) else begun(2)
    events = [*treated(3), first, *between, begun(3)]
    assert over_budget(events, 2) == []


def test_what_an_operator_orders_takes_no_budget() -> None:
    assert over_budget([*treated(3, by="eve"), begun(1), begun(2), begun(3)], 2) == []


@pytest.mark.parametrize(("calls", "wrong"), [(1, 0), (2, 1)])
def test_an_instance_that_is_rebooted_twice_for_one_recovery_is_found(
    calls: int, wrong: int
) -> None:
    state = replay_events([*treated(1), begun(1)])
    call = {"response": {"Successful": ["i-1"]}}
    live: Any = SimpleNamespace(
        sandbox=SimpleNamespace(calls=lambda what: [call] * calls if what == REBOOT else []),
        node_recoveries=lambda: list(state.nodes.values()),
    )
    assert len(repeated_orders(live)) == wrong


def test_each_fault_of_hpctl_s_parts_has_a_row_on_the_page_of_recoveries() -> None:
    rows = {row[0] for row in read_rows("recovery.md", "When a part of hpctl")}
    groups = {start: word for word, start in GROUPS.items() if start == "daemon-in-"}
    named = set()
    for fault in OWN_FAULTS:
        word = next((w for start, w in groups.items() if fault.name.startswith(start)), fault.name)
        named.add(word)
    assert rows == named

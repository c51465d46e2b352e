"""Which changes of capacity leave the journal as past, and what autoscaling counts without them."""

from collections.abc import Sequence

import pytest

from hpctl.capacity.autoscale import compute_remaining_scaling_budget
from hpctl.capacity.history import read_scaling_history
from hpctl.engine.journal.events import Event
from hpctl.engine.journal.state import replay_events
from hpctl.vocabulary.policy import AutoscalePolicy
from tests.engine.test_journal import CUT, DAY, LATER, OLD, add, ids, kept, moved, remove, treated
from tests.fakes.engine import retire
from tests.fakes.values import at


def hours(log: Sequence[Event]) -> float | None:
    history = read_scaling_history(replay_events(log))
    return compute_remaining_scaling_budget(
        history, AutoscalePolicy(hours_per_day=1000.0), at(0), {}
    )[1]


def test_an_instance_is_past_once_it_has_left_and_lives_until_then() -> None:
    newest = [*add("s-new", 1, -3600), *remove("r-new", -1800, "n1")]
    log = [
        *add("s-1", 2, OLD), *remove("r-1", OLD + 9, "n1"), *remove("r-2", OLD + 9, "n2"),
        *remove("r-2b", OLD + 10, "n2"), *add("s-2", 1, OLD + 11), *newest,
    ]  # fmt: skip
    left = kept(log)
    assert ids(left) == {"s-2", "r-new", "s-new", "r-2b"}, "r-2b: the last of its node"
    assert hours(left) == hours(log), "the removal of now ended s-2's hours"


def test_an_addition_stays_as_long_as_what_it_brought_lives() -> None:
    log = [*add("s-1", 1, OLD), *add("s-2", 1, -3600)]
    assert (kept(log), hours(log)) == (log, pytest.approx(1000 - 24 - 1))


def test_an_addition_stays_as_long_as_one_of_its_removals() -> None:
    log = [
        *add("s-1", 2, OLD), *remove("r-1", OLD + 9, "n1"), *remove("r-2", -DAY, "n2"),
        *add("s-2", 1, OLD * 2), *remove("r-3", -DAY, "n1"),
    ]  # fmt: skip
    assert kept(log) == log


def test_what_belongs_together_is_over_at_one_time() -> None:
    """For it moves by the day: half of it would be counted as another half."""
    end = at(OLD + 5 * DAY)
    log = [
        *treated("n-1", 1, OLD), *moved("j-1", "n-1", 7, OLD + 5 * DAY - 60), *LATER,
        *add("s-1", 2, OLD), *remove("r-1", OLD + DAY, "n1"), *remove("r-2", OLD + 5 * DAY, "n2"),
        *add("s-2", 1, 0), *remove("r-3", 1, "n1"), *remove("r-4", 1, "n2"),
    ]  # fmt: skip
    chosen = retire(replay_events(log), CUT, ())
    assert chosen.ended == dict.fromkeys(["n-1", "j-1", "s-1", "r-1", "r-2"], end)

"""What memory makes of events that are rare in a journal."""

import gc

import pytest

from hpctl.engine.journal.events import ClockSet, ConfigurationTaken, DaemonStarted, Event
from hpctl.engine.journal.state import InconsistentEventError, replay_events
from hpctl.vocabulary.change import ChangeKind, ChangeOpened
from hpctl.vocabulary.identity import NodeName, RecoveryId
from tests.fakes.values import at, opened

EARLIER = RecoveryId("s-1")
CONFIGURED = ConfigurationTaken(at(0), {"mode": "own"}, "root")


def test_the_newest_configuration_counts() -> None:
    newer = ConfigurationTaken(at(5), {"mode": "assist"}, "root")
    assert replay_events([CONFIGURED]).configuration == CONFIGURED
    assert replay_events([CONFIGURED, newer]).configuration == newer


def test_the_times_of_an_open_change_follow_the_clock() -> None:
    change = ChangeOpened(at(0), RecoveryId("c-1"), ChangeKind.ADD, "workers", "jobs wait", count=2)
    state = replay_events([change, ClockSet(at(20), -3600.0)])
    assert state.changes[RecoveryId("c-1")].since == at(-3600)


def test_a_start_of_the_daemon_changes_nothing() -> None:
    started = DaemonStarted(at(1), "0.1", "own", "head-1", 7)
    before: list[Event] = [opened()]
    assert replay_events([*before, started]).nodes == replay_events(before).nodes


def test_a_return_of_an_earlier_version_that_opens_twice_is_corrupt() -> None:
    again = ChangeOpened(at(0), EARLIER, ChangeKind.RETURN, "workers", "back", node=NodeName("n1"))
    assert replay_events([again]).nodes[EARLIER].ended
    with pytest.raises(InconsistentEventError, match="s-1 opened twice"):
        replay_events([again, again])


@pytest.mark.parametrize("collects", [True, False])
def test_replay_leaves_the_collector_as_it_was(collects: bool) -> None:
    (gc.enable if collects else gc.disable)()
    try:
        replay_events([opened()])
        assert gc.isenabled() is collects
    finally:
        gc.enable()

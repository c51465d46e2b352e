"""Replay: any prefix of a legal journal is legal, and JSON brings back what was written."""

from datetime import datetime

import pytest

from benchmarks.past import Past
from hpctl.engine.journal.events import (
    Event,
    GateBlocked,
    JobRecoveryOpened,
    NodeRecoveryOpened,
    StepResolved,
    StepStarted,
)
from hpctl.engine.journal.state import InconsistentEventError, replay_events
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.change import ChangeOpened
from tests.engine.machine.scenario import VARIANTS, Story, Variant
from tests.fakes.engine import retire

STORIES = (VARIANTS[0], VARIANTS[2], VARIANTS[5])


def _journal(variant: Variant) -> list[Event]:
    story = Story(variant)
    story.play()
    return list(story.daemon.journal.events())


@pytest.fixture(scope="module", params=STORIES, ids=lambda v: v.name)
def log(request) -> list[Event]:
    return _journal(request.param)


def test_every_prefix_is_legal_and_folding_on_is_replaying(log):
    state = replay_events([])
    for cut, event in enumerate(log):
        assert state == replay_events(log[:cut])
        state.fold(event)
    assert state == replay_events(log)


def test_no_event_may_be_written_twice(log):
    """Requests, holds and starts aside, a repeated event is corruption.

    A recovery may see one new generation after another: the provider tries again by itself.
    """
    quiet = ("DaemonStarted", "GateBlocked", "HoldLifted", "RequestTaken", "StepStarted")
    loud = [
        i
        for i, e in enumerate(log)
        if type(e).__name__ not in quiet and getattr(e, "signal", "") != "new_generation_seen"
    ]
    assert loud
    for i in loud:
        with pytest.raises(InconsistentEventError):
            replay_events([*log[: i + 1], log[i]])


def test_no_step_may_lose_its_intent(log):
    started = [i for i, e in enumerate(log) if isinstance(e, StepStarted)]
    assert any(isinstance(e, StepResolved) for e in log)
    for i in started:
        with pytest.raises(InconsistentEventError):
            replay_events([*log[:i], *log[i + 1 :]])


def test_a_journal_is_one_whatever_part_of_the_past_has_left(monkeypatch):
    """At any time, with a window of no length; and where a daemon died between two days' moves."""
    for what in ("REPORTS", "CRASHES", "CHANGES"):
        monkeypatch.setattr(f"benchmarks.past.{what}", 6)
    made, never = Past(3), datetime.max.replace(tzinfo=UTC)
    days = (made.day(datetime(2026, 3, day, tzinfo=UTC)) for day in (1, 2))
    # By their times, as they are written: one recovery's events among those of others.
    log = sorted((e for day in days for e in day), key=lambda e: e.at)
    whole, moved = replay_events(log), set()
    for cut in range(0, len(log), 61):
        over = retire(replay_events(log[:cut]), never, ()).over
        ended = {i: when for i, e in enumerate(log[:cut]) if (when := over(e)) is not None}
        moved |= {type(log[i]) for i in ended}
        for until in sorted(ended.values())[::97]:
            left = replay_events(e for i, e in enumerate(log) if i not in ended or ended[i] > until)
            assert (left.last_of_node, left.open_changes) == (whole.last_of_node, {})
    assert moved >= {NodeRecoveryOpened, JobRecoveryOpened, ChangeOpened, StepStarted, GateBlocked}

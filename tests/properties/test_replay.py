"""Replay: any prefix of a legal journal is legal, and JSON brings back what was written."""

from __future__ import annotations

import pytest

from hpctl.core.journal import Corrupt, Event, StepResolved, StepStarted, replay
from hpctl.store.codec import decode, encode
from tests.properties.scenario import VARIANTS, Story, Variant

STORIES = (VARIANTS[0], VARIANTS[2], VARIANTS[5])


def _journal(variant: Variant) -> list[Event]:
    story = Story(variant)
    story.play()
    return list(story.daemon.journal.events())


@pytest.fixture(scope="module", params=STORIES, ids=lambda v: v.name)
def log(request: pytest.FixtureRequest) -> list[Event]:
    return _journal(request.param)


def test_every_prefix_is_legal_and_folding_on_is_replaying(log: list[Event]) -> None:
    state = replay([])
    for cut, event in enumerate(log):
        assert state == replay(log[:cut])
        state.fold(event)
    assert state == replay(log)


def test_what_was_written_is_what_is_read(log: list[Event]) -> None:
    again = [decode(i, *encode(e)) for i, e in enumerate(log)]
    assert again == log
    assert replay(again) == replay(log)


def test_no_event_may_be_written_twice(log: list[Event]) -> None:
    """Requests, holds and starts aside, a repeated event is corruption.

    A recovery may see one new generation after another: the provider tries again by itself.
    """
    quiet = ("DaemonStarted", "HoldNoted", "HoldLifted", "RequestTaken", "StepStarted")
    loud = [
        i
        for i, e in enumerate(log)
        if type(e).__name__ not in quiet and getattr(e, "signal", "") != "new_generation_seen"
    ]
    assert loud
    for i in loud:
        with pytest.raises(Corrupt):
            replay([*log[: i + 1], log[i]])


def test_no_step_may_lose_its_intent(log: list[Event]) -> None:
    started = [i for i, e in enumerate(log) if isinstance(e, StepStarted)]
    assert any(isinstance(e, StepResolved) for e in log)
    for i in started:
        with pytest.raises(Corrupt):
            replay([*log[:i], *log[i + 1 :]])


def test_telling_a_story_twice_writes_the_same_journal(log: list[Event]) -> None:
    assert any(_journal(variant) == log for variant in STORIES)

"""When the sender is woken: at once, then seldom, and nothing is forgotten."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hpctl.agent.send import Pace


def test_what_is_new_goes_out_at_once_and_only_once() -> None:
    pace = Pace()
    assert not pace.due(100.0)
    pace.news()
    pace.news()
    assert pace.due(100.0)
    assert not pace.due(100.0)
    assert pace.wait_s(100.0) is None


def test_after_a_burst_news_wait_for_each_other() -> None:
    pace = Pace(burst=2, every_s=0.5)
    sent = []
    for tenth in range(40):
        pace.news()
        if pace.due(100 + tenth / 10):
            sent.append(tenth)
    assert sent[:2] == [0, 1]
    assert len(sent) == 2 + 7
    assert min(b - a for a, b in pairwise(sent[1:])) >= 4


def test_a_wait_ends_when_the_next_wake_is_due() -> None:
    pace = Pace(burst=1, every_s=0.5)
    pace.news()
    assert pace.due(100.0)
    pace.news()
    assert not pace.due(100.1)
    wait = pace.wait_s(100.1)
    assert wait is not None
    assert 0.39 < wait < 0.41
    assert pace.due(100.1 + wait + 1e-6)


@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=300))
def test_no_flood_wakes_more_often_than_the_bucket_allows(steps: list[float]) -> None:
    pace, now, woken = Pace(), 1000.0, 0
    for step in steps:
        now += step
        pace.news()
        woken += pace.due(now)
    assert woken <= 10 + (now - 1000) / 0.5
    assert pace.wait_s(now) is None or pace.due(now + 0.51)

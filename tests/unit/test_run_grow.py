"""When a smaller run stops to become larger again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpctl.core.run_policy import Action, RunPolicy
from hpctl.jobs.run.grow import REQUEUE_S, Room, grown

ELASTIC = RunPolicy(nodes=(6, 8), grow_gain=3.0)
HOUR = Room(have=6, inside=8, left_s=3600, restart_s=60)


def test_a_node_that_is_back_is_used_where_it_pays() -> None:
    answer = grown(ELASTIC, 8, HOUR)
    assert answer is not None
    assert (answer.action, answer.size) == (Action.STEP, 8)


@pytest.mark.parametrize(
    "room",
    [
        replace(HOUR, left_s=600),  # 150 s won for a restart of 60 s: under three times
        replace(HOUR, inside=6),
        replace(HOUR, inside=6, idle=1, missing=2),
        replace(HOUR, inside=6, idle=9, missing=2, left_s=1800),
    ],
)
def test_else_it_goes_on_as_it_is(room: Room) -> None:
    assert grown(ELASTIC, 8, room) is None


def test_idle_nodes_outside_are_worth_a_requeue_only_with_its_delay() -> None:
    outside = replace(HOUR, inside=6, idle=2, missing=2, left_s=4 * 3 * (60 + REQUEUE_S))
    answer = grown(ELASTIC, 8, outside)
    assert answer is not None
    assert answer.action is Action.REQUEUE
    assert grown(ELASTIC, 8, replace(outside, left_s=(outside.left_s or 0) - 10)) is None


def test_a_run_of_fixed_size_never_grows() -> None:
    assert grown(RunPolicy(), 8, HOUR) is None


def test_without_a_limit_there_is_a_day_left() -> None:
    assert grown(ELASTIC, 8, replace(HOUR, left_s=None, restart_s=None)) is not None

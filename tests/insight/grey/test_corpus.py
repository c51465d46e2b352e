"""The corpus is the same each time, and what is found on it does not get worse unseen."""

import pytest

from hpctl.engine.journal.state import replay_events
from hpctl.insight.forecast.history import forecast_node_failures
from tests.insight.grey import history, make, score

pytestmark = pytest.mark.integration

SEEDS = range(31, 37)
"""Neither tuned on nor those of the benchmark."""


def test_slow_nodes_are_found_and_healthy_ones_left_alone() -> None:
    result = score.Score()
    for seed in SEEDS:
        world = make.world(seed)
        alarms, _ = score.ours(world)
        score.add(result, world, alarms)
    delays, parts = sorted(result.delays), sorted(result.told)
    assert result.found + len(result.missed) >= 30
    assert result.precision >= 0.95, result.false
    assert result.recall >= 0.90, result.missed
    assert delays[len(delays) // 2] <= 180
    assert parts[int(0.9 * (len(parts) - 1))] <= 180, result.slow


def test_lemons_are_distinguished_from_bad_luck() -> None:
    true = named = there = 0
    for seed in range(61, 91):
        past = history.past(seed)
        state = replay_events(past.events)
        found = {
            f.instance for f in forecast_node_failures(state, past.nodes, {}, past.now) if f.again
        }
        true, named = true + len(found & past.lemons), named + len(found)
        there += len(past.lemons)
    assert there >= 30
    assert true / named >= 0.8
    assert true / there >= 0.8

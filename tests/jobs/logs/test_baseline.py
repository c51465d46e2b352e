"""Spikes and slow runs: against the run's own past, robustly."""

from __future__ import annotations

import math
import random

from tests.jobs.logs.made import block, engine, rule, told


def falling(steps: int, seed: int = 1) -> list[float]:
    noise = random.Random(seed)
    return [2 + 8 * math.exp(-step / 12) + noise.gauss(0, 0.05) for step in range(steps)]


def test_a_healthy_loss_of_many_seeds_is_no_spike() -> None:
    for seed in range(60):
        assert engine(rule(kind="spike")).feed(block(*falling(300, seed)), 0.0) == []


def test_a_spike_is_seen_on_its_third_point_also_while_the_loss_still_falls() -> None:
    for at in (30, 60, 200):
        loss = falling(300)
        loss[at : at + 5] = [value * 3 for value in loss[at : at + 5]]
        found = engine(rule(kind="spike")).feed(block(*loss), 0.0)
        assert [(v.what, v.line_number) for v in found] == [("spike", at + 3)]


def test_one_outlier_is_no_spike_and_is_one_where_the_rule_says_so() -> None:
    loss = falling(100)
    loss[80] = 50.0
    assert engine(rule(kind="spike")).feed(block(*loss), 0.0) == []
    strict = rule(kind="spike", metricEvaluationDataPoints=1)
    assert told(engine(strict).feed(block(*loss), 0.0)) == [("spike", 81, "50.0")]


def test_a_flat_loss_does_not_alarm_at_a_trifle() -> None:
    assert engine(rule(kind="spike")).feed(block(*[2.0] * 50, *[2.1] * 50), 0.0) == []


def test_a_new_level_is_learned_after_a_window_of_it() -> None:
    watch = engine(rule(kind="spike", window=50))
    found = watch.feed(block(*[2.0] * 60, *[4.0] * 200, *[12.0] * 5), 0.0)
    assert [v.line_number for v in found] == [63, 263]


def test_a_run_that_becomes_slow_is_told_by_throughput_or_by_step_time() -> None:
    fast = [1000.0 + step % 7 for step in range(100)]
    slow = [700.0 + step % 7 for step in range(30)]
    by_throughput = engine(rule(kind="slow")).feed(block(*fast, *slow, *fast), 0.0)
    assert [(v.what, v.line_number) for v in by_throughput] == [("slow", 110)]
    times = [1e3 / value for value in fast + slow]
    by_time = engine(rule(kind="slow", worse="higher")).feed(block(*times), 0.0)
    assert [v.line_number for v in by_time] == [110]
    assert engine(rule(kind="slow", worse="higher")).feed(block(*fast, *slow), 0.0) == []

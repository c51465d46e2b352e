"""Forecasts that walk forward over a year beat the rules before them, and mean what they say."""

import os
from pathlib import Path

import pytest

from tests.forecast import trace

TRACES = os.environ.get("HPCTL_TRACES", "")
REAL = Path(TRACES) / "InfiniteHBD-Trace" if TRACES else None


def beats_the_rules(rows: list[trace.Scored]) -> None:
    ours, *rules = rows
    assert all(ours.auc_pr > rule.auc_pr for rule in rules), [(r.name, r.auc_pr) for r in rows]
    assert ours.calibration_error <= 0.05


def test_the_made_up_trace_is_like_the_public_one() -> None:
    made = [trace.synthetic(seed) for seed in range(20)]
    mean = {
        "incidents": sum(len(b) for t in made for b in t.values()) / 20,
        "nodes": sum(bool(b) for t in made for b in t.values()) / 20,
        **{d: sum(trace.again(t, d) for t in made) / 20 for d in (1, 7, 14, 30)},
    }
    public = {"incidents": 531, "nodes": 231, 1: 0.150, 7: 0.247, 14: 0.302, 30: 0.378}
    assert mean == {k: pytest.approx(v, rel=0.1) for k, v in public.items()}


@pytest.mark.parametrize("days", [1, 7, 30])
def test_forecasts_of_a_made_up_year(days: int) -> None:
    total = [trace.Scored(name, []) for name in ("forecast", "lemon", "30 days")]
    for seed in range(3):
        for row, more in zip(total, trace.walk(trace.synthetic(seed), days, 7.0), strict=True):
            row.pairs += more.pairs
    beats_the_rules(total)


@pytest.mark.skipif(REAL is None, reason="HPCTL_TRACES names no directory with InfiniteHBD-Trace")
@pytest.mark.parametrize("days", [1, 7, 30])
def test_forecasts_of_the_public_trace(days: int) -> None:
    assert REAL is not None
    beats_the_rules(trace.walk(trace.read(REAL), days))

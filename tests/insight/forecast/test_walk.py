"""Forecasts that walk forward over a year beat the rules before them, and mean what they say."""

import pytest

from tests.insight.forecast import trace

pytestmark = pytest.mark.integration


def beats_the_rules(rows: list[trace.Scored]) -> None:
    ours, *rules = rows
    assert all(ours.auc_pr > rule.auc_pr for rule in rules), [(r.name, r.auc_pr) for r in rows]
    assert ours.calibration_error <= 0.05


@pytest.mark.parametrize("days", [1, 7, 30])
def test_forecasts_of_a_made_up_year(days: int) -> None:
    total = [trace.Scored(name, []) for name in ("forecast", "lemon", "30 days")]
    for seed in range(3):
        for row, more in zip(total, trace.walk(trace.synthetic(seed), days, 7.0), strict=True):
            row.pairs += more.pairs
    beats_the_rules(total)

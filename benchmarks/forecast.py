"""Whether forecasts tell nodes that will break from others, against the rules before them.

Walk-forward: each day from what was known then (`tests/insight/forecast`). On traces made up like
InfiniteHBD-Trace, and on that trace where `HPCTL_TRACES` names the folder above it.
"""

import os
import time
from pathlib import Path

from benchmarks.table import Outcome, Row
from hpctl.insight.forecast.decide import (
    HORIZONS,
    PRIORS,
    InstanceFailureTimeline,
    fit_failure_model,
)
from tests.insight.forecast import trace

SEEDS = range(101, 106)
NODES, BROKEN = 10_000, 3_000


def run() -> Outcome:
    """Both kinds of traces, and the time that one forecast of a fleet takes."""
    rows, notes = _rows("made up", [trace.synthetic(seed) for seed in SEEDS])
    if folder := os.environ.get("HPCTL_TRACES"):
        found = _rows("public", [trace.read(Path(folder) / "InfiniteHBD-Trace")])
        rows, notes = rows + found[0], notes + found[1]
    rows.append(Row(f"{NODES} nodes, {BROKEN} with breaks: one forecast", 1000 * _once(), "ms"))
    return Outcome("forecast", rows, notes)


def _rows(name: str, traces: list[trace.Trace]) -> tuple[list[Row], list[str]]:
    rows, notes = [], []
    for days in HORIZONS:
        scored = [trace.Scored(rule, []) for rule in ("forecast", *(r for r, _ in trace.RULES))]
        for one in traces:
            for total, more in zip(scored, trace.walk(one, days), strict=True):
                total.pairs += more.pairs
        ours, *rules = scored
        best = max(rules, key=lambda r: r.auc_pr)
        what = f"{name}, {days:g} d"
        least = best.auc_pr
        rows += [
            Row(f"{what}: AUC-PR", ours.auc_pr, "", best.name, best.auc_pr, least, least=True),
            Row(f"{what}: calibration error", ours.calibration_error, "", bar=0.05),
        ]
        predicted, true = ours.worst()
        others = ", ".join(f"{r.name} {r.auc_pr:.4f}" for r in rules)
        rate = sum(hit for _, hit in ours.pairs) / len(ours.pairs)
        notes.append(
            f"{what}: {others}, by chance {rate:.4f}; of the worst hundredth {predicted:.2f} was"
            f" predicted and {true:.2f} happened"
        )
    return rows, notes


def _once() -> float:
    """Seconds to learn from a fleet's breaks and to forecast each that broke."""
    made = trace.synthetic(1, NODES)
    now = 90.0
    units = [
        InstanceFailureTimeline(0.0, b).at(now) for b in made.values() if b and b[0].begun < now
    ][:BROKEN]
    begun = time.perf_counter()
    model = fit_failure_model(units, (NODES - len(units)) * now, now, PRIORS)
    for unit in units:
        for days in HORIZONS:
            model.chance(unit, days)
    return time.perf_counter() - begun

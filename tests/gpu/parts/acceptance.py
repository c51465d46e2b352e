"""The acceptance test's programs on the real GPU, twice: the figures and how much they vary."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gpu.context import Context

TITLE = "Acceptance: the GPU's figures, twice"
LIMIT_S = 60
DRY_LIMIT_S = 60
SIDE_BY_SIDE = False
NEEDS = frozenset({"gpu", "torch"})

RUN_LIMIT_S = 45.0


def run(context: Context) -> None:
    """Run the quick level, then its two speed tests again."""
    runs = []
    again = ("cpu.speed",) if context.dry else ("gpu.speed", "cpu.speed")
    for names in ((), again):
        if context.left_s() < 15.0 and runs:
            context.say("no time left for the second run")
            break
        runs.append(_run_once(context, *names))
        recording = {"runs": runs, "spread": find_spread(runs)}
        context.keep_json("acceptance.json", recording)
        context.record("runs", runs)
    for name, spread in find_spread(runs).items():
        values = ", ".join(f"{value:.1f}" for value in spread["values"])
        context.say(f"{name}: {values} (spread {spread['spread_pct']} %)")


def _run_once(context: Context, *names: str) -> dict[str, Any]:
    words = [word for name in names for word in ("--test", name)]
    done = context.run(
        [sys.executable, "-m", "hpctl.nodes.acceptance.run", "--level", "quick", *words],
        RUN_LIMIT_S,
        environment={"HPCTL_TEST_PYTHON": sys.executable},
    )
    results = read_results(done.out)
    said = [f"{r['test']} {r['status']} {r.get('reason', '')}".strip() for r in results]
    context.say(f"exit code {done.code} after {done.took_s} s: {said} {done.err[-300:]}")
    return {
        "rc": done.code,
        "out": done.out,
        "err": done.err[-3000:],
        "s": done.took_s,
        "results": results,
    }


def read_results(output: str) -> list[dict[str, Any]]:
    """Return the results in the output of hpctl.nodes.acceptance.run."""
    results = []
    for line in output.splitlines():
        if line.startswith('{"host"'):
            results.append(json.loads(line)["result"])
    return results


def find_spread(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each figure's values over the runs, and the spread in percent of the largest."""
    values: dict[str, list[float]] = {}
    for each in runs:
        for result in each["results"]:
            for name, value in (result.get("figures") or {}).items():
                values.setdefault(f"{result['test']} {name}", []).append(value)
    return {
        name: {
            "values": found,
            "spread_pct": round(100 * (max(found) - min(found)) / (max(found) or 1), 2),
        }
        for name, found in values.items()
    }

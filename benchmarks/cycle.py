"""What one decision cycle costs once Slurm has been read, what that read costs before it, and what
a daemon holds in memory, as the cluster grows."""

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.table import Outcome, Row

SIZES = (1000, 3000, 10_000)
QUIET_BAR_MS, SICK_BAR_MS, MEMORY_BAR_MB = 100.0, 500.0, 300.0


def run() -> Outcome:
    """A process for each size; the bars are the largest's."""
    found = [_at(nodes) for nodes in SIZES]
    outcome = Outcome("cycle")
    for at in found:
        outcome.rows += _rows(at)
    first, last = found[0], found[-1]
    outcome.notes = [
        "the real loop, executor, observer, book and SQLite journal; Slurm and cloud answer"
        " prepared views, and Slurm's read is a row of its own; one job for ten nodes, eight a job",
        f"from {first['nodes']} to {last['nodes']} nodes (x {last['nodes'] / first['nodes']:g}):"
        + ",".join(
            f" {name} x {last[key] / first[key]:.1f}"
            for name, key in (
                ("quiet", "quiet_s"),
                ("sick and held", "sick_held_s"),
                ("sick and opened", "sick_opened_s"),
                ("memory over the empty process", "own_mb"),
            )
        ),
        f"of 100 sick nodes the shipped budgets held {last['held']}; with budgets raised"
        f" {last['opened']} were opened and drained in the same cycle",
    ]
    return outcome


def _at(nodes: int) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.cycle_at", str(nodes)],
        env={**os.environ, "AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=180,
    )
    at: dict[str, Any] = json.loads(done.stdout)
    at["own_mb"] = at["peak_mb"] - at["empty_mb"]
    return at


def _rows(at: dict[str, Any]) -> list[Row]:
    nodes, barred = at["nodes"], at["nodes"] == SIZES[-1]
    loads = "json.loads of the same cluster"
    name = f"{nodes:,} nodes"
    rival = 1e3 * at["json_s"]

    def timed(what: str, key: str, bar: float | None) -> Row:
        return Row(f"{name}: {what}", 1e3 * at[key], "ms", loads, rival, bar if barred else None)

    return [
        timed("quiet cycle, Slurm read before", "quiet_s", QUIET_BAR_MS),
        timed(f"100 newly sick, {at['held']} held, Slurm read before", "sick_held_s", SICK_BAR_MS),
        timed(f"100 newly sick, {at['opened']} opened, the same", "sick_opened_s", SICK_BAR_MS),
        timed("reading Slurm before each, 22.05's text", "read_s", None),
        Row(
            f"{name}: peak memory",
            at["peak_mb"],
            "MB",
            "the same process with no nodes",
            at["empty_mb"],
            MEMORY_BAR_MB if barred else None,
        ),
    ]

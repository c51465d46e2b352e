"""Print what the demo measured in each matrix root, one column a Slurm release.

Called by .ci/matrix with its output folder and the suites. A root whose demo wrote no figures
gets an empty column: the run itself has failed by then.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

FIGURES = {
    "slurm_version": "Slurm",
    "fault_to_drained_s": "fault to drained, s",
    "fault_to_job_running_s": "fault to job running, s",
    "fault_to_node_returned_s": "fault to node returned, s",
    "plain_requeue_s": "plain Slurm requeue, s",
    "floor_s": "floor (scancel, sbatch), s",
    "steps_lost": "steps lost",
    "weights_identical": "weights identical",
    "api_replace_calls": "replace calls",
}


def shown(value: object) -> str:
    """A figure as people read it."""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.2f}"
    return "-" if value is None else str(value)


def closing_lines(log: Path) -> str:
    """Pytest's own closing line, without its rules; where it ran a second time, both."""
    text = log.read_text(errors="replace") if log.exists() else ""
    found = re.findall(r"^=+ (.* in [0-9.]+s.*?) =+$", text, re.MULTILINE)
    return ", run once more: ".join(found) or "did not run"


def main(out: Path, suites: list[str]) -> None:
    """Print the table."""
    demos = {}
    for suite in suites:
        file = out / suite / "demo.json"
        demos[suite] = json.loads(file.read_text()) if file.exists() else {}
    print(f"\n{'demo, by release':<28}" + "".join(f"{suite:>22}" for suite in suites))
    for key, label in FIGURES.items():
        print(f"{label:<28}" + "".join(f"{shown(demos[s].get(key)):>22}" for s in suites))
    for suite in suites:
        print(f"scheduler contract, {suite}: {closing_lines(out / suite / 'contract.log')}")
        print(f"programs, {suite}: {closing_lines(out / suite / 'programs.log')}")
        print(f"hpctl run, {suite}: {closing_lines(out / suite / 'run.log')}")
        print(f"attacks, {suite}: {closing_lines(out / suite / 'adversary.log')}")
        print(f"stories, {suite}: {closing_lines(out / suite / 'repertoire.log')}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

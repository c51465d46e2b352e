"""From an exception on one rank to the first step after it: kept processes against new ones.

Real PyTorch (gloo) on loopback, two launchers of one rank each, without Slurm. The import of torch
is in the rival's figure, and a search for the newest checkpoint in both. NVIDIA's wrapper is not
installed with the others: pip install nvidia-resiliency-ext.
"""

import json
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

from benchmarks.table import Outcome, Row, median
from tests.jobs.elastic.elastic_bed import Launchers

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))


def run() -> Outcome:
    """The two in turn."""
    outcome = Outcome("in-process: hpctl run --torch --in-process")
    if missing := [name for name in ("torch", "nvidia_resiliency_ext") if find_spec(name) is None]:
        outcome.notes = [f"not measured: {', '.join(missing)} not installed"]
        return outcome
    seen: dict[str, list[float]] = {"--in-process": [], "": []}
    for _ in range(ROUNDS):
        for option, seconds in seen.items():
            seconds.append(once([option] * bool(option)))
    kept, new = (median(seconds) for seconds in seen.values())
    outcome.rows = [Row("first step after an exception", kept, "s", "new processes", new, new)]
    return outcome


def once(options: list[str]) -> float:
    """Seconds from the exception to the first step that was not done before."""
    from tests.jobs.elastic.test_in_process import ONCE, RANK

    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as name:
        script = Path(name) / "program.py"
        raises = ONCE.format("tell(raised=1); raise RuntimeError('once')")
        script.write_text(RANK.replace("@trouble@", raises))
        group = Launchers(Path(name) / "group", [str(script)], nproc=1, options=options)
        try:
            assert group.wait(120) == [0, 0], group.text()
        finally:
            group.close()
        lines = [json.loads(text) for text in (group.save / "told-1").read_text().splitlines()]
    raised = next(line["at"] for line in lines if "raised" in line)
    return next(line["at"] for line in lines if "step" in line and line["at"] > raised) - raised

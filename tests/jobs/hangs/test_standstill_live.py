"""A job that nobody wrapped and that stands still: `hpctl explain` shows since when."""

import json
import sys
from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
SETTINGS = {"hangs": {"shown_s": 1.0}}
PROGRAM = """import os, threading, time
while time.process_time() < 2.5:
    sum(range(100_000))
with open(os.environ["SLURMD_NODENAME"] + ".part", "w") as file:
    file.write(f"{os.getpid()} {os.getppid()}")
os.rename(file.name, file.name.removesuffix(".part") + ".pids")
threading.Event().wait()
"""
"""Enough work to count as a rank, and then none."""


@pytest.fixture(scope="module")
def live():
    with cluster(SETTINGS, nodes=2) as found:
        yield found


def show_processes(live: Chaos, base: Path) -> None:
    """Let the agent of each node see the rank there, and the slurmstepd above it.

    Agents of a sandbox look at a tree of their own in place of /proc.
    """
    for node in live.sandbox.nodes:
        told = base / f"{node}.pids"
        until(told.exists, 60, f"the rank of {node} has worked")
        proc = Path(live.sandbox.state_dir) / "nodes" / node / "hardware" / "proc"
        for pid in told.read_text().split():
            (proc / pid).symlink_to(f"/proc/{pid}")


def test_explain_shows_since_when_a_job_makes_no_progress(live: Chaos):
    base = Path(live.sandbox.state_dir) / "still"
    base.mkdir()
    (base / "train.py").write_text(PROGRAM)
    script = base / "job.sh"
    program = f"{sys.executable} train.py"
    script.write_text(f"#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=1\nsrun {program}\n")
    job = live.sbatch(script)
    assert "Standing still" not in live.explained(job)
    show_processes(live, base)
    until(lambda: "Standing still since" in live.explained(job), 120, "explain shows it")
    assert "sees none of its processes at work (2 waiting in a collective)" in live.explained(job)
    shown = json.loads(live.hpctl("explain", str(job), "--json"))
    assert shown["standstill"]["why"] == "2 waiting in a collective"
    live.sandbox.run(["scancel", str(job)])
    until(lambda: not live.job(job).running, 60, "it has ended")
    until(lambda: "Standing still" not in live.explained(job), 60, "explain drops it")

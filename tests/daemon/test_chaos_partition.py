"""A node's cable is pulled and plugged in again: its job is never run twice at once."""

import os
import time
from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_partitioned_node_that_comes_back_does_not_resurrect_its_run() -> None:
    config = {
        "ages": {"silent_s": 12.0},
        # Nobody ends the old run by ending its machine: Slurm itself must.
        "cluster": {"provider": "none"},
    }
    with cluster(
        config, mode="assist", nodes=3, netns=True, slurm_conf="SlurmdTimeout=8\n"
    ) as live:
        output = Path(live.sandbox.state_dir) / "writers"
        line = "${SLURM_RESTART_COUNT:-0} $(date +%s)"
        body = f"while :; do echo {line} >> {output}; sleep 0.5; done"
        job = live.submit(body)
        until(lambda: where(live, job)[0] == "RUNNING", 20, "job runs")
        victim = where(live, job)[1]
        live.sandbox.inject(victim, "partition")
        until(lambda: where(live, job)[0] == "RUNNING" and where(live, job)[2] == "1", 50, "moved")
        assert where(live, job)[1] != victim
        until(lambda: "1" in runs_since(output, time.time() - 5), 10, "the new run writes")
        live.sandbox.inject(victim, "heal")
        until(lambda: runs_since(output, time.time() - 3) == {"1"}, 40, "the old run is ended")
        assert where(live, job)[0] == "RUNNING"
        assert where(live, job)[2] == "1"
        node = live.sandbox.scontrol("show", "node", victim)
        assert "DRAIN" in node, "what was lost is not trusted again by itself"


def where(live: Chaos, job: int) -> tuple[str, str, str]:
    """The job's state, node and restart count. Asked where the head node is: it has a network
    of its own here.
    """
    args = ["squeue", "-h", "-j", str(job), "-O", "State:20,RestartCnt:10,NodeList:40"]
    state, restarts, *node = live.sandbox.run(args).stdout.split()
    return state, "".join(node), restarts


def runs_since(path: Path, moment: float) -> set[str]:
    """Which runs of the job have written lately."""
    lines = [line.split() for line in path.read_text().splitlines()]
    return {run for run, at in lines if int(at) >= moment}

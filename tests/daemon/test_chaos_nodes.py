"""Nodes that hang, die, lie or go silent: only what two observers agree on is acted on."""

import json
import time
from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]


@pytest.fixture(scope="module")
def shared():
    # Agents report every 10 s; Slurm gives a slurmd up after 8 s.
    with cluster({"ages": {"silent_s": 12.0}}, slurm_conf="SlurmdTimeout=8\n") as live:
        yield live


def condition(live: Chaos, node: str) -> str:
    shown = json.loads(live.hpctl("nodes", "--json", check=False))
    (row,) = [r for r in shown["nodes"] if r["name"] == node]
    return str(row["condition"])


def test_silent_agent_alone_opens_no_recovery(live: Chaos) -> None:
    hung, killed = live.victims(2)
    job = live.start("srun sleep 600", "--nodes=2", f"--nodelist={hung},{killed}")
    live.sandbox.inject(hung, "hang-agent")
    live.sandbox.inject(killed, "kill-agent")
    until(lambda: condition(live, hung) == "unknown", 30, "unknown")
    time.sleep(4)
    assert live.of(hung) + live.of(killed) == []
    assert live.running(job)
    assert live.job(job).restarts == 0
    live.sandbox.inject(hung, "thaw-node")
    until(lambda: condition(live, hung) == "healthy", 15, "heard again")


def test_a_frozen_node_loses_its_job_and_is_fixed_once(live: Chaos) -> None:
    output = Path(live.sandbox.state_dir) / "writers"
    loop = f"while :; do echo $SLURM_RESTART_COUNT $(date +%s) >> {output}; sleep 1; done"
    body = f"srun sh -c '{loop}'"
    job = live.start(body, "--nodes=2")
    victim = str(live.job(job).nodes[1])
    old = live.instance(victim)
    before = live.accepted(old, "BatchRebootClusterNodes") + live.accepted(old)
    live.mark(victim)
    live.sandbox.inject(victim, "freeze-node")
    until(lambda: live.running(job, restarts=1), 45, "moved")
    assert victim not in live.job(job).nodes
    assert live.returned(victim, timeout_s=60).rule == "node-lost"
    assert live.accepted(old, "BatchRebootClusterNodes") + live.accepted(old) == before + 1
    assert live.job(job).restarts == 1
    # A frozen writer that thaws would write beside the new run: the reboot has ended it.
    until(lambda: any(r == "1" for r, _ in _lines(output)), 15, "the new run writes")
    begun = min(int(t) for r, t in _lines(output) if r == "1")
    assert not [t for r, t in _lines(output) if r != "1" and int(t) > begun + 2]


def _lines(path: Path) -> list[tuple[str, str]]:
    found = []
    for line in path.read_text().splitlines():
        args = line.split()
        found.append((args[0] if len(args) == 2 else "0", args[-1]))
    return found

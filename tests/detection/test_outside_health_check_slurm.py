"""A real slurmd runs hpctl's HealthCheckProgram: it prints a verdict and drains nothing."""

import subprocess
from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import ROOT, until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
PLUGINS = Path(ROOT) / "slurm_plugins"
HEALTH = """#!/bin/sh
export HPCTL_AGENT_SOCKET={base}/s/nodes/$SLURMD_NODENAME/agent.sock
said=$({base}/health_check.sh 2>&1)
echo "$SLURMD_NODENAME $? $said" >>{base}/verdicts
"""
FILES = {"health": HEALTH, "health_check.sh": (PLUGINS / "health_check.sh").read_text()}
CONF = "HealthCheckProgram={base}/health\nHealthCheckInterval=2\n"


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=2, files=FILES, slurm_conf=CONF) as live:
        program = Path(live.sandbox.state_dir).parent / "hpctl_verdict"
        command = ["cc", "-O2", "-o", str(program), str(PLUGINS / "hpctl_verdict.c")]
        subprocess.run(command, check=True, timeout=60)
        yield live


def last_verdict(live: Chaos, node: str) -> str:
    """Return the exit code and the line of a node's newest health check."""
    path = Path(live.sandbox.state_dir).parent / "verdicts"
    lines = path.read_text().splitlines() if path.exists() else []
    own = [line for line in lines if line.startswith(f"{node} ")]
    return own[-1].partition(" ")[2] if own else ""


def test_slurmd_prints_the_agents_verdict_and_drains_nothing(live: Chaos):
    (node,) = live.victims(1)
    (other,) = set(live.sandbox.nodes) - {node}
    for name in (node, other):
        until(
            lambda name=name: last_verdict(live, name) == f"0 PASS: {name} is healthy", 60, "both"
        )
    live.hpctl("pause")
    live.xid(node)
    begin = f"0 CRITICAL: {node} is faulty: Xid 79"
    until(lambda: last_verdict(live, node).startswith(begin), 60, "the node's verdict changes")
    until(lambda: node in live.state().holds, 60, "the daemon knows of the fault, and is paused")
    assert live.node(node).in_service, "only the daemon drains"
    assert last_verdict(live, other) == f"0 PASS: {other} is healthy"
    live.hpctl("unpause")
    until(lambda: live.node(node).reason.startswith("hpctl:"), 60, "the drain is the daemon's")
    live.returned(node)
    until(lambda: last_verdict(live, node) == f"0 PASS: {node} is healthy", 60, "it is repaired")

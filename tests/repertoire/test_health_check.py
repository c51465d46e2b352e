"""slurmd runs hpctl's HealthCheckProgram: it prints the verdict of the node's agent, and drains nothing."""

from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
PLUGINS = ROOT / "slurm_plugins"
HEALTH = f"""#!/bin/sh
export HPCTL_AGENT_SOCKET={{base}}/s/nodes/$SLURMD_NODENAME/agent.sock
said=$({PLUGINS}/health_check.sh 2>&1)
echo "$SLURMD_NODENAME $? $said" >>{{base}}/verdicts
"""
CONF = "HealthCheckProgram={base}/health\nHealthCheckInterval=2\n"


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=2, files={"health": HEALTH}, slurm_conf=CONF) as live:
        yield live


def verdicts(live: Chaos) -> str:
    path = Path(live.sandbox.state_dir).parent / "verdicts"
    return path.read_text() if path.exists() else ""

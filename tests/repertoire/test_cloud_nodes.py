"""Nodes of `State=CLOUD`: one in service is treated as any other, one powered down is not."""

import pytest

from tests.daemon.chaos import Chaos
from tests.live import until
from tests.repertoire.network import NEEDS_ROOT, network_of_head
from tests.repertoire.power import power_calls, power_cluster, power_down, power_up
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly, NEEDS_ROOT]
HEADER = "#!/bin/sh\n#SBATCH --requeue --exclusive\n"


@pytest.fixture(scope="module")
def live():
    settings = {"netns": True, "cloud_nodes": True}
    with power_cluster(nodes=3, **settings) as live, network_of_head(live.sandbox):
        yield live


@story(
    job="Batch job on a node of `State=CLOUD`",
    act="the node dies",
    slurm="The job runs again elsewhere; the node is rebooted or replaced, and returns.",
    explain="The node is lost: its agent is silent and its slurmd does not answer.",
    owner="The job runs again by itself.",
)
def test_a_cloud_node_that_dies_is_recovered(live: Chaos):
    job = live.start("sleep 600", header=HEADER)
    (node,) = live.job(job).nodes
    assert "CLOUD" in live.node(node).flags
    live.mark(node)
    live.sandbox.inject(node, "kill-node")
    until(lambda: live.running(job, 1), 120, "it runs again")
    assert node not in live.job(job).nodes
    live.returned(node, 60)
    live.sandbox.run(["scancel", str(job)])
    until(live.all_idle, 60, "every node is in service again")


@story(
    job="Node of `State=CLOUD`",
    act="Slurm powers it down, and before 23.02 hides it",
    slurm="The node stays powered down; once a job has started it, it is a node like any other.",
    explain="`hpctl status` is fine: it counts the node as `IDLE+POWERED_DOWN`, or not at all.",
)
def test_a_cloud_node_that_is_powered_down_is_left_alone(live: Chaos):
    (node,) = live.victims(1)
    live.mark(node)
    power_down(live, node)
    hidden = node not in live.scheduler.view().nodes
    shown = "nodes 2 in Slurm 2 IDLE" if hidden else "1 IDLE+POWERED_DOWN"
    until(lambda: shown in " ".join(live.hpctl("status").split()), 60, "status shows it")
    assert live.of(node) == []
    assert power_calls(live, "boot-node", node) == 0
    power_up(live)
    live.xid(node)
    live.returned(node, 60)

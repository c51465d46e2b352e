"""EC2's notice moves the job off a spot instance before that is taken back."""

import time

import pytest

from tests.daemon.scenarios.conftest import World
from tests.live import EAGER, FAST, Live, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.nightly,
    pytest.mark.timeout(300),
]


def test_a_notice_moves_the_job_and_orders_nothing(sandbox_factory, tmp_path):
    settings = {"mode": "own", "daemon": True, "config": FAST, "slurm_conf": EAGER}
    world = World(sandbox_factory(empty=True, nodes=3, **settings), tmp_path)
    world.write(workers=3, capacity="spot")
    world.create()
    live = Live(world.sandbox)
    job = live.submit("srun sleep 600", "--nodes=2")
    until(lambda: live.running(job), 20, "job runs")
    victim = str(live.job(job).nodes[-1])
    begun = time.monotonic()
    world.sandbox.inject_api("spot-interruption", node=victim, seconds=120)
    until(lambda: live.running(job, restarts=1), 60, "job runs elsewhere")
    assert time.monotonic() - begun < 60
    assert victim not in live.job(job).nodes
    (recovery,) = live.node_recoveries()
    assert (recovery.node, recovery.rule) == (victim, "host-spot-interruption")
    assert live.node(victim).drained
    until(lambda: live.node_recoveries()[0].phase == "remedying", 10, "its successor is awaited")
    assert live.calls("BatchReplaceClusterNodes") == live.calls("BatchRebootClusterNodes") == 0

"""EC2's notice to a spot instance, in its own words, moves the job before the instance is gone."""

import time

import pytest

from tests.conftest import SandboxFactory
from tests.integration import provision
from tests.integration.live import EAGER, FAST, Live, until

pytestmark = [pytest.mark.slurm, pytest.mark.nightly, pytest.mark.timeout(180)]


def test_a_notice_moves_the_job_and_orders_nothing(sandbox_factory: SandboxFactory) -> None:
    settings = {"mode": "own", "daemon": True, "config": FAST, "slurm_conf": EAGER}
    sandbox = sandbox_factory(empty=True, nodes=3, **settings)
    provision.script(sandbox, "#!/bin/sh\necho fine\n")
    spot = provision.group(sandbox, "h100", 3, CapacityRequirements={"Spot": {}})
    controller = provision.group(sandbox, "controller", 1)
    provision.create(sandbox, InstanceGroups=[controller, spot])
    provision.until(lambda: list(provision.states(sandbox).values()) == ["idle"] * 3, "three nodes")
    live = Live(sandbox)
    job = live.submit("srun sleep 600", "--nodes=2")
    until(lambda: live.running(job), 20, "job runs")
    victim = str(live.job(job).nodes[-1])
    begun = time.monotonic()
    sandbox.inject_api("spot-interruption", node=victim, seconds=120)
    until(lambda: live.running(job, restarts=1), 60, "job runs elsewhere")
    assert time.monotonic() - begun < 60
    assert victim not in live.job(job).nodes
    (recovery,) = live.node_recoveries()
    assert (recovery.node, recovery.rule) == (victim, "host-spot-interruption")
    assert live.node(victim).drained
    until(lambda: live.node_recoveries()[0].phase == "remedying", 10, "its successor is awaited")
    assert live.calls("BatchReplaceClusterNodes") == live.calls("BatchRebootClusterNodes") == 0

"""HyperPod's own recovery is on as well: two doctors, one patient."""

from __future__ import annotations

import pytest

from tests.integration.chaos import REPLACE, cluster, stays
from tests.integration.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]


def test_one_of_two_doctors_steps_back() -> None:
    conf = "SlurmdTimeout=8\n"
    settings = {"ages": {"silent_s": 12.0}}
    given = {"nodes": 4, "node_recovery": "Automatic", "slurm_conf": conf, "boot_time": 15.0}
    with cluster(settings, **given) as live:
        job = live.start("srun sleep 600", "--nodes=2")
        victim = str(live.job(job).nodes[1])
        old = live.instance(victim)
        # Mode own beside NodeRecovery=Automatic: hpctl says so and leaves the node alone.
        live.xid(victim)
        until(lambda: victim in live.state().holds, 10, "a hold")
        assert live.state().holds[victim].gate == "two_doctors"
        assert "mode assist" in live.state().holds[victim].why
        stays(lambda: not live.node(victim).drained, 2, "not touched")
        assert live.running(job)
        # Mode assist: hpctl drains and moves the job, and leaves the instance to the service.
        live.reconfigure(mode="assist")
        until(lambda: live.running(job, restarts=1), 20, "the job is moved")
        assert victim not in live.job(job).nodes
        until(lambda: live.phase(victim) == "remedying", 10, "left to the service")
        assert live.instance(victim) == old
        live.sandbox.inject_api("second-actor", node=victim)
        recovery = live.returned(victim)
        assert [t.phase for t in recovery.trail][-2:] == ["verifying", "returned"]
        assert live.instance(victim) != old
        # A node that dies is seen by both; the service replaces it, hpctl verifies and returns.
        lost = str(live.job(job).nodes[0])
        live.mark(lost)
        live.sandbox.inject(lost, "kill-node")
        until(lambda: live.running(job, restarts=2), 45, "the job is moved again")
        live.returned(lost, timeout_s=60)
        assert live.calls(REPLACE) == 0
        assert live.calls("BatchRebootClusterNodes") == 0
        live.settle()

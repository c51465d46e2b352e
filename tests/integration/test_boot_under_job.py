"""An instance that reboots and is back before slurmctld has called its node DOWN."""

from __future__ import annotations

import pytest

from tests.integration.chaos import cluster
from tests.integration.live import until
from tests.integration.provision import client

pytestmark = pytest.mark.slurm


def test_a_job_whose_node_booted_under_it_does_not_sit_out_slurms_delay() -> None:
    with cluster(nodes=3) as live:
        (victim,) = live.victims(1)
        job = live.start("sleep 600", f"--nodelist={victim}")
        # Not by hpctl: somebody reboots the instance, and nothing is wrong with it.
        client(live.sandbox, "sagemaker").batch_reboot_cluster_nodes(
            ClusterName=live.config.cluster.name, NodeIds=[live.instance(victim)]
        )
        until(lambda: live.running(job, restarts=1), 40, "it runs again, without Slurm's 121 s")
        until(lambda: len(live.of_job(job)) == 1, 5, "by a recovery of its own")
        log = (live.sandbox.state_dir / "log" / "slurmctld.log").read_text(errors="replace")
        assert "missing from batch node" in log

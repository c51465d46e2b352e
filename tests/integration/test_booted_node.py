"""A node that is back before slurmctld has called it DOWN: Slurm requeues its job by itself."""

import time

import pytest

from tests.integration.chaos import cluster
from tests.integration.live import until
from tests.integration.provision import client

pytestmark = pytest.mark.slurm

MISSING_AFTER_S = 45.0
"""slurmctld looks for a batch job that its node does not run once the job is so old."""


def test_a_job_whose_node_boots_under_it_is_started_without_slurms_delay() -> None:
    with cluster(nodes=4) as live:
        job = live.start("sleep 600", "--requeue")
        host = str(live.job(job).batch_host)
        time.sleep(MISSING_AFTER_S)
        instance = live.instance(host)
        client(live.sandbox, "sagemaker").batch_reboot_cluster_nodes(
            ClusterName=live.sandbox.spec.cluster, NodeIds=[instance]
        )
        until(lambda: live.job(job).restarts == 1, 60, "Slurm requeues it")
        until(lambda: live.job(job).state == "RUNNING", 60, "it runs again")
        (recovery,) = [r for r in live.job_recoveries() if r.attempt.job == job]
        assert recovery.trouble is not None
        assert "which had booted" in recovery.trouble.why

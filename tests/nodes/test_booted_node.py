"""A node that is back before slurmctld has called it DOWN: Slurm requeues its job by itself."""

import time

import boto3
import pytest

from tests.daemon.chaos import cluster
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]

MISSING_AFTER_S = 18.0
"""slurmctld looks for a batch job that its node does not run once the job is so old."""
CONF = "BatchStartTimeout=2\nMessageTimeout=5\n"


def test_a_job_whose_node_boots_under_it_is_started_without_slurms_delay() -> None:
    with cluster(nodes=4, slurm_conf=CONF) as live:
        job = live.start("sleep 600", "--requeue")
        host = str(live.job(job).batch_host)
        time.sleep(MISSING_AFTER_S)
        sandbox, instance = live.sandbox, live.instance(host)
        sagemaker = boto3.client(
            "sagemaker",
            endpoint_url=sandbox.endpoint_url,
            region_name="us-east-1",
            aws_access_key_id=sandbox.spec.access_key,
            aws_secret_access_key=sandbox.spec.secret_key,
        )
        sagemaker.batch_reboot_cluster_nodes(ClusterName=sandbox.spec.cluster, NodeIds=[instance])
        until(lambda: live.job(job).restarts == 1, 60, "Slurm requeues it")
        until(lambda: live.job(job).state == "RUNNING", 60, "it runs again")
        (recovery,) = [r for r in live.job_recoveries() if r.attempt.job == job]
        assert "which had booted" in recovery.trouble.why

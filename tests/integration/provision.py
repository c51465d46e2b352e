"""A cluster of an empty sandbox, as boto3 and the command line see it."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import boto3

from hpctl.sandbox.api import Sandbox

NAME = "demo"
LIMIT_S = 30.0


def client(sandbox: Sandbox, service: str) -> Any:
    """boto3's client for one of the sandbox's services."""
    make: Callable[..., Any] = boto3.client
    urls = sandbox.exports
    own = f"AWS_ENDPOINT_URL_{service.upper().replace('-', '_')}"
    return make(
        service,
        endpoint_url=urls.get(own, urls["AWS_ENDPOINT_URL"]),
        region_name="us-east-1",
        aws_access_key_id=urls["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=urls["AWS_SECRET_ACCESS_KEY"],
    )


def hpctl(
    sandbox: Sandbox, *words: str, check: bool = True, timeout: float = 90.0
) -> subprocess.CompletedProcess[str]:
    """Run a command of hpctl in the sandbox's environment."""
    return sandbox.run([sys.executable, "-m", "hpctl", *words], check=check, timeout=timeout)


def group(sandbox: Sandbox, name: str, count: int, **more: Any) -> dict[str, Any]:
    """An instance group as CreateCluster takes it: `controller`, or workers of that partition."""
    worker = name != "controller"
    slurm = {"NodeType": "Compute", "PartitionNames": [name]} if worker else {}
    return {
        "InstanceGroupName": name,
        "InstanceType": "ml.p5.48xlarge" if worker else "ml.m5.xlarge",
        "InstanceCount": count,
        "ExecutionRole": sandbox.aws["execution_role"],
        "LifeCycleConfig": {"SourceS3Uri": sandbox.aws["lifecycle"], "OnCreate": "on_create.sh"},
        "SlurmConfig": slurm or {"NodeType": "Controller"},
        **more,
    }


def create(sandbox: Sandbox, workers: int = 2, **more: Any) -> str:
    """CreateCluster, without waiting; the ARN."""
    groups = [group(sandbox, "controller", 1), group(sandbox, "h100", workers)]
    request = {"InstanceGroups": groups, "NodeProvisioningMode": "Continuous", **more}
    answer = client(sandbox, "sagemaker").create_cluster(
        ClusterName=NAME, NodeRecovery="None", **request
    )
    return str(answer["ClusterArn"])


def counts(sandbox: Sandbox) -> dict[str, tuple[int, int]]:
    """CurrentCount and TargetCount by group."""
    told = client(sandbox, "sagemaker").describe_cluster(ClusterName=NAME)["InstanceGroups"]
    return {g["InstanceGroupName"]: (g["CurrentCount"], g["TargetCount"]) for g in told}


def states(sandbox: Sandbox, partition: str = "dev") -> dict[str, str]:
    """What slurmctld says of the nodes of a partition.

    It may hang up while it reads its configuration: what it said then stands for the nodes.
    """
    done = sandbox.run(["sinfo", "-Nho", "%N %T", "-p", partition], check=False)
    if done.returncode != 0:
        return {"sinfo": done.stderr}
    lines = done.stdout.split()
    return dict(zip(lines[::2], lines[1::2], strict=True))


def script(sandbox: Sandbox, text: str) -> None:
    """Put another lifecycle script into the groups' S3 prefix."""
    bucket, _, prefix = sandbox.aws["lifecycle"].removeprefix("s3://").partition("/")
    client(sandbox, "s3").put_object(Bucket=bucket, Key=f"{prefix}on_create.sh", Body=text.encode())


def until(done: Callable[[], bool], what: str = "it", limit_s: float = LIMIT_S) -> None:
    """Wait for something to hold. Fails when it does not."""
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, f"{what} did not come to pass in {limit_s:g} s"
        time.sleep(0.1)


def delete(sandbox: Sandbox) -> None:
    """Delete the cluster, if there is one, and wait for its end."""
    sagemaker = client(sandbox, "sagemaker")

    def gone() -> bool:
        there = sagemaker.list_clusters()["ClusterSummaries"]
        if there and there[0]["ClusterStatus"] in ("InService", "Failed"):
            sagemaker.delete_cluster(ClusterName=there[0]["ClusterName"])
        return not there

    until(gone, "the cluster's end")

"""A cluster that is created, scaled and deleted through the API: its nodes come and go in Slurm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from hpctl.clusters.failures import log_place
from hpctl.sandbox.api import Sandbox
from tests.integration import provision
from tests.integration.provision import client, counts, create, group, script, states, until

pytestmark = pytest.mark.slurm

FINE = '#!/bin/sh\necho "on $(basename "$PWD"): fine"\n'
FAILS = """#!/bin/sh
echo "step=mount_fsx start"
case "$(cat "$SAGEMAKER_RESOURCE_CONFIG_PATH" | tr -d ' \\n')" in
*h100-2*) case "$SAGEMAKER_RESOURCE_CONFIG_PATH" in *1-2/*) echo "step=mount_fsx failed"; exit 7;;
esac;; esac
"""


@pytest.fixture
def empty(empty_sandbox: Sandbox) -> Iterator[Sandbox]:
    script(empty_sandbox, FINE)
    yield empty_sandbox
    provision.delete(empty_sandbox)
    assert states(empty_sandbox) == {}


def log_of(sandbox: Sandbox, arn: str, name: str, instance: str) -> list[str]:
    where = log_place(arn, provision.NAME, name, instance)
    told = client(sandbox, "logs").get_log_events(
        logGroupName=where.group, logStreamName=where.stream, startFromHead=True
    )
    return [e["message"] for e in told["events"]]


def instances(sandbox: Sandbox, name: str) -> list[str]:
    told = client(sandbox, "sagemaker").list_cluster_nodes(
        ClusterName=provision.NAME, InstanceGroupNameContains=name
    )
    return [n["InstanceId"] for n in told["ClusterNodeSummaries"]]


def test_nodes_join_and_leave_slurm_with_their_instances(empty: Sandbox) -> None:
    assert states(empty) == {}
    arn = create(empty)
    until(lambda: list(states(empty, "h100").values()) == ["idle", "idle"], "two idle nodes")
    assert states(empty) == states(empty, "h100")
    assert empty.run(["srun", "-N2", "-p", "h100", "--gres=gpu:8", "echo", "here"]).stdout == (
        "here\nhere\n"
    )
    for name in ("controller", "h100"):
        for instance in instances(empty, name):
            assert log_of(empty, arn, name, instance)[1:] == [
                "on lifecycle: fine",
                "[SageMaker] Lifecycle scripts succeeded.",
            ]

    job = empty.run(
        ["sbatch", "--parsable", "-w", "ip-127-0-1-1", "-o", "/dev/null", "--wrap", "sleep 600"]
    ).stdout.strip()
    until(lambda: states(empty)["ip-127-0-1-1"] == "mixed", "the job's start")
    sagemaker = client(empty, "sagemaker")
    more = [group(empty, "h100", 3), group(empty, "extra", 1)]
    sagemaker.update_cluster(ClusterName=provision.NAME, InstanceGroups=more)
    until(lambda: sorted(states(empty).values()) == ["idle"] * 3 + ["mixed"], "four nodes")
    assert list(states(empty, "extra").values()) == ["idle"]
    with pytest.raises(ClientError, match="ResourceLimitExceeded"):
        sagemaker.update_cluster(
            ClusterName=provision.NAME, InstanceGroups=[group(empty, "h100", 4)]
        )

    busy = next(n["instance_id"] for n in empty.status()["nodes"] if n["node"] == "ip-127-0-1-1")
    others = [i for i in instances(empty, "h100") if i != busy]
    sagemaker.batch_delete_cluster_nodes(ClusterName=provision.NAME, NodeIds=others)
    sagemaker.update_cluster(ClusterName=provision.NAME, InstanceGroupsToDelete=["extra"])
    until(lambda: list(states(empty)) == ["ip-127-0-1-1"], "one node left")
    assert empty.run(["squeue", "-ho", "%T", "-j", job]).stdout == "RUNNING\n"
    sagemaker.batch_delete_cluster_nodes(ClusterName=provision.NAME, NodeIds=[busy])
    until(lambda: empty.run(["squeue", "-ho", "%T", "-j", job]).stdout != "RUNNING\n", "its end")
    empty.run(["scancel", job])


def test_a_lifecycle_script_that_fails_is_told_in_its_log_and_tried_again(empty: Sandbox) -> None:
    script(empty, FAILS)
    arn = create(empty)
    sagemaker = client(empty, "sagemaker")

    failed: list[dict[str, Any]] = []

    def found() -> bool:
        told = sagemaker.list_cluster_nodes(ClusterName=provision.NAME)["ClusterNodeSummaries"]
        failed.extend(n for n in told if n["InstanceStatus"]["Status"] == "Failure")
        return bool(failed)

    until(found, "a failure")
    until(lambda: counts(empty)["h100"] == (1, 2), "the other node")
    until(lambda: states(empty).get("ip-127-0-1-1") == "idle", "its slurmd")
    assert states(empty)["ip-127-0-1-2"] != "idle"
    told = log_of(empty, arn, "h100", failed[0]["InstanceId"])
    assert told[1:3] == ["step=mount_fsx start", "step=mount_fsx failed"]
    assert "exited with code 7" in told[3]
    assert "mount_fsx" not in failed[0]["InstanceStatus"]["Message"]
    script(empty, FINE)
    until(lambda: counts(empty)["h100"] == (2, 2), "another try")
    until(lambda: list(states(empty).values()) == ["idle"] * 2, "both nodes")


def test_roles_come_from_provisioning_parameters_where_the_api_has_none(empty: Sandbox) -> None:
    bucket, _, prefix = empty.aws["lifecycle"].removeprefix("s3://").partition("/")
    parameters = {"controller_group": "controller", "worker_groups": []}
    client(empty, "s3").put_object(
        Bucket=bucket,
        Key=f"{prefix}provisioning_parameters.json",
        Body=json.dumps(parameters).encode(),
    )
    groups = [group(empty, "controller", 1), group(empty, "h100", 1)]
    for one in groups:
        del one["SlurmConfig"]
    client(empty, "sagemaker").create_cluster(ClusterName=provision.NAME, InstanceGroups=groups)
    until(lambda: states(empty) == {"ip-127-0-1-1": "idle"}, "one worker")
    [head] = [
        n
        for n in client(empty, "sagemaker").list_cluster_nodes(ClusterName=provision.NAME)[
            "ClusterNodeSummaries"
        ]
        if n["InstanceGroupName"] == "controller"
    ]
    assert head["PrivateDnsHostname"].startswith("ip-127-0-0-1.")
    # Beside groups that the API configures it would end their creation.
    client(empty, "s3").delete_object(Bucket=bucket, Key=f"{prefix}provisioning_parameters.json")

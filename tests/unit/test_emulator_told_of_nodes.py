"""What AWS's pages tell of Continuous provisioning and of nodes, each with its page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hpctl.sandbox.bootplan import resource_config
from hpctl.sandbox.emulator import NullMachines
from hpctl.sandbox.emulator.launch import Timings
from tests.contract.provider.beds import cluster, counts, group
from tests.unit.emulator_calls import code, described, nodes, settled, until
from tests.unit.test_emulator_told_by_aws import SCRIPTS, Make, created, told, update
from tests.unit.test_emulator_told_by_aws import machines as machines
from tests.unit.test_emulator_told_by_aws import make as make
from tests.unit.test_emulator_told_by_aws import prefix as prefix

# --- Continuous provisioning ------------------------------------------------------------------


def test_counts_may_change_while_a_group_is_creating(make: Make) -> None:
    """The guide, sagemaker-hyperpod-scaling-slurm: during Creating or Updating "you can still
    modify MinCount and TargetCount values to correct configuration errors".
    """
    api = make()
    api.emulator.capacity.set({"types": {"ml.p5.48xlarge": 2}})
    api.emulator.create(
        cluster(
            "demo",
            InstanceGroups=[
                group("controller", "Controller", 1),
                group("workers", "Compute", 4, MinInstanceCount=3),
            ],
        )
    )
    until(api, lambda: counts(api)["workers"] == (2, 4))
    assert described(api)["Status"] == "Creating"
    other = group("workers", "Compute", 4, MinInstanceCount=3, LifeCycleConfig=SCRIPTS)
    assert code(update(api, other)) == "ConflictException"
    assert code(update(api, group("workers", "Compute", 3, MinInstanceCount=2))) == ""
    until(api, lambda: described(api)["Status"] != "Creating")
    assert (described(api)["TargetCount"], described(api)["MinCount"]) == (3, 2)


def test_a_minimum_missed_brings_the_counts_of_before_back(make: Make) -> None:
    """The same page, "Automatic rollback behavior": both counts are restored, the timeout begins
    anew with each update, and unhealthy instances go first, then the most recent.
    """
    api = make()
    created(api)
    old = {n["InstanceId"] for n in nodes(api)}
    api.emulator.capacity.set({"types": {"ml.p5.48xlarge": 6}})
    api.emulator.launches.timings = replace(api.emulator.launches.timings, minimum_s=0.3)
    for minimum in (8, 7):
        update(api, group("workers", "Compute", 8, MinInstanceCount=minimum))
    until(api, lambda: counts(api)["workers"] == (4, 4))
    assert "MinCount" not in described(api)
    assert described(api)["Status"] == "InService"
    settled(api)
    assert {n["InstanceId"] for n in nodes(api)} == old


def test_a_login_group_that_fails_keeps_a_cluster_from_service(
    make: Make, machines: NullMachines
) -> None:
    """The same page, "Priority-based provisioning": InService "when one controller node is up and
    one login node is up (if a login instance group is specified)".
    """
    api = make()
    machines.fail_boot = {"login-1"}
    spec = cluster("demo")
    spec["InstanceGroups"].append(group("login", "Login", 1))
    api("CreateCluster", **spec)
    until(api, lambda: counts(api)["workers"] == (4, 4))
    until(api, lambda: len([v for v, i in machines.done if v == "boot"]) > 8)
    assert told(api)["ClusterStatus"] == "Creating"
    machines.fail_boot = set()
    until(api, lambda: told(api)["ClusterStatus"] == "InService")


@pytest.mark.parametrize("inherits", [True, False])
def test_a_new_group_has_the_image_of_the_earliest(make: Make, inherits: bool) -> None:
    """API model, ImageId: "For clusters with continuous scaling node provisioning mode, new
    instance groups inherit the AMI from the earliest existing instance group"; ImageReleaseVersion
    there: "If omitted, the latest available version is used".
    """
    api = make(inherits_image=inherits)
    created(api)
    api.emulator.publish("2.0.0")
    update(api, group("new", "Compute", 1))
    release = described(api, "new")["CurrentImageReleaseVersion"]
    assert release == ("1.0.0" if inherits else "2.0.0")


# --- nodes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["InstanceIdInUse", "InstanceIdNotFound"])
def test_the_id_of_a_replaced_instance_lingers(make: Make, said: str) -> None:
    """API model, BatchReplaceClusterNodes: InstanceIdInUse is "Another operation is already in
    progress for this node". Nobody says how long the old id is known, and what it gets.
    """
    api = make(lingers_s=0.6, lingering_code=said)
    created(api)
    api.emulator.launches.timings = Timings(boot_s=0.02)
    old = nodes(api)[0]["InstanceId"]
    api("BatchReplaceClusterNodes", ClusterName="demo", NodeIds=[old])
    settled(api)
    states = {n["InstanceId"]: n["InstanceStatus"]["Status"] for n in nodes(api)}
    assert (len(states), states.pop(old)) == (5, "ShuttingDown")
    assert set(states.values()) == {"Running"}
    detail = api("DescribeClusterNode", ClusterName="demo", NodeId=old)["NodeDetails"]
    assert detail["InstanceStatus"]["Status"] == "ShuttingDown"
    answer = api("BatchReplaceClusterNodes", ClusterName="demo", NodeIds=[old])
    assert answer["Failed"][0]["ErrorCode"] == said
    gone = api("BatchDeleteClusterNodes", ClusterName="demo", NodeIds=[old])
    assert code(gone) == "ValidationException"
    until(api, lambda: old not in {n["InstanceId"] for n in nodes(api)})
    answer = api("BatchReplaceClusterNodes", ClusterName="demo", NodeIds=[old])
    assert answer["Failed"][0]["ErrorCode"] == "InstanceIdNotFound"


@pytest.mark.parametrize("rolling", [True, False])
def test_rolling_batches_may_mean_nothing_on_slurm(
    make: Make, machines: NullMachines, rolling: bool
) -> None:
    """Rolling batches are for EKS (AWS's notes on HyperPod); the API takes them of any cluster."""
    api = make(rolling_batches=rolling)
    created(api)
    api.emulator.publish("2.0.0")
    policy = {"MaximumBatchSize": {"Type": "INSTANCE_COUNT", "Value": 1}}
    updating: list[int] = []
    api.emulator.launches.machines.destroy = lambda m: updating.append(  # type: ignore[method-assign]
        sum(
            n.operation == "SoftwareUpdate"
            for n in api.emulator.world.cluster("demo").nodes.values()
        )
    )
    api(
        "UpdateClusterSoftware",
        ClusterName="demo",
        InstanceGroups=[{"InstanceGroupName": "workers"}],
        DeploymentConfig={"RollingUpdatePolicy": policy},
    )
    until(api, lambda: described(api).get("SoftwareUpdateStatus") == "Succeeded")
    settled(api)
    assert (max(updating) == 1) == rolling


def test_the_agents_address_is_not_the_nodes(make: Make, tmp_path: Path) -> None:
    """AWS's devops-agent notes (awsome-distributed-ai): HyperPod's agents stand in a network
    namespace of their own; in resource_config.json AgentIpAddress is theirs.
    """
    api = make()
    created(api)
    config = resource_config("demo", "arn", {}, list(api.emulator.machines_of("demo")))
    for one in (i for g in config["InstanceGroups"] for i in g["Instances"]):
        assert one["AgentIpAddress"] != one["CustomerIpAddress"]
        assert one["CustomerIpAddress"].startswith("127.0.")

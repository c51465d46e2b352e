"""What AWS's pages tell of the service, each with its page. "The guide" is SageMaker's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest

from hpctl.sandbox.bootplan import resource_config
from hpctl.sandbox.emulator import Emulator, NullMachines
from hpctl.sandbox.emulator.launch import Timings
from hpctl.sandbox.emulator.state import Unknowns
from tests.contract.provider.beds import Client, cluster, counts, group
from tests.unit.emulator_calls import code, created, described, nodes, settled, until, update

BOTH = (
    "The LifeCycleConfig cannot include both a SLURM Orchestrator Config and a "
    "provisioning_parameters.json file simultaneously."
)
SCRIPTS = {"SourceS3Uri": "s3://sagemaker-x/scripts", "OnCreate": "on_create.sh"}
FILE = {
    "controller_group": "controller",
    "login_group": "login",
    "worker_groups": [{"instance_group_name": "workers", "partition_name": "gpu"}],
}


class Make(Protocol):
    def __call__(self, **unknowns: Any) -> Client: ...


@pytest.fixture
def machines() -> NullMachines:
    return NullMachines()


@pytest.fixture
def prefix() -> dict[str, Any]:
    """What lies beside the scripts; without `file` no provisioning_parameters.json does."""
    return {}


@pytest.fixture
def make(machines: NullMachines, prefix: dict[str, Any]) -> Iterator[Make]:
    made: list[Emulator] = []

    def one(**unknowns: Any) -> Client:
        emulator = Emulator(
            machines,
            boot_time_s=0.02,
            retry_time_s=0.05,
            parameters=lambda group: prefix.get("file") if "LifeCycleConfig" in group else None,
            unknowns=Unknowns(**unknowns),
        )
        emulator.start()
        made.append(emulator)
        return Client(emulator)

    yield one
    for emulator in made:
        emulator.stop()
        assert emulator.response_errors == []


def legacy(**more: Any) -> list[dict[str, Any]]:
    """A controller and workers as before the API configured Slurm."""
    made = [group("controller", "Controller", 1), group("workers", "Compute", 2)]
    for one in made:
        del one["SlurmConfig"]
        one["LifeCycleConfig"] = SCRIPTS
    return [{**one, **more} for one in made]


def with_slurm(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    slurm = [
        {"NodeType": "Controller"},
        {"NodeType": "Compute", "PartitionNames": ["gpu"]},
    ]
    return [{**g, "SlurmConfig": s} for g, s in zip(groups, slurm, strict=True)]


def told(api: Client) -> dict[str, Any]:
    return dict(api("DescribeCluster", ClusterName="demo"))


def rolled_back(api: Client) -> str:
    """Wait for the end of an update that was taken; its FailureMessage, and its way."""
    seen = []

    def done() -> bool:
        status = api.emulator.world.cluster("demo").status
        if not seen or seen[-1] != status:
            seen.append(status)
        return "RollingBack" in seen and status == "InService"

    until(api, done)
    assert seen[0] == "Updating"
    return str(told(api)["FailureMessage"])


# --- the migration to API-driven Slurm configuration ------------------------------------------


def test_groups_that_are_there_are_given_slurm_config(make: Make, prefix: dict[str, Any]) -> None:
    """The guide, sagemaker-hyperpod-slurm-api-config-migration, steps 4 and 5; its request names
    no ThreadsPerCore.
    """
    prefix["file"] = FILE
    api = make()
    groups = legacy(ThreadsPerCore=1)
    created(api, *groups, continuous=False)
    machines = {m.name: (m.role, m.partition) for m in api.emulator.machines_of("demo")}
    assert machines["controller-1"] == ("controller", "")
    assert machines["workers-2"] == ("compute", "gpu")
    prefix.clear()
    ids = {n["InstanceId"] for n in nodes(api)}
    update(api, *with_slurm(legacy()), Orchestrator={"Slurm": {"SlurmConfigStrategy": "Merge"}})
    assert told(api)["ClusterStatus"] == "Updating"
    settled(api)
    worker = described(api)
    assert worker["SlurmConfig"] == {"NodeType": "Compute", "PartitionNames": ["gpu"]}
    assert worker["ThreadsPerCore"] == 1
    assert "FailureMessage" not in told(api)
    assert {n["InstanceId"] for n in nodes(api)} == ids


def test_both_styles_roll_an_update_back(make: Make, prefix: dict[str, Any]) -> None:
    """The same page: "If the file is still present when you call UpdateCluster, the update fails
    and rolls back"; "DescribeCluster reports this message in FailureMessage".
    """
    prefix["file"] = FILE
    api = make()
    created(api, *legacy(), continuous=False)
    assert code(update(api, *with_slurm(legacy()))) == ""
    assert rolled_back(api) == BOTH
    assert not any("SlurmConfig" in g for g in told(api)["InstanceGroups"])
    prefix.clear()
    update(api, *with_slurm(legacy()))
    settled(api)
    assert all("SlurmConfig" in g for g in told(api)["InstanceGroups"])
    assert "FailureMessage" not in told(api)


def test_both_styles_end_a_creation(make: Make, prefix: dict[str, Any]) -> None:
    """The same page: "HyperPod does not allow a cluster to use both"."""
    prefix["file"] = FILE
    api = make()
    api("CreateCluster", ClusterName="demo", InstanceGroups=with_slurm(legacy()))
    until(api, lambda: told(api)["ClusterStatus"] == "Failed")
    assert told(api)["FailureMessage"] == BOTH
    assert nodes(api) == []


def test_slurm_config_that_is_omitted_is_kept(make: Make) -> None:
    """The same page: "Omitting SlurmConfig from a later UpdateCluster request does not revert the
    cluster; the existing API-driven Slurm configuration is preserved".
    """
    api = make()
    created(api)
    more = group("workers", "Compute", 5)
    del more["SlurmConfig"]
    update(api, more)
    until(api, lambda: counts(api)["workers"] == (5, 5))
    assert described(api)["SlurmConfig"]["PartitionNames"] == ["dev"]


@pytest.mark.parametrize("managed", [True, False])
@pytest.mark.parametrize("strategy", ["Managed", "Overwrite", "Merge", None])
def test_drift_under_managed_rolls_back(
    make: Make, machines: NullMachines, strategy: str | None, managed: bool
) -> None:
    """The same page on the strategies: with Managed "the next UpdateCluster fails and rolls back,
    and DescribeCluster reports the drift in FailureMessage". Which one is the default, two pages
    tell in two ways.
    """
    api = make(managed_by_default=managed)
    chosen = {"Orchestrator": {"Slurm": {"SlurmConfigStrategy": strategy}}} if strategy else {}
    created(api, continuous=False, **chosen)
    machines.edited = True
    update(api, group("workers", "Compute", 5))
    if strategy == "Managed" or (strategy is None and managed):
        assert rolled_back(api) == "Partition configuration drift detected."
        assert counts(api)["workers"] == (4, 4)
        # Its options 1 and 2: Overwrite forces the API's view, Merge keeps the edits.
        update(api, Orchestrator={"Slurm": {"SlurmConfigStrategy": "Merge"}})
        update(api, group("workers", "Compute", 5))
    settled(api)
    assert counts(api)["workers"] == (5, 5)
    assert machines.edited == (strategy != "Overwrite")


def test_an_ami_from_before_2026_takes_no_slurm_config(make: Make) -> None:
    """The same page, "Update required to use SlurmConfig in InstanceGroups"."""
    api = make()
    created(api, *legacy(), continuous=False)
    api.emulator.world.outdated = frozenset({"1.0.0"})
    answer = update(api, *with_slurm(legacy()))
    assert answer["message"] == "Update required to use SlurmConfig in InstanceGroups"
    api.emulator.publish("1.1.0")
    api("UpdateClusterSoftware", ClusterName="demo")
    until(api, lambda: told(api)["ClusterStatus"] == "SystemUpdating")
    settled(api)
    assert code(update(api, *with_slurm(legacy()))) == ""
    settled(api)


@pytest.mark.parametrize("becomes", [True, False])
def test_a_cluster_moves_to_continuous(make: Make, becomes: bool) -> None:
    """The same page: "If you plan to later migrate the cluster to continuous provisioning ... keep
    the default Merge strategy"; sagemaker-hyperpod-scaling-slurm said for a while that existing
    clusters cannot. It needs SlurmConfig ("Prerequisites" there).
    """
    api = make(becomes_continuous=becomes)
    created(api, *legacy(), continuous=False)
    assert code(update(api, NodeProvisioningMode="Continuous")) == "ValidationException"
    update(api, *with_slurm(legacy()), Orchestrator={"Slurm": {"SlurmConfigStrategy": "Managed"}})
    settled(api)
    assert code(update(api, NodeProvisioningMode="Continuous")) == "ValidationException"
    update(api, Orchestrator={"Slurm": {"SlurmConfigStrategy": "Merge"}})
    answer = update(api, NodeProvisioningMode="Continuous")
    assert (code(answer) == "") == becomes
    assert (told(api).get("NodeProvisioningMode") == "Continuous") == becomes
    assert (code(api("ListClusterEvents", ClusterName="demo")) == "") == becomes


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda c, w: [c, {**w, "SlurmConfig": {"NodeType": "Controller"}, "InstanceCount": 1}],
            "2 Controller Groups found: SlurmConfig for InstanceGroups may only have one "
            "Controller Group.",
        ),
        (
            lambda c, w: [{**c, "SlurmConfig": {"NodeType": "Login"}}, w],
            "Cluster demo has no InstanceGroup with Controller node type.",
        ),
        (
            lambda c, w: [
                {**c, "SlurmConfig": {"NodeType": "Controller", "PartitionNames": ["p"]}},
                w,
            ],
            "Partitions can only be assigned to Compute node types",
        ),
        (
            lambda c, w: [
                c,
                {
                    **w,
                    "InstanceStorageConfigs": [
                        {
                            "FsxLustreConfig": {
                                "DnsName": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
                                "MountName": "abcd",
                            }
                        }
                    ],
                },
            ],
            "FSx configurations are only supported for Custom VPC",
        ),
        (
            lambda c, w: [c, {**w, "LifeCycleConfig": {**SCRIPTS, "OnInitComplete": "x.sh"}}],
            "OnCreate and OnInitComplete in LifeCycleConfig are mutually exclusive",
        ),
        (
            lambda c, w: [c, {**w, "LifeCycleConfig": {"OnCreate": "x.sh"}}],
            "LifeCycleConfig for instance group is incomplete",
        ),
        (
            lambda c, w: [c, {**w, "LifeCycleConfig": {}}],
            "LifeCycleConfig for instance group is provided but contains no configuration",
        ),
    ],
)
def test_the_texts_of_refusals(
    make: Make, change: Callable[[Any, Any], list[dict[str, Any]]], text: str
) -> None:
    """The guide: troubleshooting of the migration, and "Common validation errors" of
    smcluster-getting-started-slurm-cli.
    """
    api = make()
    created(api, *legacy(), continuous=False)
    answer = update(api, *change(*with_slurm(legacy())))
    assert (code(answer), answer["message"][: len(text)]) == ("ValidationException", text)


def test_a_creation_without_a_controller_is_told_in_other_words(make: Make) -> None:
    """smcluster-getting-started-slurm-cli, "Common validation errors"."""
    answer = make()("CreateCluster", ClusterName="demo", InstanceGroups=[group("w", "Compute", 1)])
    assert (
        answer["message"] == "Cluster must have exactly one InstanceGroup with Controller node type"
    )


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

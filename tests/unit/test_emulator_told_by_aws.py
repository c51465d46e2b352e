"""What AWS's pages tell of the service, each with its page. "The guide" is SageMaker's own."""

from collections.abc import Iterator
from typing import Any, Protocol

import pytest
from msgspec.structs import replace

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
    slurm = [{"NodeType": "Controller"}, {"NodeType": "Compute", "PartitionNames": ["gpu"]}]
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

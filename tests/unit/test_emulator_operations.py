"""Software updates, deep health checks, tags, training plans, capacity and quotas; sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from hpctl.sandbox.emulator import Emulator, NullMachines
from tests.contract.provider.beds import Client, cluster, group
from tests.unit.emulator_calls import code, described, nodes, settled, statuses, until

CHECKS = [{"InstanceGroupName": "workers", "DeepHealthChecks": ["InstanceStress"]}]


@pytest.fixture
def machines() -> NullMachines:
    return NullMachines()


@pytest.fixture
def api(machines: NullMachines) -> Iterator[Client]:
    emulator = Emulator(machines, boot_time_s=0.0, health_check_time_s=0.1)
    emulator.start()
    yield Client(emulator)
    emulator.stop()
    assert emulator.response_errors == []


@pytest.fixture
def demo(api: Client) -> Client:
    api.emulator.create(cluster("demo"))
    api.emulator.wait_in_service("demo", 10)
    return api


# --- software ---------------------------------------------------------------------------------


def test_software_is_updated_batch_by_batch_with_the_same_instances(
    demo: Client, machines: NullMachines
) -> None:
    before = [n["InstanceId"] for n in nodes(demo)]
    demo.emulator.publish("1.1.0")
    assert described(demo)["ImageVersionStatus"] == "UpdateAvailable"
    machines.done.clear()
    policy = {"MaximumBatchSize": {"Type": "CAPACITY_PERCENTAGE", "Value": 25}}
    demo(
        "UpdateClusterSoftware",
        ClusterName="demo",
        InstanceGroups=[{"InstanceGroupName": "workers"}],
        DeploymentConfig={"RollingUpdatePolicy": policy, "WaitIntervalInSeconds": 0},
    )
    until(demo, lambda: described(demo).get("SoftwareUpdateStatus") == "Succeeded")
    settled(demo)
    assert [verb for verb, _ in machines.done] == ["destroy", "boot"] * 4, "one at a time"
    assert [n["InstanceId"] for n in nodes(demo)] == before
    assert {n["CurrentImageReleaseVersion"] for n in nodes(demo)} == {"1.1.0"}
    assert all(n["LastSoftwareUpdateTime"] for n in nodes(demo))
    assert described(demo)["ImageVersionStatus"] == "UpToDate"
    assert described(demo, "controller")["CurrentImageReleaseVersion"] == "1.0.0"


def test_software_that_does_not_come_up_is_rolled_back(
    demo: Client, machines: NullMachines
) -> None:
    demo.emulator.publish("1.1.0")
    boot = machines.boot
    failing = iter([True])

    def fails_once(machine: Any) -> None:
        machines.fail_boot = {machine.name} if next(failing, False) else set()
        boot(machine)

    machines.boot = fails_once  # type: ignore[method-assign]
    demo("UpdateClusterSoftware", ClusterName="demo")
    until(demo, lambda: described(demo, "controller").get("SoftwareUpdateStatus") is not None)
    until(
        demo,
        lambda: (
            "RollbackComplete"
            in {described(demo, g).get("SoftwareUpdateStatus") for g in ("controller", "workers")}
        ),
    )
    settled(demo)
    assert statuses(demo) == {"Running"}


@pytest.mark.parametrize(
    ("group_", "error"),
    [
        ({"InstanceGroupName": "nope"}, "ResourceNotFound"),
        (
            {"InstanceGroupName": "workers", "ImageReleaseVersion": "7.0.0"},
            "ValidationException",
        ),
    ],
)
def test_software_that_is_not_there(demo: Client, group_: dict[str, str], error: str) -> None:
    answer = demo("UpdateClusterSoftware", ClusterName="demo", InstanceGroups=[group_])
    assert code(answer) == error


# --- deep health checks -----------------------------------------------------------------------


def test_deep_checks_hold_the_nodes_and_are_one_at_a_time(demo: Client) -> None:
    started = demo(
        "StartClusterHealthCheck", ClusterName="demo", DeepHealthCheckConfigurations=CHECKS
    )
    assert started["ClusterArn"]
    assert statuses(demo) == {"DeepHealthCheckInProgress"}
    again = demo(
        "StartClusterHealthCheck", ClusterName="demo", DeepHealthCheckConfigurations=CHECKS
    )
    assert code(again) == "ConflictException"
    assert code(demo("UpdateCluster", ClusterName="demo", NodeRecovery="None")) == (
        "ConflictException"
    )
    [running] = demo("ListClusterOperations", ClusterName="demo", Type="DeepHealthCheck")[
        "ClusterOperationSummaries"
    ]
    assert running["Status"] == "InProgress"
    until(demo, lambda: statuses(demo) == {"Running"})
    detail = demo(
        "DescribeClusterOperation", ClusterName="demo", OperationId=running["OperationId"]
    )
    assert detail["DeepHealthCheckDetails"] == CHECKS


@pytest.mark.parametrize(("remedy", "verb"), [("replace", "destroy"), ("reboot", "reboot")])
def test_a_node_that_fails_its_deep_checks_is_mended(
    demo: Client, machines: NullMachines, remedy: str, verb: str
) -> None:
    victim = nodes(demo)[1]["InstanceId"]
    demo.emulator.faults.add("fail_health_check", nodes=[victim], code=remedy)
    only = [{**CHECKS[0], "InstanceIds": [victim]}]
    demo("StartClusterHealthCheck", ClusterName="demo", DeepHealthCheckConfigurations=only)
    until(demo, lambda: (verb, victim) in machines.done)
    settled(demo)
    errors = [
        e["Description"]
        for e in demo("ListClusterEvents", ClusterName="demo")["Events"]
        if e["EventLevel"] == "Error"
    ]
    assert errors == ["Deep health check failed."]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"InstanceGroupName": "nope"}, "ResourceNotFound"),
        ({"InstanceGroupName": "controller"}, "ValidationException"),
        ({"InstanceGroupName": "workers", "InstanceIds": ["i-00000000"]}, "ResourceNotFound"),
    ],
)
def test_deep_checks_of_what_has_none(demo: Client, config: dict[str, Any], error: str) -> None:
    answer = demo(
        "StartClusterHealthCheck",
        ClusterName="demo",
        DeepHealthCheckConfigurations=[{**config, "DeepHealthChecks": ["InstanceStress"]}],
    )
    assert code(answer) == error


def test_deep_checks_on_start_come_before_running(api: Client) -> None:
    workers = group("workers", "Compute", 1, OnStartDeepHealthChecks=["InstanceConnectivity"])
    api.emulator.create(
        cluster("demo", InstanceGroups=[group("controller", "Controller", 1), workers])
    )
    until(api, lambda: statuses(api) == {"DeepHealthCheckInProgress"})
    until(api, lambda: statuses(api) == {"Running"})


# --- tags -------------------------------------------------------------------------------------


def test_tags_are_added_changed_and_deleted(api: Client) -> None:
    arn = api("CreateCluster", **cluster("demo", Tags=[{"Key": "team", "Value": "a"}]))[
        "ClusterArn"
    ]
    settled(api)
    api("AddTags", ResourceArn=arn, Tags=[{"Key": "team", "Value": "b"}, {"Key": "x", "Value": ""}])
    assert api("ListTags", ResourceArn=arn)["Tags"] == [
        {"Key": "team", "Value": "b"},
        {"Key": "x", "Value": ""},
    ]
    api("DeleteTags", ResourceArn=arn, TagKeys=["team", "never"])
    assert api("ListTags", ResourceArn=arn)["Tags"] == [{"Key": "x", "Value": ""}]
    assert code(api("ListTags", ResourceArn=arn[:-1] + "z")) == "ResourceNotFound"


# --- neighbours -------------------------------------------------------------------------------


def service(api: Client, name: str) -> Any:
    make: Callable[..., Any] = boto3.client
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    return make(name, endpoint_url=api.emulator.endpoint_url, region_name="us-west-2", **keys)


def test_a_session_is_recorded_for_an_instance_that_runs(demo: Client) -> None:
    ssm = service(demo, "ssm")
    cluster_id = demo.emulator.world.cluster("demo").arn.rpartition("/")[2]
    target = f"sagemaker-cluster:{cluster_id}_workers-{nodes(demo)[0]['InstanceId']}"
    answer = ssm.start_session(Target=target)
    assert answer["StreamUrl"].startswith("wss://")
    assert [s["Target"] for s in demo.emulator.sessions.started] == [target]
    with pytest.raises(ClientError, match="TargetNotConnected"):
        ssm.start_session(Target=target + "0")
    ssm.terminate_session(SessionId=answer["SessionId"])


def test_quotas_are_listed_as_they_are_enforced(demo: Client) -> None:
    demo.emulator.capacity.set({"quotas": {"ml.p5.48xlarge": 5}})
    quotas = service(demo, "service-quotas")
    pages = quotas.get_paginator("list_service_quotas").paginate(ServiceCode="sagemaker")
    values = {q["QuotaName"]: q for page in pages for q in page["Quotas"]}
    assert values["ml.p5.48xlarge for cluster usage"]["Value"] == 5.0
    one = values["ml.p5e.48xlarge for cluster usage"]
    got = quotas.get_service_quota(ServiceCode="sagemaker", QuotaCode=one["QuotaCode"])
    assert got["Quota"]["QuotaName"] == one["QuotaName"]
    with pytest.raises(ClientError, match="NoSuchResource"):
        quotas.get_service_quota(ServiceCode="sagemaker", QuotaCode="L-0")

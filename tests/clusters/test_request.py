"""cluster.yaml covers what CreateCluster takes for Slurm, in the service's own limits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from botocore.exceptions import ClientError

from hpctl.clusters import provisioning
from hpctl.clusters.request import LEFT_TO_RAW, create_request, group_request, merged
from hpctl.clusters.spec import ClusterSpec, parse, words
from hpctl.clusters.spec.reading import broken
from hpctl.errors import HpctlError
from hpctl.sandbox.emulator import Emulator, NullMachines
from hpctl.sandbox.emulator.errors import ApiError
from tests.clusters.api_model import complaints, files, model, paths, said, shape
from tests.clusters.mixtures import MIXTURES, Mixture

SAMPLES = sorted(files())


def left(path: str) -> bool:
    return any(path == one or path.startswith(f"{one}.") for one in LEFT_TO_RAW)


def test_every_field_of_create_cluster_is_mapped_or_left_to_raw_for_a_reason() -> None:
    takes = {path for path in paths(shape("CreateCluster")) if not left(path)}
    reached = {path for spec in files().values() for path in said(create_request(spec))}
    assert takes - reached == set()
    assert reached - takes == set()


def test_nothing_is_left_to_raw_that_is_not_there() -> None:
    takes = set(paths(shape("CreateCluster")))
    assert [path for path in LEFT_TO_RAW if path not in takes] == []


def test_an_update_takes_the_same_groups() -> None:
    create, update = shape("CreateCluster"), shape("UpdateCluster")
    assert create.members["InstanceGroups"].name == update.members["InstanceGroups"].name


@pytest.mark.parametrize("name", SAMPLES)
def test_botocore_would_send_it(name: str) -> None:
    assert complaints(create_request(files()[name])) == ""


def test_the_words_have_the_limits_of_the_service_model() -> None:
    shapes = {
        "ClusterName": "ClusterName",
        "RoleArn": "RoleArn",
        "SubnetId": "SubnetId",
        "SecurityGroupId": "SecurityGroupId",
        "S3Uri": "S3Uri",
        "FileName": "ClusterLifeCycleConfigFileName",
        "KmsKeyId": "KmsKeyId",
        "FsxDnsName": "ClusterDnsName",
        "MountName": "ClusterMountName",
        "MountPath": "ClusterFsxMountPath",
        "TrainingPlanArn": "TrainingPlanArn",
        "ImageId": "ImageId",
        "ImageReleaseVersion": "ImageReleaseVersion",
        "AlarmName": "AlarmName",
        "DatabaseHost": "ClusterAccountingDatabaseEndpoint",
        "DatabaseName": "ClusterAccountingDatabaseName",
        "SecretArn": "ClusterAccountingDatabaseSecretArn",
    }
    for word, name in shapes.items():
        like = next(p for p in get_args(getattr(words, word)) if isinstance(p, words.Like))
        limits = model().shape_for(name).metadata
        assert like.pattern == limits["pattern"], word
        assert (like.shortest, like.longest) == (limits.get("min", 0), limits["max"]), word
    assert model().shape_for("ClusterPartitionName").metadata["pattern"] == words.API_PARTITION


def test_every_instance_type_of_the_service_is_a_word() -> None:
    like = next(p for p in get_args(words.InstanceType) if isinstance(p, words.Like))
    for kind in model().shape_for("ClusterInstanceType").enum:
        assert like.checked(kind) == kind


def test_the_choices_are_those_of_the_service_model() -> None:
    def choices(model_: Any, field: str) -> set[str]:
        found = set[str]()
        left = [model_.model_fields[field].annotation]
        while left:
            one = left.pop()
            found |= {one} if isinstance(one, str) else set()
            left += get_args(one)
        return found

    from hpctl.clusters.spec import cluster

    for section, field, name in (
        (cluster.ClusterSpec, "node_recovery", "ClusterNodeRecovery"),
        (cluster.ClusterSpec, "node_provisioning_mode", "ClusterNodeProvisioningMode"),
        (cluster.ClusterSpec, "slurm_config_strategy", "ClusterSlurmConfigStrategy"),
        (cluster.TieredStorage, "mode", "ClusterConfigMode"),
        (cluster.GroupSpec, "deep_health_checks", "DeepHealthCheckType"),
        (cluster.GroupSpec, "network_interface", "ClusterInterfaceType"),
        (cluster.AutoPatch, "patching_strategy", "ClusterPatchingStrategy"),
        (cluster.Drain, "on_drain_timeout", "ClusterOnDrainTimeout"),
        (cluster.BatchSize, "type", "NodeUnavailabilityType"),
    ):
        assert choices(section, field) == set(model().shape_for(name).enum), field


def test_raw_is_laid_over_the_request_key_by_key() -> None:
    assert merged({"a": {"b": 1, "c": 2}, "d": [1]}, {"a": {"c": 3}, "d": [2], "e": 4}) == {
        "a": {"b": 1, "c": 3},
        "d": [2],
        "e": 4,
    }


def spec(text: str) -> ClusterSpec:
    head = (
        "- {name: head, instance_type: ml.m5.xlarge, count: 1, role: controller, "
        "execution_role: 'arn:aws:iam::111122223333:role/x'"
    )
    return parse(text.replace("HEAD", head))


def test_raw_reaches_the_cluster_and_the_group() -> None:
    made = spec("name: a\nraw: {NewThing: {Size: 1}}\ninstance_groups:\nHEAD, raw: {Newer: 1}}\n")
    request = create_request(made)
    assert request["NewThing"] == {"Size": 1}
    assert request["InstanceGroups"][0]["Newer"] == 1
    assert "Unknown parameter" in complaints(request)


def test_what_a_group_leaves_out_of_its_network_is_the_clusters() -> None:
    made = files()["full"]
    groups = {group.name: group_request(made, group) for group in made.groups}
    assert groups["h100"]["OverrideVpcConfig"] == {
        "Subnets": ["subnet-0123456789abcdef2"],
        "SecurityGroupIds": ["sg-0123456789abcdef0"],
    }
    assert groups["spot"]["OverrideVpcConfig"]["Subnets"] == list(made.vpc.subnets)  # type: ignore[union-attr]
    assert "OverrideVpcConfig" not in groups["head"]


def test_hpctls_own_settings_stay_with_hpctl() -> None:
    text = str(create_request(files()["full"]))
    for own in ("hpctl", "spares", "max_count", "own"):
        assert f"'{own}'" not in text


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    made = Emulator(NullMachines(), boot_time_s=0.0)
    made.start()
    yield made
    made.stop()
    assert made.response_errors == []


@pytest.mark.parametrize("name", SAMPLES)
def test_the_service_takes_it(emulator: Emulator, name: str) -> None:
    """By boto3 over HTTP. A release and a plan of the sample's are not the emulator's."""
    import boto3

    client = boto3.client(
        "sagemaker",
        region_name="us-west-2",
        endpoint_url=emulator.endpoint_url,
        aws_access_key_id="sandbox",
        aws_secret_access_key="sandbox",
    )
    request = create_request(files()[name])
    for group in request["InstanceGroups"]:
        group.pop("ImageReleaseVersion", None)
        group.pop("TrainingPlanArn", None)
    assert client.create_cluster(**request)["ClusterArn"]
    until = time.monotonic() + 20
    while (
        client.describe_cluster(ClusterName=request["ClusterName"])["ClusterStatus"] == "Creating"
    ):
        assert time.monotonic() < until
        time.sleep(0.02)
    with pytest.raises(ClientError):
        client.create_cluster(**request)


@pytest.mark.parametrize("mixture", [m for m in MIXTURES if m.refused], ids=lambda m: m.says)
def test_what_the_rules_refuse_the_service_refuses(emulator: Emulator, mixture: Mixture) -> None:
    listed = {"name": "mixture", **mixture.top, "instance_groups": mixture.groups}
    spec = ClusterSpec.model_validate(listed)
    assert list(broken(spec))
    with pytest.raises(ApiError) as refused:
        emulator.create(create_request(spec))
    assert refused.value.code == "ValidationException"


def test_provisioning_parameters_name_every_group() -> None:
    content = provisioning.render(files()["provisioning"])
    assert content == {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": "ctl",
        "login_group": "login",
        "worker_groups": [
            {"instance_group_name": "h100", "partition_name": "ml.p5.48xlarge"},
        ],
        "fsx_dns_name": "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com",
        "fsx_mountname": "abcdefgh",
        "fsx_openzfs_dns_name": "fs-0123456789abcdef1.fsx.us-east-1.amazonaws.com",
        "slurm_configurations": {
            "slurm_database_secret_arn": (
                "arn:aws:secretsmanager:us-east-1:111122223333:secret:slurmdb-AbCdEf"
            ),
            "slurm_database_endpoint": "slurm.abc123.us-east-1.rds.amazonaws.com",
            "slurm_database_user": "slurm",
            "slurm_shared_directory": "/fsx",
            "slurm_sns_arn": "arn:aws:sns:us-east-1:111122223333:head-nodes",
        },
        "site": "lab",
    }


def test_where_the_api_configures_slurm_there_are_no_parameters() -> None:
    with pytest.raises(HpctlError, match="needs no provisioning_parameters"):
        provisioning.render(files()["full"])
    assert "SlurmConfig" not in str(create_request(files()["provisioning"]))

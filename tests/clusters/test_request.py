"""cluster.yaml covers what CreateCluster takes for Slurm, in the service's own limits."""

import json
from typing import get_args

import pytest

from hpctl.clusters import request as provisioning
from hpctl.clusters.request import LEFT_TO_RAW, make_create_cluster_request
from hpctl.clusters.spec import build_cluster_spec, field_types
from hpctl.clusters.spec.reading import find_spec_rule_violations
from hpctl.sandbox.emulator import HyperPodEmulator, NullMachineBackend
from hpctl.sandbox.emulator.faults import ApiError
from tests.clusters.api_model import FILES, files, model, paths, said, shape
from tests.clusters.mixtures import MIXTURES, Mixture

pytestmark = pytest.mark.integration


def left(path: str) -> bool:
    return any(path == one or path.startswith(f"{one}.") for one in LEFT_TO_RAW)


def test_every_field_of_create_cluster_is_mapped_or_left_to_raw_for_a_reason() -> None:
    takes = {path for path in paths(shape("CreateCluster")) if not left(path)}
    reached = {
        path for spec in files().values() for path in said(make_create_cluster_request(spec))
    }
    assert takes - reached == set()
    assert reached - takes == set()


def test_nothing_is_left_to_raw_that_is_not_there() -> None:
    takes = set(paths(shape("CreateCluster")))
    assert [path for path in LEFT_TO_RAW if path not in takes] == []


def test_an_update_takes_the_same_groups() -> None:
    create, update = shape("CreateCluster"), shape("UpdateCluster")
    assert create.members["InstanceGroups"].name == update.members["InstanceGroups"].name


def test_the_words_have_the_limits_of_the_service_model() -> None:
    same = "ClusterName RoleArn SubnetId SecurityGroupId S3Uri KmsKeyId TrainingPlanArn ImageId"
    shapes = dict.fromkeys([*same.split(), "ImageReleaseVersion", "AlarmName"], "") | {
        "FileName": "ClusterLifeCycleConfigFileName",
        "FsxDnsName": "ClusterDnsName",
        "MountName": "ClusterMountName",
        "MountPath": "ClusterFsxMountPath",
        "DatabaseHost": "ClusterAccountingDatabaseEndpoint",
        "DatabaseName": "ClusterAccountingDatabaseName",
        "SecretArn": "ClusterAccountingDatabaseSecretArn",
    }
    for word, name in shapes.items():
        annotated = get_args(getattr(field_types, word))
        like = next(part for part in annotated if isinstance(part, field_types.TextPattern))
        limits = model().shape_for(name or word).metadata
        assert like.pattern == limits["pattern"], word
        assert (like.shortest, like.longest) == (limits.get("min", 0), limits["max"]), word
    assert (
        model().shape_for("ClusterPartitionName").metadata["pattern"] == field_types.API_PARTITION
    )


@pytest.fixture(scope="module")
def emulator():
    made = HyperPodEmulator(NullMachineBackend(), boot_time_s=0.0)
    made.start()
    yield made
    made.stop()
    assert made.response_errors == []


@pytest.mark.parametrize("mixture", [m for m in MIXTURES if m.refused], ids=lambda m: m.says)
def test_what_the_rules_refuse_the_service_refuses(
    emulator: HyperPodEmulator, mixture: Mixture
) -> None:
    listed = {"name": "mixture", **mixture.top, "instance_groups": mixture.groups}
    spec = build_cluster_spec(listed, "the test")
    assert list(find_spec_rule_violations(spec))
    with pytest.raises(ApiError) as refused:
        emulator.create(make_create_cluster_request(spec))
    assert refused.value.code == "ValidationException"


def test_provisioning_parameters_name_every_group() -> None:
    written = json.loads((FILES / "provisioning.json").read_text())
    assert provisioning.render_provisioning_parameters(files()["provisioning"]) == written

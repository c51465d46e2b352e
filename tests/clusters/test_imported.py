"""From a living cluster to a file, and back without a difference."""

import json
import re
from datetime import datetime

import pytest
from hypothesis import given, settings

from hpctl.clusters import request as provisioning
from hpctl.clusters.cluster_file import (
    build_spec_from_request,
    format_commented_cluster_spec_yaml,
    import_spec_from_cluster_description,
    import_spec_from_request_json,
    list_settings_missing_from_import,
    read_group_image_settings,
)
from hpctl.clusters.diff import diff_request_with_cluster
from hpctl.clusters.request import make_create_cluster_request
from hpctl.clusters.service_model import load_sagemaker_service_model
from hpctl.clusters.spec import ClusterSpec, ClusterSpecError, parse_cluster_spec_yaml
from hpctl.clusters.spec.reading import find_spec_rule_violations
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import HpctlError
from tests.clusters.any_spec import specs
from tests.clusters.api_model import complaints, described, files

pytestmark = pytest.mark.integration


def parameters(spec):
    return provisioning.render_provisioning_parameters(spec) if spec.slurm_config != "api" else None


@settings(max_examples=50, deadline=None)
@given(specs())
def test_a_cluster_imported_asks_for_what_made_it(spec: ClusterSpec) -> None:
    assert list(find_spec_rule_violations(spec)) == []
    request = make_create_cluster_request(spec)
    assert complaints(request) == ""
    answer = described(request)
    imported = import_spec_from_cluster_description(answer, spec.tags, parameters(spec))
    assert make_create_cluster_request(imported) == request
    assert diff_request_with_cluster(request, answer, spec.tags).changes == ()
    assert (
        diff_request_with_cluster(make_create_cluster_request(imported), answer, spec.tags).changes
        == ()
    )
    assert parse_cluster_spec_yaml(format_commented_cluster_spec_yaml(imported)) == imported


MODEL = load_sagemaker_service_model()


@settings(max_examples=40, deadline=None)
@given(specs())
def test_a_request_in_json_becomes_the_spec_that_it_came_from(spec: ClusterSpec) -> None:
    """`aws sagemaker create-cluster --cli-input-json` takes CreateCluster's members as they are."""
    request = json.dumps(make_create_cluster_request(spec), default=str)
    again = import_spec_from_request_json(request, "r.json", MODEL)
    assert (
        make_create_cluster_request(again)["InstanceGroups"]
        == make_create_cluster_request(spec)["InstanceGroups"]
    )
    assert (
        import_spec_from_request_json(
            json.dumps(make_create_cluster_request(again), default=str), "r.json", MODEL
        )
        == again
    )
    assert parse_cluster_spec_yaml(format_commented_cluster_spec_yaml(again)) == again
    # A group that overrides half of the network is sent, and comes back, with all of it.
    whole = all(bool(g.subnets) == bool(g.security_groups) for g in spec.groups)
    if whole and spec.slurm_config == "api":
        assert again == spec


@pytest.mark.parametrize("date", ["2027-01-01T00:00:00Z", "2027-01-01T00:00:00+00:00", 1798761600])
def test_a_date_of_a_request_is_read_as_the_aws_cli_reads_it(date: str | int) -> None:
    request = make_create_cluster_request(files()["continuous"])
    patch = {"PatchingStrategy": "WhenIdle", "PatchSchedule": {"NextPatchDate": date}}
    request["InstanceGroups"][1]["AutoPatchConfig"] = patch
    group = import_spec_from_request_json(json.dumps(request), "r.json", MODEL).groups[1]
    assert group.raw == {}
    assert group.auto_patch.patch_schedule.next_patch_date == datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "the request: must be a structure, not list"),
        ("{}", "ClusterName is needed"),
        ('{"ClusterName": "x", "InstanceGroups": [7]}', "InstanceGroups.0: must be a structure"),
        ('{"ClusterName": "x", "InstanceGroup": []}', "no InstanceGroup here; it has"),
        (
            '{"ClusterName": "x", "VpcConfig": {"Subnets": "a"}}',
            "VpcConfig.Subnets: must be a list",
        ),
    ],
)
def test_a_request_that_is_none_is_one_error_with_its_place(text: str, words: str) -> None:
    with pytest.raises(ClusterSpecError, match=re.escape(words)):
        import_spec_from_request_json(text, "r.json", MODEL)


def test_what_the_models_have_no_word_for_is_kept_unchanged() -> None:
    request = make_create_cluster_request(files()["continuous"])
    request["NewThing"] = {"Size": 1}
    head = request["InstanceGroups"][0]
    head["Newer"] = [1]
    head["LifeCycleConfig"] = {"SourceS3Uri": "s3://b/p", "OnCreate": "a.sh", "OnReboot": "b.sh"}
    head["InstanceStorageConfigs"] = [{"EbsVolumeConfig": {"VolumeSizeInGB": 9, "Iops": 3000}}]
    spec = build_spec_from_request(request)
    assert spec.raw == {"NewThing": {"Size": 1}}
    assert spec.groups[0].raw["LifeCycleConfig"] == {"OnReboot": "b.sh"}
    assert make_create_cluster_request(spec) == request
    assert (
        make_create_cluster_request(
            parse_cluster_spec_yaml(format_commented_cluster_spec_yaml(spec))
        )
        == request
    )


def test_the_ami_is_shown_and_not_pinned() -> None:
    answer = described(make_create_cluster_request(files()["full"]))
    assert read_group_image_settings(answer)["h100"] == {
        "image_id": "ami-00000000",
        "image_release_version": "1.2.3",
    }
    spec = import_spec_from_cluster_description(answer)
    assert not any(g.image_id or g.image_release_version for g in spec.groups)
    assert "whether a group's AMI was chosen" in " ".join(list_settings_missing_from_import(spec))


def test_roles_that_are_unknown_are_left_open_and_said() -> None:
    answer = described(make_create_cluster_request(files()["provisioning"]))
    spec = import_spec_from_cluster_description(answer)
    assert [group.role for group in spec.groups] == [None, None, None]
    parts = list_settings_missing_from_import(spec, "AccessDenied")
    assert parts[0].endswith("which are in provisioning_parameters.json (AccessDenied)")
    with pytest.raises(HpctlError, match="has no instance group with the role controller"):
        provisioning.render_provisioning_parameters(spec)


def test_a_file_beside_the_scripts_that_makes_no_sense_is_an_error() -> None:
    answer = described(make_create_cluster_request(files()["provisioning"]))
    with pytest.raises(ClusterSpecError, match="fsx_lustre"):
        import_spec_from_cluster_description(
            answer, None, {"controller_group": "ctl", "fsx_dns_name": "nonsense"}
        )


@pytest.mark.parametrize(
    "more",
    [
        {"Orchestrator": {"Eks": {"ClusterArn": "arn:aws:eks:us-west-2:000000000000:cluster/x"}}},
        {"RestrictedInstanceGroups": [{"InstanceGroupName": "nova"}]},
    ],
)
def test_a_cluster_of_eks_is_refused(more):
    answer = described(make_create_cluster_request(files()["continuous"]))
    with pytest.raises(HpctlError, match="uses EKS"):
        import_spec_from_cluster_description({**answer, **more})

"""A request against DescribeCluster's answer: what differs, and what comes of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hpctl.clusters.apply import plan
from hpctl.clusters.diff import Change, Kind, diff
from hpctl.clusters.request import create_request
from hpctl.clusters.spec import parse
from hpctl.errors import HpctlError

ROLE = "arn:aws:iam::000000000000:role/hyperpod"
OTHER = "arn:aws:iam::000000000000:role/other"

REQUEST: dict[str, Any] = {
    "ClusterName": "llm",
    "NodeRecovery": "None",
    "NodeProvisioningMode": "Continuous",
    "VpcConfig": {"SecurityGroupIds": ["sg-1", "sg-2"], "Subnets": ["subnet-1", "subnet-2"]},
    "InstanceGroups": [
        {
            "InstanceGroupName": "controller",
            "InstanceType": "ml.m5.xlarge",
            "InstanceCount": 1,
            "ExecutionRole": ROLE,
            "SlurmConfig": {"NodeType": "Controller"},
        },
        {
            "InstanceGroupName": "workers",
            "InstanceType": "ml.p5.48xlarge",
            "InstanceCount": 4,
            "MinInstanceCount": 2,
            "ExecutionRole": ROLE,
            "LifeCycleConfig": {
                "SourceS3Uri": "s3://sagemaker-x/y",
                "OnInitComplete": "on_init_complete.sh",
            },
            "InstanceStorageConfigs": [{"EbsVolumeConfig": {"VolumeSizeInGB": 500}}],
            "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["dev"]},
        },
        {
            "InstanceGroupName": "flexible",
            "InstanceRequirements": {"InstanceTypes": ["ml.g6.48xlarge", "ml.g5.48xlarge"]},
            "InstanceCount": 2,
            "ExecutionRole": ROLE,
            "CapacityRequirements": {"Spot": {}},
            "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["cheap"]},
        },
    ],
}


def described() -> dict[str, Any]:
    """The cluster of REQUEST as the service tells of it: with all that it has filled in."""
    made = copy.deepcopy(REQUEST)
    for group in made["InstanceGroups"]:
        group["CurrentCount"] = group["TargetCount"] = group.pop("InstanceCount")
        group["MinCount"] = group.pop("MinInstanceCount", 0)
        group["ThreadsPerCore"] = 1
        group["Status"] = "InService"
        group["CurrentImageId"] = group["DesiredImageId"] = "ami-0123456789abcdef0"
        group["OnStartDeepHealthChecks"] = []
        if types := group.get("InstanceRequirements"):
            types["CurrentInstanceTypes"] = types["DesiredInstanceTypes"] = types.pop(
                "InstanceTypes"
            )
    made["VpcConfig"]["Subnets"].reverse()
    return {
        **made,
        "ClusterArn": "arn:aws:sagemaker:us-west-2:000000000000:cluster/abcdefghijkl",
        "ClusterStatus": "InService",
        "Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Merge"}},
    }


def wanted(**of_workers: Any) -> dict[str, Any]:
    """REQUEST with other words for the workers."""
    made = copy.deepcopy(REQUEST)
    workers = made["InstanceGroups"][1]
    workers |= of_workers
    made["InstanceGroups"][1] = {k: v for k, v in workers.items() if v is not None}
    return made


def only(request: dict[str, Any]) -> Change:
    changes = diff(request, described()).changes
    assert len(changes) == 1, changes
    return changes[0]


def test_what_the_service_fills_in_is_no_difference() -> None:
    assert diff(REQUEST, described()).changes == ()


def test_the_order_of_subnets_means_nothing_and_that_of_types_does() -> None:
    request = copy.deepcopy(REQUEST)
    request["InstanceGroups"][2]["InstanceRequirements"]["InstanceTypes"].reverse()
    change = only(request)
    assert change.place == "flexible.InstanceRequirements.InstanceTypes"
    assert change.kind is Kind.CHANGE


@pytest.mark.parametrize(
    ("of_workers", "kind", "place"),
    [
        ({"InstanceCount": 6}, Kind.ADD, "workers.InstanceCount"),
        ({"InstanceCount": 3}, Kind.DESTROY, "workers.InstanceCount"),
        ({"InstanceType": "ml.p5e.48xlarge"}, Kind.IMPOSSIBLE, "workers.InstanceType"),
        ({"ExecutionRole": OTHER}, Kind.IMPOSSIBLE, "workers.ExecutionRole"),
        ({"ThreadsPerCore": 2}, Kind.IMPOSSIBLE, "workers.ThreadsPerCore"),
        ({"MinInstanceCount": 3}, Kind.CHANGE, "workers.MinInstanceCount"),
        ({"MinInstanceCount": None}, Kind.CHANGE, "workers.MinInstanceCount"),
        ({"TrainingPlanArn": "arn:plan"}, Kind.CHANGE, "workers.TrainingPlanArn"),
        ({"InstanceStorageConfigs": None}, Kind.CHANGE, "workers.InstanceStorageConfigs"),
        ({"ImageId": "ami-0fffffffffffffff0"}, Kind.CHANGE, "workers.ImageId"),
        (
            {"SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["long"]}},
            Kind.CHANGE,
            "workers.SlurmConfig.PartitionNames",
        ),
        (
            {"OverrideVpcConfig": {"Subnets": ["subnet-3"]}},
            Kind.CHANGE,
            "workers.OverrideVpcConfig.Subnets",
        ),
    ],
)
def test_each_change_has_its_kind_and_its_consequence(
    of_workers: dict[str, Any], kind: Kind, place: str
) -> None:
    change = only(wanted(**of_workers))
    assert (change.kind, change.place) == (kind, place)
    assert change.consequence


def test_a_script_that_changes_is_shown_by_its_own_place() -> None:
    lifecycle = {"SourceS3Uri": "s3://sagemaker-x/z", "OnInitComplete": "on_init_complete.sh"}
    change = only(wanted(LifeCycleConfig=lifecycle))
    assert change.place == "workers.LifeCycleConfig.SourceS3Uri"
    assert (change.old, change.new) == ("s3://sagemaker-x/y", "s3://sagemaker-x/z")


@pytest.mark.parametrize(
    ("cluster", "kind"),
    [
        ({"NodeRecovery": "Automatic"}, Kind.CHANGE),
        ({"NodeProvisioningMode": None}, Kind.IMPOSSIBLE),
        ({"ClusterName": "other"}, Kind.IMPOSSIBLE),
        (
            {"VpcConfig": {"SecurityGroupIds": ["sg-1", "sg-2"], "Subnets": ["subnet-9"]}},
            Kind.IMPOSSIBLE,
        ),
        ({"Orchestrator": {"Slurm": {"SlurmConfigStrategy": "Overwrite"}}}, Kind.CHANGE),
    ],
)
def test_the_clusters_own_fields(cluster: dict[str, Any], kind: Kind) -> None:
    request = {k: v for k, v in {**copy.deepcopy(REQUEST), **cluster}.items() if v is not None}
    change = only(request)
    assert change.kind is kind
    assert change.place.startswith(next(iter(cluster)))


def test_a_type_cannot_become_a_list_of_types() -> None:
    request = wanted(InstanceType=None, InstanceRequirements={"InstanceTypes": ["ml.p5.48xlarge"]})
    kinds = {c.kind for c in diff(request, described()).changes}
    assert kinds == {Kind.IMPOSSIBLE}


def test_groups_come_and_go_by_their_names() -> None:
    request = copy.deepcopy(REQUEST)
    request["InstanceGroups"][2]["InstanceGroupName"] = "other"
    changes = diff(request, described()).changes
    assert [(c.kind, c.place) for c in changes] == [
        (Kind.ADD, "other"), (Kind.DESTROY, "flexible"),
    ]  # fmt: skip
    assert "2 x ml.g6.48xlarge" in changes[0].new


def test_the_controller_neither_shrinks_nor_goes() -> None:
    request = copy.deepcopy(REQUEST)
    del request["InstanceGroups"][0]
    assert only(request).kind is Kind.IMPOSSIBLE
    there = described()
    there["InstanceGroups"][0]["TargetCount"] = 2
    assert diff(REQUEST, there).changes[0].kind is Kind.IMPOSSIBLE


def test_tags_are_compared_where_somebody_looked() -> None:
    request = {**REQUEST, "Tags": [{"Key": "team", "Value": "nlp"}, {"Key": "a", "Value": "b"}]}
    assert diff(request, described()).changes == ()
    changes = diff(request, described(), {"team": "cv", "old": "x", "a": "b"}).changes
    assert [(c.place, c.old, c.new) for c in changes] == [
        ("Tags.team", "cv", "nlp"), ("Tags.old", "x", None),
    ]  # fmt: skip
    # A file that says nothing of tags may come from somebody who was not allowed to see them.
    assert diff(REQUEST, described(), {"team": "cv"}).changes == ()


# --- what is ordered for it -------------------------------------------------------------------


def planned(request: dict[str, Any]) -> Any:
    there = described()
    return plan(request, there, diff(request, there))


def test_a_group_that_only_shrinks_is_not_restated() -> None:
    made = planned(wanted(InstanceCount=1))
    assert made.update == {}
    assert made.shrink == {"workers": 3}
    assert made.final["workers"] == 1


def test_a_group_that_changes_and_shrinks_is_restated_with_the_count_that_it_has() -> None:
    made = planned(wanted(InstanceCount=1, MinInstanceCount=1))
    [group] = made.update["InstanceGroups"]
    assert group["InstanceCount"] == 4
    assert made.targets["workers"] == 4
    assert made.shrink == {"workers": 3}


def test_what_is_restated_keeps_what_the_spec_leaves_open_but_no_image() -> None:
    made = planned(wanted(InstanceCount=6))
    [group] = made.update["InstanceGroups"]
    assert group["ThreadsPerCore"] == 1
    assert group["LifeCycleConfig"]["OnInitComplete"] == "on_init_complete.sh"
    assert "ImageId" not in group
    assert set(made.update) == {"InstanceGroups"}


def test_nothing_is_planned_where_a_part_is_impossible() -> None:
    with pytest.raises(HpctlError, match=r"workers\.InstanceType: ml\.p5"):
        planned(wanted(InstanceType="ml.g5.48xlarge", InstanceCount=6))


def test_a_spec_and_its_own_request_do_not_differ() -> None:
    spec = parse(
        f"""
name: llm
node_provisioning_mode: Continuous
instance_groups:
- name: controller
  role: controller
  instance_type: ml.m5.xlarge
  count: 1
  execution_role: {ROLE}
- name: workers
  role: compute
  partition: dev
  instance_types: [ml.g5.48xlarge, ml.g6.48xlarge]
  count: 2
  capacity: spot
  execution_role: {ROLE}
"""
    )
    request = create_request(spec)
    there = copy.deepcopy(request)
    for group in there["InstanceGroups"]:
        group["TargetCount"] = group.pop("InstanceCount")
        if types := group.get("InstanceRequirements"):
            types["DesiredInstanceTypes"] = types.pop("InstanceTypes")
    assert diff(request, there).changes == ()

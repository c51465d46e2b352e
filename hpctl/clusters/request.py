"""A cluster file as the requests that the service takes.

provisioning_parameters.json: how Slurm learns of the groups where the API does not do it.

The file lies beside the lifecycle scripts, which read it from their own directory.

A node cannot find out that it is a login node where the API sets Slurm up: resource_config.json
only says who the controllers are, and login nodes run slurmd as compute nodes do. So the
bundle is given the roles of the groups (`write_group_roles_to_bundle`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctl.clusters.spec import ClusterSpec, GroupSpec
from hpctl.clusters.spec.cluster import HeadNodes, ProvisioningParameters
from hpctl.clusters.spec.field_types import ApiSection
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.vocabulary.ports import AwsServiceClient

if TYPE_CHECKING:
    from hpctl.vocabulary.ports import AwsClientFactory


NODE_TYPES = {"controller": "Controller", "login": "Login", "compute": "Compute"}
CAPACITY = {"spot": "Spot", "on_demand": "OnDemand"}

CLUSTER = {
    "ClusterName": "name",
    "InstanceGroups": "",
    "VpcConfig": "",
    "Tags": "",
    "Orchestrator": "",
    "NodeRecovery": "node_recovery",
    "TieredStorageConfig": "tiered_storage",
    "NodeProvisioningMode": "node_provisioning_mode",
    "ClusterRole": "cluster_role",
}
GROUP = {
    "InstanceGroupName": "name",
    "InstanceType": "instance_type",
    "InstanceRequirements": "",
    "InstanceCount": "count",
    "MinInstanceCount": "min_count",
    "LifeCycleConfig": "lifecycle",
    "ExecutionRole": "execution_role",
    "ThreadsPerCore": "threads_per_core",
    "InstanceStorageConfigs": "storage",
    "OnStartDeepHealthChecks": "deep_health_checks",
    "TrainingPlanArn": "training_plan",
    "OverrideVpcConfig": "",
    "ScheduledUpdateConfig": "scheduled_update",
    "ImageId": "image_id",
    "ImageReleaseVersion": "image_release_version",
    "AutoPatchConfig": "auto_patch",
    "SlurmConfig": "",
    "CapacityRequirements": "",
    "NetworkInterface": "",
}
"""Members of CreateCluster and of a group in it, and the keys of the file that say the same; empty
where the file says it otherwise."""

LEFT_TO_RAW = {
    "RestrictedInstanceGroups": "restricted groups are for EKS",
    "RestrictedInstanceGroupsConfig": "restricted groups are for EKS",
    "Orchestrator.Eks": "hpctl is for Slurm",
    "AutoScaling": "Karpenter is for EKS; hpctl scales Slurm clusters itself",
    "InstanceGroups.KubernetesConfig": "labels and taints are for EKS",
}
"""What CreateCluster takes and the models have no word for, and why."""


def make_create_cluster_request(spec: ClusterSpec) -> dict[str, Any]:
    """CreateCluster's request."""
    slurm = {
        "SlurmConfigStrategy": spec.slurm_config_strategy,
        "AccountingDatabase": _convert_spec_value_to_api(spec.accounting_database),
    }
    slurm = {key: value for key, value in slurm.items() if value is not None}
    otherwise: dict[str, Any] = {
        "InstanceGroups": [make_instance_group_request(spec, group) for group in spec.groups],
        "VpcConfig": spec.vpc and _make_vpc_config(spec.vpc.subnets, spec.vpc.security_groups),
        "Tags": [{"Key": key, "Value": value} for key, value in spec.tags.items()],
        "Orchestrator": {"Slurm": slurm} if slurm else None,
    }
    return merge_raw_values_into_request(
        _select_nonempty_request_members(CLUSTER, spec, otherwise), spec.raw
    )


def make_instance_group_request(spec: ClusterSpec, group: GroupSpec) -> dict[str, Any]:
    """Return one group of it: a ClusterInstanceGroupSpecification, for UpdateCluster as well."""
    types, interface = group.instance_types, group.network_interface
    otherwise: dict[str, Any] = {
        "InstanceRequirements": {"InstanceTypes": list(types)} if types else None,
        "OverrideVpcConfig": _make_group_vpc_override(spec, group),
        "SlurmConfig": _make_group_slurm_config(spec, group),
        "CapacityRequirements": {CAPACITY[group.capacity]: {}} if group.capacity else None,
        "NetworkInterface": {"InterfaceType": interface} if interface else None,
    }
    return merge_raw_values_into_request(
        _select_nonempty_request_members(GROUP, group, otherwise), group.raw
    )


def _select_nonempty_request_members(
    members: Mapping[str, str], section: ClusterSpec | GroupSpec, otherwise: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the members that have a value."""
    values = {
        theirs: _convert_spec_value_to_api(getattr(section, ours)) if ours else otherwise[theirs]
        for theirs, ours in members.items()
    }
    return {theirs: value for theirs, value in values.items() if value not in (None, [])}


def _convert_spec_value_to_api(value: Any) -> Any:
    """Return a value in the API's words, with lists where the models have tuples."""
    if isinstance(value, ApiSection):
        return _convert_spec_value_to_api(value.request())
    if isinstance(value, Mapping):
        return {key: _convert_spec_value_to_api(one) for key, one in value.items()}
    return (
        [_convert_spec_value_to_api(one) for one in value]
        if isinstance(value, list | tuple)
        else value
    )


def merge_raw_values_into_request(
    request: Mapping[str, Any], raw: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a request with `raw` laid over it: structures key by key, all else as `raw` says."""
    both = dict(request)
    for key, value in raw.items():
        under = both.get(key)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            both[key] = merge_raw_values_into_request(under, value)
        else:
            both[key] = value
    return both


def _make_vpc_config(subnets: tuple[str, ...], security_groups: tuple[str, ...]) -> dict[str, Any]:
    return {"SecurityGroupIds": list(security_groups), "Subnets": list(subnets)}


def _make_group_vpc_override(spec: ClusterSpec, group: GroupSpec) -> dict[str, Any] | None:
    """Return the API overrides both or none: what a group leaves out is the cluster's."""
    if not group.subnets and not group.security_groups:
        return None
    return _make_vpc_config(
        group.subnets or (spec.vpc.subnets if spec.vpc else ()),
        group.security_groups or (spec.vpc.security_groups if spec.vpc else ()),
    )


def _make_group_slurm_config(spec: ClusterSpec, group: GroupSpec) -> dict[str, Any] | None:
    if spec.slurm_config != "api" or group.role is None:
        return None
    partitions = {"PartitionNames": [group.partition]} if group.partition else {}
    return {"NodeType": NODE_TYPES[group.role], **partitions}


LARGEST = 1 << 20
"""Bytes that are read: scripts and settings are far smaller."""


def read_s3_object(s3: AwsServiceClient, bucket: str, key: str) -> bytes:
    """Return the first MiB of an object. Raises ResourceNotFound, Refused, Unavailable."""
    body = s3.read("get_object", Bucket=bucket, Key=key)["Body"]
    try:
        return bytes(body.read(LARGEST))
    # The HTTP libraries below have no error in common, and this layer must not know them.
    except Exception as error:
        raise ServiceUnavailable(
            f"reading s3://{bucket}/{key} from S3 stopped before its end: {error}",
            "run the command again",
        ) from error


FILE = "provisioning_parameters.json"
VERSION = "1.0.0"

_KEYS = (
    "version", "workload_manager", "controller_group", "login_group", "worker_groups",
    "fsx_dns_name", "fsx_mountname", "fsx_openzfs_dns_name", "slurm_configurations",
)  # fmt: skip
_HEADS = {
    "slurm_database_secret_arn": "database_secret_arn",
    "slurm_database_endpoint": "database_endpoint",
    "slurm_database_user": "database_user",
    "slurm_shared_directory": "shared_directory",
    "slurm_sns_arn": "sns_arn",
}


def render_provisioning_parameters(spec: ClusterSpec) -> dict[str, Any]:
    """Return the file's content. Raises HpctlError for a spec that does not use it."""
    if spec.slurm_config != "provisioning_parameters":
        raise HpctlError(
            f"cluster {spec.name} has slurm_config: {spec.slurm_config} and cannot use {FILE} as "
            "well",
            f"remove {FILE}, or set slurm_config: provisioning_parameters",
        )
    roles = {group.role: group.name for group in spec.groups}
    if "controller" not in roles:
        raise HpctlError(
            f"the cluster file of {spec.name} has no instance group with the role controller",
            "set the role of each group in the cluster file",
        )
    more = spec.provisioning_parameters or ProvisioningParameters()
    answer: dict[str, Any] = {
        "version": VERSION,
        "workload_manager": "slurm",
        "controller_group": roles["controller"],
        "login_group": roles.get("login"),
        "worker_groups": [
            {"instance_group_name": group.name, "partition_name": group.partition}
            for group in spec.groups
            if group.role == "compute"
        ],
        "fsx_dns_name": more.fsx_lustre and more.fsx_lustre.dns_name,
        "fsx_mountname": more.fsx_lustre and more.fsx_lustre.mount_name,
        "fsx_openzfs_dns_name": more.fsx_openzfs and more.fsx_openzfs.dns_name,
        "slurm_configurations": _make_head_node_parameters(more.head_nodes)
        if more.head_nodes
        else None,
    }
    return merge_raw_values_into_request(
        {key: value for key, value in answer.items() if value is not None}, more.raw
    )


def _make_head_node_parameters(heads: HeadNodes) -> dict[str, str]:
    values = {key: getattr(heads, ours) for key, ours in _HEADS.items()}
    return {key: value for key, value in values.items() if value is not None}


def parse_provisioning_parameters(
    content: Mapping[str, Any],
) -> tuple[dict[str, tuple[str, str | None]], dict[str, Any]]:
    """Return what a file says: role and partition by group, and the `provisioning_parameters`
    section."""
    roles: dict[str, tuple[str, str | None]] = {}
    for worker in content.get("worker_groups") or ():
        if isinstance(worker, Mapping) and worker.get("instance_group_name"):
            roles[str(worker["instance_group_name"])] = ("compute", worker.get("partition_name"))
    for key, role in (("login_group", "login"), ("controller_group", "controller")):
        if content.get(key):
            roles[str(content[key])] = (role, None)
    section: dict[str, Any] = {}
    if content.get("fsx_dns_name"):
        section["fsx_lustre"] = {
            "dns_name": content["fsx_dns_name"],
            "mount_name": content.get("fsx_mountname"),
        }
    if content.get("fsx_openzfs_dns_name"):
        section["fsx_openzfs"] = {"dns_name": content["fsx_openzfs_dns_name"]}
    heads = content.get("slurm_configurations")
    if heads:
        section["head_nodes"] = {ours: heads[key] for key, ours in _HEADS.items() if key in heads}
    raw = {key: value for key, value in content.items() if key not in _KEYS}
    more = {k: v for k, v in (heads or {}).items() if k not in _HEADS}
    if more:
        raw["slurm_configurations"] = more
    if raw:
        section["raw"] = raw
    return roles, section


def list_provisioning_parameter_files(describe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Bucket and key of the file beside each group's lifecycle scripts, once each."""
    uris = [
        group.get("LifeCycleConfig", {}).get("SourceS3Uri") for group in describe["InstanceGroups"]
    ]
    found = []
    for uri in dict.fromkeys(str(one) for one in uris if one):
        if uri.startswith("s3://"):
            bucket, _, path = uri.removeprefix("s3://").partition("/")
            found.append((bucket, f"{path.rstrip('/')}/{FILE}".lstrip("/")))
    return list(dict.fromkeys(found))


def read_provisioning_parameters(
    aws: AwsClientFactory, describe: Mapping[str, Any]
) -> tuple[Mapping[str, Any] | None, str]:
    """Return the file beside a living cluster's lifecycle scripts; else None, and why there is
    none.

    Where the API configures Slurm there is none, and nothing to be said about it.
    """
    if any("SlurmConfig" in group for group in describe["InstanceGroups"]):
        return None, ""
    there = list_provisioning_parameter_files(describe)
    if not there:
        return None, "no group has lifecycle scripts in S3"
    bucket, key = there[0]
    try:
        content = json.loads(read_s3_object(aws.service("s3"), bucket, key))
    except HpctlError as error:
        return None, str(error)
    except ValueError as error:
        return None, f"s3://{bucket}/{key} is not JSON: {error}"
    if not isinstance(content, dict):
        return None, f"s3://{bucket}/{key} holds no JSON object"
    return content, ""


CONFIG = "config.json"


def write_group_roles_to_bundle(directory: Path, spec: ClusterSpec) -> str:
    """Write the roles into a bundle that is laid; the file that has them, empty for none.

    That is config.json, or provisioning_parameters.json where the cluster has it. What a user
    wrote there already stays. Raises HpctlError.
    """
    roles = {group.name: group.role for group in spec.groups if group.role}
    if not roles:
        return ""
    if spec.slurm_config == "provisioning_parameters":
        path = directory / FILE
        if not path.exists():
            path.write_text(json.dumps(render_provisioning_parameters(spec), indent=2) + "\n")
        return FILE
    path = directory / CONFIG
    try:
        answer = json.loads(path.read_text())
        answer["roles"] = {**roles, **answer.get("roles", {})}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise HpctlError(
            f"cannot add the groups' roles to {CONFIG}: {error}",
            "fix that file, and run the command again",
        ) from error
    path.write_text(json.dumps(answer, indent=2) + "\n")
    return CONFIG

"""What the service checks of a cluster's specification beyond its shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hpctl.clusters.provisioning import read_back
from hpctl.sandbox.emulator.errors import validation
from hpctl.sandbox.emulator.state import Group, Role, Software

ROLES: Mapping[str, Role] = {"Controller": "controller", "Login": "login", "Compute": "compute"}

ONE_CONTROLLER = (
    "Instance group {}: a Controller group has exactly one instance; several controllers are not "
    "supported with SlurmConfig."
)

Parameters = Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
"""The provisioning_parameters.json at the SourceS3Uri of a group's specification, if any."""

BOTH_STYLES = (
    "The LifeCycleConfig cannot include both a SLURM Orchestrator Config and a "
    "provisioning_parameters.json file simultaneously."
)
"""FailureMessage of an update with SlurmConfig that found the file (the migration guide)."""


def group_of(spec: Mapping[str, Any], parameters: Parameters, software: Software) -> Group:
    """An instance group of a specification that was checked, with no nodes yet.

    A group without SlurmConfig has its role and partition in provisioning_parameters.json;
    without that it is one of compute nodes. `software` is what it gets where it names no image.
    """
    slurm, partition = spec.get("SlurmConfig"), None
    if slurm:
        role = ROLES[slurm["NodeType"]]
    else:
        roles, _ = read_back(parameters(spec) or {})
        told, partition = roles.get(spec["InstanceGroupName"], ("compute", None))
        role = ROLES[told.capitalize()]
    version = str(spec.get("ImageReleaseVersion", software.desired))
    image = str(spec.get("ImageId", software.image or "default"))
    return Group(
        dict(spec),
        role,
        target=int(spec["InstanceCount"]),
        software=Software(version, version, "" if image == "default" else image),
        legacy_partition=partition or "",
    )


def both_styles(groups: Iterable[Mapping[str, Any]], parameters: Parameters) -> bool:
    """Whether groups with SlurmConfig have a provisioning_parameters.json beside their scripts."""
    return any("SlurmConfig" in group and parameters(group) is not None for group in groups)


def check_cluster(spec: Mapping[str, Any], releases: Sequence[str]) -> None:
    """Raise ApiError ValidationException where CreateCluster would.

    `releases` are the AMI releases there are.
    """
    groups = spec.get("InstanceGroups") or []
    if not groups:
        raise validation("At least one instance group must be specified.")
    if "Eks" in spec.get("Orchestrator", {}):
        raise validation("Only clusters orchestrated by Slurm are offered here.")
    continuous = spec.get("NodeProvisioningMode") == "Continuous"
    check_groups(groups, releases, spec)
    if continuous and not all("SlurmConfig" in group for group in groups):
        raise validation(
            "SlurmConfig is required for every instance group of a Slurm cluster with "
            "NodeProvisioningMode Continuous."
        )
    strategy = "SlurmConfigStrategy" in spec.get("Orchestrator", {}).get("Slurm", {})
    if strategy and not any("SlurmConfig" in group for group in groups):
        raise validation("SlurmConfigStrategy needs SlurmConfig in the instance groups.")
    check_orchestrator(spec)


def check_orchestrator(spec: Mapping[str, Any]) -> None:
    """Raise ApiError ValidationException for Slurm settings that do not suit the mode."""
    continuous = spec.get("NodeProvisioningMode") == "Continuous"
    slurm = spec.get("Orchestrator", {}).get("Slurm", {})
    if continuous and "SlurmConfigStrategy" in slurm:
        raise validation("SlurmConfigStrategy cannot be set with NodeProvisioningMode Continuous.")
    if "AccountingDatabase" in slurm and not continuous:
        raise validation("AccountingDatabase needs NodeProvisioningMode Continuous.")


def check_groups(
    groups: Iterable[Mapping[str, Any]],
    releases: Sequence[str],
    cluster: Mapping[str, Any],
    *,
    there: bool = False,
) -> None:
    """Raise ApiError ValidationException for groups that cannot stand together in a cluster.

    `cluster` is its specification, `there` whether it exists. The texts in quotes of the guide:
    smcluster-getting-started-slurm-cli ("Common validation errors") and the troubleshooting of
    sagemaker-hyperpod-slurm-api-config-migration.
    """
    listed = list(groups)
    continuous = cluster.get("NodeProvisioningMode") == "Continuous"
    twice = [n for n, c in Counter(g["InstanceGroupName"] for g in listed).items() if c > 1]
    if twice:
        raise validation(f"Instance group names must be unique: {', '.join(twice)}.")
    for group in listed:
        _check_group(group)
        _check_storage(group, cluster)
        _check_counts(group, continuous=continuous)
        version = group.get("ImageReleaseVersion")
        if version is not None and version not in releases:
            raise validation(
                f"Instance group {group['InstanceGroupName']}: there is no HyperPod AMI release "
                f"{version}."
            )
    with_slurm = [g for g in listed if "SlurmConfig" in g]
    if not with_slurm:
        return
    if len(with_slurm) < len(listed):
        raise validation("SlurmConfig must be given for all instance groups or for none.")
    types = Counter(g["SlurmConfig"]["NodeType"] for g in listed)
    if types["Controller"] > 1:
        raise validation(
            f"{types['Controller']} Controller Groups found: SlurmConfig for InstanceGroups may "
            "only have one Controller Group."
        )
    if not types["Controller"] and there:
        name = cluster["ClusterName"]
        raise validation(f"Cluster {name} has no InstanceGroup with Controller node type.")
    if not types["Controller"]:
        raise validation("Cluster must have exactly one InstanceGroup with Controller node type")
    if types["Login"] > 1:
        raise validation("At most one instance group may have NodeType Login.")


def _check_counts(group: Mapping[str, Any], *, continuous: bool) -> None:
    name, minimum = group["InstanceGroupName"], group.get("MinInstanceCount", 0)
    if minimum > group["InstanceCount"]:
        raise validation(f"Instance group {name}: MinInstanceCount exceeds InstanceCount.")
    if minimum and not continuous:
        raise validation(
            f"Instance group {name}: MinInstanceCount needs NodeProvisioningMode Continuous."
        )
    if len(group.get("CapacityRequirements", {})) > 1:
        raise validation(f"Instance group {name}: CapacityRequirements are Spot or OnDemand.")
    if "Spot" in group.get("CapacityRequirements", {}) and "TrainingPlanArn" in group:
        raise validation(f"Instance group {name}: a training plan holds no Spot capacity.")


def _check_group(group: Mapping[str, Any]) -> None:
    name = group["InstanceGroupName"]
    if ("InstanceType" in group) == ("InstanceRequirements" in group):
        raise validation(
            f"Instance group {name}: give either InstanceType or InstanceRequirements."
        )
    lifecycle = group.get("LifeCycleConfig")
    if lifecycle == {}:
        raise validation(
            f"LifeCycleConfig for instance group is provided but contains no configuration: {name}."
        )
    if lifecycle and "OnCreate" in lifecycle and "OnInitComplete" in lifecycle:
        raise validation(
            "OnCreate and OnInitComplete in LifeCycleConfig are mutually exclusive: instance "
            f"group {name}."
        )
    if lifecycle and "SourceS3Uri" not in lifecycle:
        raise validation(
            f"LifeCycleConfig for instance group is incomplete: {name} has no SourceS3Uri."
        )
    slurm = group.get("SlurmConfig")
    if slurm is None:
        return
    partitions = slurm.get("PartitionNames") or []
    if slurm["NodeType"] == "Compute" and not partitions:
        raise validation(f"Instance group {name}: PartitionNames is required for Compute.")
    if slurm["NodeType"] != "Compute" and partitions:
        raise validation(f"Partitions can only be assigned to Compute node types: {name}")
    if slurm["NodeType"] == "Controller" and group["InstanceCount"] != 1:
        # The guide's page on the API's Slurm configuration: no several head nodes in this mode.
        raise validation(ONE_CONTROLLER.format(name))


def _check_storage(group: Mapping[str, Any], cluster: Mapping[str, Any]) -> None:
    vpc = cluster.get("VpcConfig") or group.get("OverrideVpcConfig")
    mounts = any(
        key.startswith("Fsx") for c in group.get("InstanceStorageConfigs", ()) for key in c
    )
    if mounts and not vpc:
        raise validation("FSx configurations are only supported for Custom VPC")

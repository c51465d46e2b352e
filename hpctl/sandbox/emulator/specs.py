"""What the service checks of a cluster's specification beyond its shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hpctl.sandbox.emulator.errors import validation
from hpctl.sandbox.emulator.state import Group, Role, Software

ROLES: Mapping[str, Role] = {"Controller": "controller", "Login": "login", "Compute": "compute"}

ONE_CONTROLLER = (
    "Instance group {}: a Controller group has exactly one instance; several controllers are not "
    "supported with SlurmConfig."
)

RoleOf = Callable[[Mapping[str, Any]], Role]
"""The role of a group's specification without SlurmConfig."""


def group_of(spec: Mapping[str, Any], fallback: RoleOf, release: str) -> Group:
    """An instance group of a specification that was checked, with no nodes yet.

    A group without SlurmConfig has its role in provisioning_parameters.json, which the service
    does not read either; `fallback` tells it. `release` is
    the image it gets where it names none.
    """
    slurm = spec.get("SlurmConfig")
    role = ROLES[slurm["NodeType"]] if slurm else fallback(spec)
    version = str(spec.get("ImageReleaseVersion", release))
    image = str(spec.get("ImageId", "default"))
    software = Software(version, version, "" if image == "default" else image)
    return Group(dict(spec), role, target=int(spec["InstanceCount"]), software=software)


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
    check_groups(groups, releases, continuous=continuous)
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
    groups: Iterable[Mapping[str, Any]], releases: Sequence[str], *, continuous: bool
) -> None:
    """Raise ApiError ValidationException for groups that cannot stand together."""
    listed = list(groups)
    twice = [n for n, c in Counter(g["InstanceGroupName"] for g in listed).items() if c > 1]
    if twice:
        raise validation(f"Instance group names must be unique: {', '.join(twice)}.")
    for group in listed:
        _check_group(group)
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
    if types["Controller"] != 1:
        raise validation("Exactly one instance group must have NodeType Controller.")
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
    lifecycle = group.get("LifeCycleConfig", {})
    if "OnCreate" in lifecycle and "OnInitComplete" in lifecycle:
        raise validation(
            f"Instance group {name}: OnCreate and OnInitComplete are mutually exclusive."
        )
    if lifecycle and "SourceS3Uri" not in lifecycle:
        raise validation(f"Instance group {name}: LifeCycleConfig needs SourceS3Uri.")
    slurm = group.get("SlurmConfig")
    if slurm is None:
        return
    partitions = slurm.get("PartitionNames") or []
    if slurm["NodeType"] == "Compute" and not partitions:
        raise validation(f"Instance group {name}: PartitionNames is required for Compute.")
    if slurm["NodeType"] != "Compute" and partitions:
        raise validation(f"Instance group {name}: PartitionNames is allowed for Compute only.")
    if slurm["NodeType"] == "Controller" and group["InstanceCount"] != 1:
        # The guide's page on the API's Slurm configuration: no several head nodes in this mode.
        raise validation(ONE_CONTROLLER.format(name))

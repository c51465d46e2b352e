"""A cluster file as the requests that the service takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpctl.clusters.spec import ClusterSpec, GroupSpec

NODE_TYPES = {"controller": "Controller", "login": "Login", "compute": "Compute"}
CAPACITY = {"spot": "Spot", "on_demand": "OnDemand"}

LEFT_TO_RAW = {
    "RestrictedInstanceGroups": "restricted groups are for EKS",
    "RestrictedInstanceGroupsConfig": "restricted groups are for EKS",
    "Orchestrator.Eks": "hpctl is for Slurm",
    "AutoScaling": "Karpenter is for EKS; hpctl scales Slurm clusters itself",
    "InstanceGroups.KubernetesConfig": "labels and taints are for EKS",
}
"""What CreateCluster takes and the models have no word for, and why."""


def create_request(spec: ClusterSpec) -> dict[str, Any]:
    """CreateCluster's request."""
    slurm = _said(
        SlurmConfigStrategy=spec.slurm_config_strategy,
        AccountingDatabase=spec.accounting_database and spec.accounting_database.request(),
    )
    request = _said(
        ClusterName=spec.name,
        InstanceGroups=[group_request(spec, group) for group in spec.groups],
        VpcConfig=spec.vpc and _vpc(spec.vpc.subnets, spec.vpc.security_groups),
        Tags=[{"Key": key, "Value": value} for key, value in spec.tags.items()] or None,
        Orchestrator={"Slurm": slurm} if slurm else None,
        NodeRecovery=spec.node_recovery,
        TieredStorageConfig=spec.tiered_storage and spec.tiered_storage.request(),
        NodeProvisioningMode=spec.node_provisioning_mode,
        ClusterRole=spec.cluster_role,
    )
    return merged(request, spec.raw)


def group_request(spec: ClusterSpec, group: GroupSpec) -> dict[str, Any]:
    """One group of it: a ClusterInstanceGroupSpecification, for UpdateCluster as well."""
    types = group.instance_types
    request = _said(
        InstanceGroupName=group.name,
        InstanceType=group.instance_type,
        InstanceRequirements={"InstanceTypes": list(types)} if types else None,
        InstanceCount=group.count,
        MinInstanceCount=group.min_count,
        LifeCycleConfig=group.lifecycle and group.lifecycle.request(),
        ExecutionRole=group.execution_role,
        ThreadsPerCore=group.threads_per_core,
        InstanceStorageConfigs=[one.request() for one in group.storage] or None,
        OnStartDeepHealthChecks=group.deep_health_checks,
        TrainingPlanArn=group.training_plan,
        OverrideVpcConfig=_override(spec, group),
        ScheduledUpdateConfig=group.scheduled_update and group.scheduled_update.request(),
        ImageId=group.image_id,
        ImageReleaseVersion=group.image_release_version,
        AutoPatchConfig=group.auto_patch and group.auto_patch.request(),
        SlurmConfig=_slurm(spec, group),
        CapacityRequirements={CAPACITY[group.capacity]: {}} if group.capacity else None,
        NetworkInterface={"InterfaceType": group.network_interface}
        if group.network_interface
        else None,
    )
    return merged(request, group.raw)


def merged(request: Mapping[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """A request with `raw` laid over it: structures key by key, all else as `raw` says."""
    both = dict(request)
    for key, value in raw.items():
        under = both.get(key)
        if isinstance(under, Mapping) and isinstance(value, Mapping):
            both[key] = merged(under, value)
        else:
            both[key] = value
    return both


def _said(**fields: Any) -> dict[str, Any]:
    """The fields that have a value, with lists where the models have tuples."""
    return {name: _lists(value) for name, value in fields.items() if value is not None}


def _lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _lists(one) for key, one in value.items()}
    return [_lists(one) for one in value] if isinstance(value, list | tuple) else value


def _vpc(subnets: tuple[str, ...], security_groups: tuple[str, ...]) -> dict[str, Any]:
    return {"SecurityGroupIds": list(security_groups), "Subnets": list(subnets)}


def _override(spec: ClusterSpec, group: GroupSpec) -> dict[str, Any] | None:
    """The API overrides both or none: what a group leaves out is the cluster's."""
    if not group.subnets and not group.security_groups:
        return None
    return _vpc(
        group.subnets or (spec.vpc.subnets if spec.vpc else ()),
        group.security_groups or (spec.vpc.security_groups if spec.vpc else ()),
    )


def _slurm(spec: ClusterSpec, group: GroupSpec) -> dict[str, Any] | None:
    if spec.slurm_config != "api" or group.role is None:
        return None
    partitions = {"PartitionNames": [group.partition]} if group.partition else {}
    return {"NodeType": NODE_TYPES[group.role], **partitions}

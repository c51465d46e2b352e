"""DescribeCluster's answer in the words of a request, and both made comparable. Pure.

A spec says less than the service answers: what it leaves open, the service has filled in. Such a
field is no difference, and stands in a restated group as the service has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpctl.core.update_cluster import group_of

_SAME_OF_CLUSTER = (
    "ClusterName", "VpcConfig", "Orchestrator", "NodeRecovery", "TieredStorageConfig",
    "NodeProvisioningMode", "ClusterRole",
)  # fmt: skip

NO_OPINION = frozenset(
    {
        "ThreadsPerCore", "ImageId", "ImageReleaseVersion", "NetworkInterface",
        "CapacityRequirements", "NodeRecovery", "ClusterRole", "SlurmConfigStrategy",
        "InstanceMemoryAllocationPercentage", "NextPatchDate", "PatchSchedule", "MountPath",
        "Port", "Name", "RootVolume", "IdleWaitWindowInSeconds", "DrainPolicy",
        "DrainTimeoutInSeconds", "OnDrainTimeout", "RollbackMaximumBatchSize",
        "WaitIntervalInSeconds", "AutoScaling",
    }
)  # fmt: skip
"""Fields that the service fills in where the customer says nothing."""

_SETS = frozenset({"Subnets", "SecurityGroupIds", "OnStartDeepHealthChecks"})
"""Lists whose order means nothing."""


def request_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """The request that would make the cluster as it is described."""
    request = {k: described[k] for k in _SAME_OF_CLUSTER if described.get(k) not in (None, {}, "")}
    request["InstanceGroups"] = [group_of(g) for g in described.get("InstanceGroups", ())]
    scaling = described.get("AutoScaling") or {}
    if scaling:
        kept = ("Mode", "AutoScalerType")
        request["AutoScaling"] = {k: scaling[k] for k in kept if k in scaling}
    return request


def filled(requested: Any, observed: Any) -> Any:
    """What is requested, with what it leaves open as it is observed."""
    if isinstance(requested, Mapping) and isinstance(observed, Mapping):
        both = {k: filled(v, observed.get(k)) for k, v in requested.items()}
        both |= {k: v for k, v in observed.items() if k in NO_OPINION and k not in requested}
        return both
    if _structures(requested) and _structures(observed) and len(requested) == len(observed):
        return [filled(r, o) for r, o in zip(requested, observed, strict=True)]
    return requested


def _structures(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(v, Mapping) for v in value)


def leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Every single value by its place (`LifeCycleConfig.OnCreate`); lists are single values."""
    if isinstance(value, Mapping) and value:
        found: dict[str, Any] = {}
        for key, one in value.items():
            found |= leaves(one, f"{place}.{key}" if place else str(key))
        return found
    if isinstance(value, list | tuple):
        plain = [leaves(v) if isinstance(v, Mapping) else v for v in value]
        return {place: sorted(plain) if place.rpartition(".")[2] in _SETS else plain}
    return {place: value}

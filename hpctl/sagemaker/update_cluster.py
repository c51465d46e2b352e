"""DescribeCluster's answer in the words of a request: what UpdateCluster wants restated.

Details and specification of a group have most members in common, but not all: a flexible group's
types, the image, the minimum and the patch schedule have names of their own in each.
"""

from collections.abc import Mapping
from typing import Any

IMAGES = ("ImageId", "ImageReleaseVersion")
"""The service chooses them where the spec does not: restated only where it was set."""

_SAME_OF_GROUP = (
    "InstanceGroupName", "InstanceType", "LifeCycleConfig", "ExecutionRole", "ThreadsPerCore",
    "InstanceStorageConfigs", "OnStartDeepHealthChecks", "TrainingPlanArn", "OverrideVpcConfig",
    "ScheduledUpdateConfig", "SlurmConfig", "CapacityRequirements", "NetworkInterface",
)  # fmt: skip


def make_group_update(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return one group of it: what UpdateCluster wants restated, with the count that it is to
    have."""
    group = {
        k: description[k] for k in _SAME_OF_GROUP if description.get(k) not in (None, {}, [], "")
    }
    group["InstanceCount"] = description.get("TargetCount", description.get("CurrentCount", 0))
    if description.get("MinCount"):
        group["MinInstanceCount"] = description["MinCount"]
    flexible = description.get("InstanceRequirements") or {}
    types = flexible.get("DesiredInstanceTypes") or flexible.get("CurrentInstanceTypes")
    if types:
        group["InstanceRequirements"] = {"InstanceTypes": list(types)}
        group.pop("InstanceType", None)
    for ours in ("ImageId", "ImageReleaseVersion"):
        image = description.get(f"Desired{ours}") or description.get(f"Current{ours}")
        if image:
            group[ours] = image
    patch = dict(description.get("AutoPatchConfig") or {})
    if patch:
        patch.pop("CurrentPatchSchedule", None)
        desired = patch.pop("DesiredPatchSchedule", None)
        if desired:
            patch["PatchSchedule"] = desired
        group["AutoPatchConfig"] = patch
    return group

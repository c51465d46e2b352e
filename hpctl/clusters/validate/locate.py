"""A place of the request as the place in the file that it comes from."""

from __future__ import annotations

import re

import yaml

from hpctl.clusters.validate.verdict import Place
from hpctl.yaml.errors import line_of

NAMES = {
    "ClusterName": "name",
    "EbsVolumeConfig": "ebs",
    "FsxLustreConfig": "fsx_lustre",
    "FsxOpenZfsConfig": "fsx_openzfs",
    "InstanceCount": "count",
    "InstanceGroupName": "name",
    "InstanceStorageConfigs": "storage",
    "LifeCycleConfig": "lifecycle",
    "MinInstanceCount": "min_count",
    "NodeType": "role",
    "OnStartDeepHealthChecks": "deep_health_checks",
    "PartitionNames": "partition",
    "SecurityGroupIds": "security_groups",
    "SourceS3Uri": "source_s3_uri",
    "TieredStorageConfig": "tiered_storage",
    "TrainingPlanArn": "training_plan",
    "VolumeSizeInGB": "volume_size_in_gb",
    "VpcConfig": "vpc",
    "CapacityRequirements": "capacity",
    "ScheduledUpdateConfig": "scheduled_update",
    "AutoPatchConfig": "auto_patch",
}
"""Where the file's key is not the API's word in snake case."""

DROPPED = frozenset(
    {
        "OverrideVpcConfig",
        "Orchestrator",
        "Slurm",
        "SlurmConfig",
        "InstanceRequirements",
        "InterfaceType",
    }
)
"""Structures of the API that the file does not have: their fields stand one level up."""

_ENDS = {"capacity", "partition"}
"""Keys below which the file has nothing."""


def in_file(place: Place) -> tuple[str | int, ...]:
    """The keys in the file: `("instance_groups", 1, "subnets", 0)`."""
    found: list[str | int] = []
    for part in place:
        if part in DROPPED:
            continue
        word = part if isinstance(part, int) else NAMES.get(part) or _snake(part)
        if found and found[-1] in _ENDS:
            break
        found.append(word)
    return tuple(found)


def spoken(place: Place) -> str:
    """The place in dots: `instance_groups.1.subnets.0`."""
    return ".".join(map(str, in_file(place)))


class Lines:
    """The lines of a file that could be read."""

    def __init__(self, text: str) -> None:
        self._root = yaml.compose(text, Loader=yaml.SafeLoader)

    def of(self, place: Place) -> int | None:
        """The line of the place, or of the nearest that there is above it."""
        return line_of(self._root, in_file(place))


def _snake(word: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).lower()

"""What a check says, and how the checks of one family are put together.

A judge is a pure function: what is wanted and what was found out go in, verdicts come out. It
says nothing where it does not apply, and OK where it has looked and is content. Nobody but the
gathers asks AWS anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import yaml

from hpctl.core.compat import StrEnum
from hpctl.yaml.errors import line_of

Place = tuple[str | int, ...]
"""Where a thing stands in the CreateCluster request: `("InstanceGroups", 1, "ExecutionRole")`."""


class Level(StrEnum):
    """Worst last. UNKNOWN is neither: nobody could be asked."""

    OK = "OK"
    UNKNOWN = "UNKNOWN"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a judge says of one place."""

    level: Level
    place: Place
    what: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A finding with the check that made it."""

    family: str
    check: str
    level: Level
    place: Place
    what: str
    mend: str = ""


def ok(what: str, place: Place = ()) -> Finding:
    """Looked at, and as it should be."""
    return Finding(Level.OK, place, what)


def warn(place: Place, what: str, mend: str) -> Finding:
    """Works, or may work, but not as its author thinks."""
    return Finding(Level.WARN, place, what, mend)


def fail(place: Place, what: str, mend: str) -> Finding:
    """The service refuses it, or the cluster comes up broken."""
    return Finding(Level.FAIL, place, what, mend)


def unknown(place: Place, unanswered: Unanswered) -> Finding:
    """A call failed."""
    return Finding(Level.UNKNOWN, place, f"cannot tell: {unanswered.why}", unanswered.mend)


def settled(found: Iterable[Finding], content: str, place: Place = ()) -> Iterator[Finding]:
    """Each finding, or OK with `content` where there is none."""
    nothing = True
    for one in found:
        nothing = False
        yield one
    if nothing:
        yield ok(content, place)


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A call that failed, in the place of its answer."""

    why: str
    mend: str = ""


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

"""What must change for a cluster to be as its spec says, and what cannot. Pure.

Both sides are in the words of the API's requests. What may not change once it is there: instance
type, execution role and threads per core by HyperPod's developer guide on UpdateCluster, NodeType
and VpcConfig by the API reference. A NodeType where there was none is the migration to API-driven
Slurm configuration, which changes nothing else.

DescribeCluster's answer is compared in the terms of a request. A spec says less than the service
answers: what it leaves open, the service has filled in. Such a field is no difference, and stands
in a restated group as the service has it.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpctl.sagemaker.update_cluster import make_group_update
from hpctl.toolkit.compat import StrEnum

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


def rebuild_create_request(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that would make the cluster as it is described."""
    request = {
        k: description[k] for k in _SAME_OF_CLUSTER if description.get(k) not in (None, {}, "")
    }
    request["InstanceGroups"] = [
        make_group_update(g) for g in description.get("InstanceGroups", ())
    ]
    scaling = description.get("AutoScaling") or {}
    if scaling:
        kept = ("Mode", "AutoScalerType")
        request["AutoScaling"] = {k: scaling[k] for k in kept if k in scaling}
    return request


def fill_unset_request_values(requested: Any, observed: Any) -> Any:
    """Return what is requested, with what it leaves open as it is observed."""
    if isinstance(requested, Mapping) and isinstance(observed, Mapping):
        both = {k: fill_unset_request_values(v, observed.get(k)) for k, v in requested.items()}
        both |= {k: v for k, v in observed.items() if k in NO_OPINION and k not in requested}
        return both
    if (
        _is_structure_list(requested)
        and _is_structure_list(observed)
        and len(requested) == len(observed)
    ):
        return [fill_unset_request_values(r, o) for r, o in zip(requested, observed, strict=True)]
    return requested


def _is_structure_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(v, Mapping) for v in value)


def flatten_request_values(value: Any, place: str = "") -> dict[str, Any]:
    """Return every single value by its place (`LifeCycleConfig.OnCreate`); lists are single
    values."""
    if isinstance(value, Mapping) and value:
        found: dict[str, Any] = {}
        for key, one in value.items():
            found |= flatten_request_values(one, f"{place}.{key}" if place else str(key))
        return found
    if isinstance(value, list | tuple):
        plain = [flatten_request_values(v) if isinstance(v, Mapping) else v for v in value]
        return {place: sorted(plain) if place.rpartition(".")[2] in _SETS else plain}
    return {place: value}


class SpecChangeKind(StrEnum):
    """What becomes of a thing."""

    ADD = "add"
    CHANGE = "change"
    DESTROY = "destroy"
    IMPOSSIBLE = "impossible"


class SpecChange(Struct, frozen=True):
    """One difference. `old` and `new` are None where the thing is not there.

    `place` is the API's: `NodeRecovery`, or `workers.LifeCycleConfig.OnCreate` with the group's
    name before it, or the group's name alone.
    """

    kind: SpecChangeKind
    place: str
    old: Any
    new: Any
    consequence: str


class ClusterDiff(Struct, frozen=True):
    """All differences between a spec and a cluster, in the order of the spec."""

    cluster: str
    changes: tuple[SpecChange, ...] = ()

    @property
    def impossible_changes(self) -> tuple[SpecChange, ...]:
        """Return what the service cannot change in place."""
        return tuple(c for c in self.changes if c.kind is SpecChangeKind.IMPOSSIBLE)

    @property
    def migrates(self) -> bool:
        """Return whether groups that are there get their first SlurmConfig."""
        return any(c.place.endswith(_NODE_TYPE) and c.old is None for c in self.changes)


_NODE_TYPE = ".SlurmConfig.NodeType"
_ALONE = "not together with the migration to SlurmConfig: migrate first, then this"
_NEW_ONLY = "new and replaced instances have it; those that are there stay as they are"
_GROUP_FIXED = {
    "InstanceType": "a group keeps its instance type: add a group of the new type, delete this one",
    "InstanceRequirements": "a group of one instance type cannot become a flexible one",
    "ExecutionRole": "a group keeps its execution role: change the role's policies, or the group",
    "ThreadsPerCore": "a group keeps its threads per core: add another group",
    "SlurmConfig.NodeType": "a group keeps its role in Slurm: add another group",
}
_GROUP_SAYS = {
    "MinInstanceCount": "the service waits up to 3 hours for so many, else rolls the group back",
    "LifeCycleConfig": _NEW_ONLY,
    "InstanceRequirements.InstanceTypes": "new instances are of these types, the first preferred",
    "InstanceStorageConfigs": _NEW_ONLY,
    "OnStartDeepHealthChecks": "instances are checked so when they are made, for about an hour",
    "TrainingPlanArn": "new instances come out of this plan",
    "OverrideVpcConfig": _NEW_ONLY,
    "ScheduledUpdateConfig": "the AMI is updated by this calendar",
    "AutoPatchConfig": "the AMI is patched so",
    "SlurmConfig.NodeType": "the API configures Slurm from now on: there is no way back",
    "SlurmConfig.PartitionNames": "slurm.conf is written again; running jobs continue",
    "ImageId": "new instances have it; `hpctl cluster software-update` brings it to the others",
    "ImageReleaseVersion": (
        "new instances have it; `hpctl cluster software-update` brings it to the others"
    ),
    "CapacityRequirements": "new instances are bought so",
    "NetworkInterface": _NEW_ONLY,
}
_CLUSTER_FIXED = {
    "VpcConfig": "a cluster keeps its VPC: create another one, or override subnets in a new group",
    "Orchestrator.Eks": "a cluster keeps its orchestrator",
}
_CLUSTER_SAYS = {
    "NodeRecovery": "from now on the service does, or does not, replace faulty instances itself",
    "NodeProvisioningMode": "groups then scale side by side, and partial capacity is taken",
    "Orchestrator": "slurm.conf is written again by this rule; running jobs continue",
    "TieredStorageConfig": "memory of every instance is reserved, or given back",
    "ClusterRole": "the service acts with this role",
    "AutoScaling": "the service scales the groups, or does not",
    "Tags": "tags of the cluster",
}
_OWN = ("InstanceGroups", "ClusterName", "Tags")


def diff_request_with_cluster(
    requested: Mapping[str, Any],
    description: Mapping[str, Any],
    tags: Mapping[str, str] | None = None,
) -> ClusterDiff:
    """Return how a CreateCluster request differs from DescribeCluster's answer.

    `tags` are those of the cluster, None where they were not read. Groups are compared by name.
    """
    observed = rebuild_create_request(description)
    requested = {"Orchestrator": {"Slurm": {}}, **requested}
    changes: list[SpecChange] = []
    if requested["ClusterName"] != observed.get("ClusterName"):
        renamed = SpecChange(
            SpecChangeKind.IMPOSSIBLE,
            "ClusterName",
            old=observed.get("ClusterName"),
            new=requested["ClusterName"],
            consequence="a cluster keeps its name: this is another cluster",
        )
        changes.append(renamed)
    changes += _diff_request_fields(
        "",
        {k: v for k, v in requested.items() if k not in _OWN},
        {k: v for k, v in observed.items() if k not in _OWN},
        _CLUSTER_FIXED,
        _CLUSTER_SAYS,
    )
    wanted = {g["InstanceGroupName"]: g for g in requested.get("InstanceGroups", ())}
    there = {g["InstanceGroupName"]: g for g in observed["InstanceGroups"]}
    for name, group in wanted.items():
        changes += _diff_requested_group_with_existing(name, group, there.get(name))
    changes += [
        _make_group_removal_change(name, there[name]) for name in there if name not in wanted
    ]
    # A spec without tags leaves them as they are: its import may not have seen any.
    if tags is not None and requested.get("Tags"):
        asked = {t["Key"]: t["Value"] for t in requested["Tags"]}
        changes += [
            SpecChange(SpecChangeKind.CHANGE, f"Tags.{key}", tags.get(key), asked.get(key), "")
            for key in dict.fromkeys((*asked, *tags))
            if tags.get(key) != asked.get(key)
        ]
    found = ClusterDiff(str(requested["ClusterName"]), tuple(changes))
    return (
        replace(found, changes=tuple(map(_restrict_change_during_migration, changes)))
        if found.migrates
        else found
    )


def _restrict_change_during_migration(change: SpecChange) -> SpecChange:
    """Return a change as it is beside a migration, which makes and takes no instances."""
    if (
        change.kind in (SpecChangeKind.ADD, SpecChangeKind.DESTROY)
        or change.place == "NodeProvisioningMode"
    ):
        return replace(change, kind=SpecChangeKind.IMPOSSIBLE, consequence=_ALONE)
    return change


def _diff_requested_group_with_existing(
    name: str, group: Mapping[str, Any], there: Mapping[str, Any] | None
) -> list[SpecChange]:
    count = int(group["InstanceCount"])
    if there is None:
        types = format_instance_types(group)
        adds = f"a new group: {count} instance(s) of {types} are made, and paid for"
        return [SpecChange(SpecChangeKind.ADD, name, None, f"{count} x {types}", adds)]
    have = int(there["InstanceCount"])
    changes = []
    if count > have:
        adds = f"{count - have} instance(s) are made, and paid for"
        changes.append(SpecChange(SpecChangeKind.ADD, f"{name}.InstanceCount", have, count, adds))
    elif count < have and is_controller_group(there):
        why = "controller nodes cannot be removed"
        changes.append(
            SpecChange(SpecChangeKind.IMPOSSIBLE, f"{name}.InstanceCount", have, count, why)
        )
    elif count < have:
        gone = f"{have - count} instance(s) go, with their volumes: idle ones first, by name"
        changes.append(
            SpecChange(SpecChangeKind.DESTROY, f"{name}.InstanceCount", have, count, gone)
        )
    own = {"InstanceGroupName", "InstanceCount", *_list_incomparable_group_images(group, there)}
    return changes + _diff_request_fields(
        name,
        {k: v for k, v in group.items() if k not in own},
        {k: v for k, v in there.items() if k not in own},
        _GROUP_FIXED,
        _GROUP_SAYS,
    )


def _list_incomparable_group_images(
    group: Mapping[str, Any], there: Mapping[str, Any]
) -> list[str]:
    """Return what cannot be compared: `default` is whatever is latest, and old groups tell no
    image."""
    images = ("ImageId", "ImageReleaseVersion")
    return [key for key in images if group.get(key) == "default" or key not in there]


def _diff_request_fields(
    where: str,
    requested: Mapping[str, Any],
    observed: Mapping[str, Any],
    fixed: Mapping[str, str],
    says: Mapping[str, str],
) -> list[SpecChange]:
    new = flatten_request_values(
        _strip_empty_values(fill_unset_request_values(requested, observed))
    )
    old = flatten_request_values(_strip_empty_values(observed))
    changes = []
    for place in dict.fromkeys((*new, *old)):
        before, after = old.get(place), new.get(place)
        if before == after or not place:
            continue
        why = _find_entry_of_nearest_field_path(fixed, place)
        flexible = place.startswith("InstanceRequirements") and before and after
        first = place == _NODE_TYPE[1:] and before is None
        kind = (
            SpecChangeKind.IMPOSSIBLE if why and not (flexible or first) else SpecChangeKind.CHANGE
        )
        if place == "NodeProvisioningMode" and after is None:
            kind, why = (
                SpecChangeKind.IMPOSSIBLE,
                "Continuous provisioning cannot be given up again",
            )
        text = (
            why
            if kind is SpecChangeKind.IMPOSSIBLE
            else _find_entry_of_nearest_field_path(says, place)
        )
        full = f"{where}.{place}" if where else place
        changes.append(SpecChange(kind, full, before, after, text))
    return changes


def _find_entry_of_nearest_field_path(table: Mapping[str, str], place: str) -> str:
    """Return the entry of the nearest place at or above this one."""
    while place:
        if place in table:
            return table[place]
        place = place.rpartition(".")[0]
    return ""


def _make_group_removal_change(name: str, there: Mapping[str, Any]) -> SpecChange:
    old = f"{there['InstanceCount']} x {format_instance_types(there)}"
    if is_controller_group(there):
        why = "the controller group cannot be removed: delete the cluster"
        return SpecChange(SpecChangeKind.IMPOSSIBLE, name, old, None, why)
    gone = f"the group and its {there['InstanceCount']} instance(s) go, with their volumes"
    return SpecChange(SpecChangeKind.DESTROY, name, old, None, gone)


def is_controller_group(group: Mapping[str, Any]) -> bool:
    """Return whether SlurmConfig says so: in the `provisioning_parameters` style it says
    nothing."""
    return bool(group.get("SlurmConfig", {}).get("NodeType") == "Controller")


def format_instance_types(group: Mapping[str, Any], between: str = ", ") -> str:
    """Return the instance types of a requested group, the preferred first."""
    flexible = group.get("InstanceRequirements", {}).get("InstanceTypes", ())
    return between.join(flexible) or str(group.get("InstanceType", "?"))


def _strip_empty_values(value: Any) -> Any:
    """Without what is empty: the API answers an empty list where nothing was asked for.

    But CapacityRequirements says Spot by an empty structure.
    """
    if not isinstance(value, Mapping):
        return value
    kept = {k: _strip_empty_values(v) for k, v in value.items()}
    return {
        k: v for k, v in kept.items() if k in ("Spot", "OnDemand") or v not in ([], {}, None, "", 0)
    }

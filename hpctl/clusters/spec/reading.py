"""A cluster file from disk: read, checked against itself, every problem at once.

Sources of the rules between its parts: the service model's documentation and the HyperPod guide's
pages on Slurm configuration, continuous provisioning, several head nodes and lifecycle scripts.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpctl.clusters.spec.cluster import AutoPatch, ClusterSpec, Ebs, GroupSpec, Storage
from hpctl.clusters.spec.field_types import API_PARTITION
from hpctl.toolkit import yaml_files
from hpctl.toolkit.errors import InvalidFileError
from hpctl.toolkit.yaml_files import Place, suggest_similar_word


class SpecRuleViolation(Struct, frozen=True):
    """A rule that a file breaks, and where. `absent`: because something is not there.

    A reader who knows that parts of the file could not be read believes no `absent`.
    """

    place: Place
    text: str
    absent: bool = False


def find_spec_rule_violations(spec: ClusterSpec) -> Iterator[SpecRuleViolation]:
    """Yield every rule that a spec breaks, none for one that the service takes."""
    seen: set[str] = set()
    for index, group in enumerate(spec.groups):
        here: Place = ("instance_groups", index)
        if group.name in seen:
            yield SpecRuleViolation(
                (*here, "name"), f"another group has the name {group.name!r} already"
            )
        seen.add(group.name)
        yield from _check_group_instance_types(group, here)
        yield from _check_group_node_counts(spec, group, here)
        yield from _check_group_role(spec, group, here)
        yield from _check_group_network_settings(spec, group, here)
        yield from _check_group_lifecycle_settings(group, here)
        yield from _check_group_storage_settings(group.storage, (*here, "storage"))
        if group.auto_patch:
            yield from _check_auto_patch_settings(group.auto_patch, (*here, "auto_patch"))
    yield from _check_cluster_roles(spec)
    yield from _check_slurm_config_style(spec)
    yield from _check_provisioning_mode(spec)
    yield from _check_hpctl_settings(spec)
    for key in spec.tags:
        if key.lower().startswith("aws:") or not key:
            yield SpecRuleViolation(("tags", key), "is no key of yours: aws: is reserved")


def _check_group_instance_types(group: GroupSpec, here: Place) -> Iterator[SpecRuleViolation]:
    if group.instance_type and group.instance_types:
        yield SpecRuleViolation(
            (*here, "instance_types"), "say instance_type or instance_types, not both"
        )
    elif not group.types:
        yield SpecRuleViolation(
            here, "instance_type is needed (or instance_types, in order)", absent=True
        )
    if len(set(group.types)) < len(group.types):
        yield SpecRuleViolation((*here, "instance_types"), "names a type twice")


def _check_group_node_counts(
    spec: ClusterSpec, group: GroupSpec, here: Place
) -> Iterator[SpecRuleViolation]:
    least, most = group.min_count, group.max_count
    if least is not None and least > group.count:
        yield SpecRuleViolation(
            (*here, "min_count"), f"is {least}, over count, which is {group.count}"
        )
    if least and spec.node_provisioning_mode != "Continuous":
        text = "needs node_provisioning_mode: Continuous"
        yield SpecRuleViolation((*here, "min_count"), text, absent=True)
    if most is not None and most < group.count:
        yield SpecRuleViolation(
            (*here, "max_count"), f"is {most}, under count, which is {group.count}"
        )
    if group.capacity == "spot" and group.training_plan:
        yield SpecRuleViolation((*here, "capacity"), "a training plan holds no spot capacity")


def _check_group_role(
    spec: ClusterSpec, group: GroupSpec, here: Place
) -> Iterator[SpecRuleViolation]:
    """In the API's style each group has a role; in the file's all have, or the file has them."""
    if group.role is None:
        if spec.slurm_config == "api" or any(g.role for g in spec.groups):
            yield SpecRuleViolation(
                here, "role is needed: controller, login or compute", absent=True
            )
        elif group.partition:
            yield SpecRuleViolation((*here, "partition"), "needs role: compute", absent=True)
    elif group.role == "compute":
        if not group.partition:
            yield SpecRuleViolation(here, "partition is needed with role compute", absent=True)
        elif spec.slurm_config == "api" and not re.fullmatch(API_PARTITION, group.partition):
            text = "has letters, digits and single dashes alone where the API configures Slurm"
            yield SpecRuleViolation((*here, "partition"), text)
    elif group.partition:
        yield SpecRuleViolation(
            (*here, "partition"), f"is for role compute alone, not for {group.role}"
        )


def _check_cluster_roles(spec: ClusterSpec) -> Iterator[SpecRuleViolation]:
    roles = [(index, group) for index, group in enumerate(spec.groups)]
    controllers = [(i, g) for i, g in roles if g.role == "controller"]
    logins = [i for i, g in roles if g.role == "login"]
    if not controllers and any(g.role for _, g in roles):
        text = "one group must have role: controller"
        yield SpecRuleViolation(("instance_groups",), text, absent=True)
    for what, more in (("controller", [i for i, _ in controllers][1:]), ("login", logins[1:])):
        for index in more:
            place = ("instance_groups", index, "role")
            yield SpecRuleViolation(place, f"only one group may have role: {what}")
    for index, group in controllers[:1]:
        place = ("instance_groups", index, "count")
        heads = spec.provisioning_parameters and spec.provisioning_parameters.head_nodes
        if group.count < 1:
            yield SpecRuleViolation(place, "the controller group needs an instance")
        elif group.count > 1 and spec.slurm_config == "api":
            yield SpecRuleViolation(
                place, "several head nodes need slurm_config: provisioning_parameters (or 1)"
            )
        elif group.count > 1 and not heads:
            text = "several head nodes need provisioning_parameters.head_nodes"
            yield SpecRuleViolation(place, text, absent=True)


def _check_group_network_settings(
    spec: ClusterSpec, group: GroupSpec, here: Place
) -> Iterator[SpecRuleViolation]:
    if spec.vpc or bool(group.subnets) == bool(group.security_groups):
        return
    given, other = ("subnets", "security_groups")
    if group.security_groups:
        given, other = other, given
    yield SpecRuleViolation(
        (*here, given), f"{other} are needed as well: there is no vpc", absent=True
    )


def _check_group_lifecycle_settings(group: GroupSpec, here: Place) -> Iterator[SpecRuleViolation]:
    lifecycle = group.lifecycle
    if lifecycle is None:
        return
    if lifecycle.on_create and lifecycle.on_init_complete:
        yield SpecRuleViolation(
            (*here, "lifecycle", "on_init_complete"),
            "say on_create or on_init_complete, not both: the service refuses it",
        )
    elif not lifecycle.on_create and not lifecycle.on_init_complete:
        text = "on_create or on_init_complete is needed (without scripts, leave lifecycle out)"
        yield SpecRuleViolation((*here, "lifecycle"), text, absent=True)


def _check_group_storage_settings(
    storage: tuple[Storage, ...], here: Place
) -> Iterator[SpecRuleViolation]:
    paths: set[str] = set()
    volumes: set[bool] = set()
    for index, one in enumerate(storage):
        place = (*here, index)
        lines = [part for part in (one.ebs, one.fsx_lustre, one.fsx_openzfs) if part]
        if len(lines) != 1:
            text = "is one of ebs, fsx_lustre and fsx_openzfs"
            yield SpecRuleViolation(place, text, absent=not lines)
        if one.ebs:
            yield from _check_ebs_volume_settings(one.ebs, (*place, "ebs"))
            if bool(one.ebs.root_volume) in volumes:
                which = "root" if one.ebs.root_volume else "second"
                yield SpecRuleViolation((*place, "ebs"), f"the {which} volume is described already")
            volumes.add(bool(one.ebs.root_volume))
        for part, default in ((one.fsx_lustre, "/fsx"), (one.fsx_openzfs, "/home")):
            path = (part.mount_path or default) if part else None
            if path in paths:
                yield SpecRuleViolation(place, f"{path} is mounted by another entry already")
            paths |= {path} if path else set()


def _check_ebs_volume_settings(ebs: Ebs, place: Place) -> Iterator[SpecRuleViolation]:
    if ebs.root_volume and ebs.volume_size_in_gb is not None:
        text = "the root volume's size cannot be chosen"
        yield SpecRuleViolation((*place, "volume_size_in_gb"), text)
    if ebs.root_volume and not ebs.volume_kms_key_id:
        yield SpecRuleViolation(place, "volume_kms_key_id is needed with root_volume", absent=True)
    if not ebs.root_volume and ebs.volume_size_in_gb is None:
        yield SpecRuleViolation(place, "volume_size_in_gb is needed", absent=True)


def _check_auto_patch_settings(patch: AutoPatch, place: Place) -> Iterator[SpecRuleViolation]:
    drains = patch.patching_strategy == "DrainFirst"
    if patch.drain_policy and not drains:
        yield SpecRuleViolation(
            (*place, "drain_policy"), "is for patching_strategy DrainFirst alone"
        )
    if patch.idle_wait_window_in_seconds is not None and drains:
        yield SpecRuleViolation((*place, "idle_wait_window_in_seconds"), "is not for DrainFirst")


def _check_slurm_config_style(spec: ClusterSpec) -> Iterator[SpecRuleViolation]:
    if spec.slurm_config == "api":
        if spec.provisioning_parameters:
            text = "needs slurm_config: provisioning_parameters; the two cannot be mixed"
            yield SpecRuleViolation(("provisioning_parameters",), text)
        return
    for key in ("slurm_config_strategy", "accounting_database", "node_provisioning_mode"):
        if getattr(spec, key):
            yield SpecRuleViolation((key,), "needs slurm_config: api")


def _check_provisioning_mode(spec: ClusterSpec) -> Iterator[SpecRuleViolation]:
    if spec.slurm_config != "api":
        return
    if spec.node_provisioning_mode == "Continuous":
        if spec.slurm_config_strategy:
            text = "cannot be chosen with node_provisioning_mode: Continuous, which merges"
            yield SpecRuleViolation(("slurm_config_strategy",), text)
    elif spec.accounting_database:
        text = "needs node_provisioning_mode: Continuous"
        yield SpecRuleViolation(("accounting_database",), text, absent=True)


def _check_hpctl_settings(spec: ClusterSpec) -> Iterator[SpecRuleViolation]:
    groups: Mapping[str, GroupSpec] = {group.name: group for group in spec.groups}
    for name, spares in spec.hpctl.spares.items():
        place = ("hpctl", "spares", name)
        group = groups.get(name)
        if group is None:
            yield SpecRuleViolation(
                place, f"no such group{suggest_similar_word(name, list(groups))}", absent=True
            )
        elif group.role not in (None, "compute"):
            yield SpecRuleViolation(place, f"spares are of compute groups, not of a {group.role}")
        elif spares > group.count:
            yield SpecRuleViolation(
                place, f"is {spares}, over the group's count, which is {group.count}"
            )
    if spec.hpctl.mode == "own" and spec.node_recovery != "None":
        text = "own needs node_recovery: None, or the service replaces nodes as well"
        yield SpecRuleViolation(("hpctl", "mode"), text, absent=True)


DEFAULT_PATH = "cluster.yaml"

_DEEPEST = 8
"""Sections inside each other, so many rounds take out whatever is wrong."""


class ClusterSpecError(InvalidFileError):
    """A cluster file with problems: all of them, each with its place.

    `rest` is the file without what is wrong in it, where so much can be read; `unread` are the
    places that it lacks, or where it has something invented.
    """

    rest: ClusterSpec | None = None
    unread: frozenset[Place] = frozenset()
    hint_text = "docs/cluster.md names every key; `hpctl cluster init` writes a file to begin with"


def read_cluster_spec(path: str | Path) -> ClusterSpec:
    """Return the spec of a file. Raises ClusterSpecError with all that is wrong with it."""
    return parse_cluster_spec_yaml(
        yaml_files.read_size_limited_text(path, ClusterSpecError), str(path)
    )


def parse_cluster_spec_yaml(text: str, path: str = DEFAULT_PATH) -> ClusterSpec:
    """Return the spec of a YAML text; `path` names it in errors. Raises ClusterSpecError."""
    data = yaml_files.load_yaml_mapping(text, path, ClusterSpecError)
    spec, found = yaml_files.build_struct_from_mapping(ClusterSpec, data)
    unread: set[Place] = set()
    rest = spec
    if spec is None:
        rest, unread = _build_spec_without_invalid_parts(data, found)
    rules = (
        [one for one in find_spec_rule_violations(rest) if spec or not one.absent] if rest else []
    )
    if found or rules:
        unread |= {rule.place for rule in rules}
        found += [(rule.place, rule.text) for rule in rules]
        wrong = ClusterSpecError(path, yaml_files.format_yaml_problems(found, text))
        wrong.rest, wrong.unread = rest, frozenset(unread)
        raise wrong
    assert spec is not None
    return spec


def build_cluster_spec(data: Mapping[str, Any], path: str) -> ClusterSpec:
    """Return the spec of values that no person has written; `path` names them in errors.

    The rules between keys are not looked at: see `checked`. Raises ClusterSpecError.
    """
    spec, found = yaml_files.build_struct_from_mapping(ClusterSpec, data)
    if spec is None:
        raise ClusterSpecError(
            path, [f"{'.'.join(map(str, place))}: {text}" for place, text in found]
        )
    return spec


def require_valid_cluster_spec(spec: ClusterSpec, path: str) -> ClusterSpec:
    """Return a spec that was not read from a file. Raises ClusterSpecError where it breaks a
    rule."""
    problems = [
        f"{'.'.join(map(str, one.place))}: {one.text}" for one in find_spec_rule_violations(spec)
    ]
    if problems:
        raise ClusterSpecError(path, problems)
    return spec


def _build_spec_without_invalid_parts(
    data: Mapping[Any, Any], found: Sequence[tuple[Place, str]]
) -> tuple[ClusterSpec | None, set[Place]]:
    """Return the file without what is wrong in it, so that the rules can be asked about the rest;
    and what it lacks. What is needed and cannot be read gets a stand-in that breaks no rule.
    """
    unread: set[Place] = set()
    rest: dict[Any, Any] = copy.deepcopy(dict(data))
    rest.pop("hpctl", None)
    for _ in range(_DEEPEST):
        for place, text in found:
            unread.add(place)
            _remove_spec_key(rest, list(place[:-1] if text == yaml_files.REQUIRED else place))
        if not isinstance(rest.get("instance_groups"), list):
            return None, unread
        rest.setdefault("name", "x")
        for index, group in enumerate(rest["instance_groups"]):
            _fill_group_placeholders(group, index)
        spec, found = yaml_files.build_struct_from_mapping(ClusterSpec, rest)
        if spec is not None:
            return spec, unread
    return None, unread


def _fill_group_placeholders(group: dict[str, Any], index: int) -> None:
    group.setdefault("name", f"x-{index}")
    group.setdefault("execution_role", "arn:aws:iam::111122223333:role/x")
    if "count" not in group:
        group["count"] = 1
        group.pop("min_count", None)
        group.pop("max_count", None)


def _remove_spec_key(rest: dict[Any, Any], place: list[Any]) -> None:
    """Take a place out: the deepest key that names it, but a group stays where it is."""
    data: Any = rest
    keys: list[tuple[dict[Any, Any], Any]] = []
    for depth, part in enumerate(place):
        if isinstance(data, dict) and part in data:
            keys.append((data, part))
        elif depth == 1 and isinstance(data, list) and place[0] == "instance_groups":
            if not isinstance(data[part], dict):
                data[part] = {}
            keys = []
        elif not isinstance(data, list):
            break
        data = data[part]
    if keys:
        holder, key = keys[-1]
        holder.pop(key)

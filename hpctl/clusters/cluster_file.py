"""A new cluster file: from a handful of answers, and as the YAML that people go on with."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from msgspec import Struct
from pydantic import BaseModel

from hpctl.clusters.spec import ClusterSpec, GroupSpec, checked
from hpctl.clusters.spec.cluster import FsxLustre, FsxOpenZfs, Lifecycle, Settings, Storage, Vpc

CONTROLLER_TYPE = "ml.m5.4xlarge"

OFFERS: Mapping[str, str] = {
    "max_count": "max_count: 16",
    "storage": (
        "storage:\n"
        "  - fsx_lustre:\n"
        "      dns_name: fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com\n"
        "      mount_name: abcdefgh\n"
        "  - ebs: {volume_size_in_gb: 500}"
    ),
    "lifecycle": (
        "lifecycle:\n"
        "  source_s3_uri: s3://sagemaker-my-bucket/lifecycle\n"
        "  on_init_complete: on_init_complete.sh"
    ),
    "threads_per_core": "threads_per_core: 2",
    "deep_health_checks": "deep_health_checks: [InstanceStress, InstanceConnectivity]",
    "training_plan": (
        "training_plan: arn:aws:sagemaker:us-east-1:111122223333:training-plan/p5-in-may"
    ),
    "capacity": "capacity: on_demand",
}
"""Keys of a group that a first file leaves out, each with an example."""


class Answers(Struct, frozen=True):
    """What a first file says. `scripts` is the S3 prefix of the lifecycle scripts, "" for none.

    `entry` is the script that runs there once the AMI has set a node up; `lustre` is a file
    system's DNS name and mount name; `mode` is hpctl's, "" for its default.
    """

    name: str
    role: str
    instance_types: tuple[str, ...]
    count: int
    group: str = "workers"
    partition: str = ""
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    controller_type: str = CONTROLLER_TYPE
    login_type: str = ""
    scripts: str = ""
    entry: str = "on_init_complete.sh"
    lustre: tuple[str, str] | None = None
    openzfs: str = ""
    training_plan: str = ""
    spot: bool = False
    continuous: bool = False
    mode: str = ""


def begun(answers: Answers) -> ClusterSpec:
    """The spec that the answers make. Raises SpecError where they contradict each other."""
    groups = [_group(answers, "controller", "controller", (answers.controller_type,), 1)]
    if answers.login_type:
        groups.append(_group(answers, "login", "login", (answers.login_type,), 1))
    partition = answers.partition or answers.group
    more: dict[str, Any] = {"partition": partition}
    if answers.training_plan:
        more["training_plan"] = answers.training_plan
    if answers.spot:
        more["capacity"] = "spot"
    types = answers.instance_types
    groups.append(_group(answers, answers.group, "compute", types, answers.count, **more))
    answer: dict[str, Any] = {"name": answers.name, "instance_groups": tuple(groups)}
    if answers.subnets or answers.security_groups:
        answer["vpc"] = Vpc(subnets=answers.subnets, security_groups=answers.security_groups)
    if answers.continuous:
        answer["node_provisioning_mode"] = "Continuous"
    if answers.mode:
        answer["hpctl"] = Settings.model_validate({"mode": answers.mode})
    if answers.mode == "own":
        answer["node_recovery"] = "None"  # else the service replaces nodes as well
    return checked(ClusterSpec.model_validate(answer), "the file")


def _group(
    answers: Answers, name: str, role: str, types: tuple[str, ...], count: int, **more: Any
) -> GroupSpec:
    answer: dict[str, Any] = {"name": name, "count": count, "role": role, **more}
    answer |= {"instance_type": types[0]} if len(types) == 1 else {"instance_types": types}
    answer["execution_role"] = answers.role
    if answers.scripts:
        answer["lifecycle"] = Lifecycle(
            source_s3_uri=answers.scripts, on_init_complete=answers.entry
        )
    storage = []
    if answers.lustre:
        dns_name, mount_name = answers.lustre
        storage.append(Storage(fsx_lustre=FsxLustre(dns_name=dns_name, mount_name=mount_name)))
    if answers.openzfs:
        storage.append(Storage(fsx_openzfs=FsxOpenZfs(dns_name=answers.openzfs)))
    return GroupSpec.model_validate({**answer, "storage": tuple(storage)})


WIDTH = 90
"""Columns of a comment."""
SMALL = 60
"""Characters of a list or structure that stands on one line."""


def to_yaml(
    spec: ClusterSpec,
    head: Sequence[str] = (),
    offers: Mapping[str, str] | None = None,
    remarks: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """What `spec.read` takes, and people too.

    `head` are paragraphs above it, or entries of a list, which begin with a dash. `offers` are
    optional keys of a group, each with an example that stands as a comment below the last group;
    `remarks` are comments below a group, by its name.
    """
    lines: list[str] = []
    for text in head:
        lines += [*(["#"] if lines and not text.startswith("- ") else []), *_comment(text)]
    if lines:
        lines.append("")
    answer = _said(spec)
    for key, value in answer.items():
        lines += _comment(_meaning(ClusterSpec, key))
        if key == "instance_groups":
            lines += ["instance_groups:", *_groups(value, remarks or {})]
            lines += _offers({k for group in value for k in group}, offers or {})
        else:
            lines += _yaml({key: value})
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _said(spec: ClusterSpec) -> dict[str, Any]:
    """What a file has to say, the groups last: they are long."""
    answer = spec.model_dump(mode="json", by_alias=False, exclude_defaults=True)
    groups = answer.pop("instance_groups")
    return {**answer, "instance_groups": groups}


def _groups(
    groups: Sequence[Mapping[str, Any]], remarks: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Each group; a key is explained in the first group that has it."""
    explained = {"name"}
    for number, group in enumerate(groups):
        if number:
            yield ""
        lines: list[str] = []
        for key, value in group.items():
            if key not in explained:
                lines += _comment(_meaning(GroupSpec, key))
            explained.add(key)
            lines += _yaml({key: value})
        lines += [f"# {remark}" for remark in remarks.get(group["name"], ())]
        yield from ("  - " + lines[0], *("    " + line for line in lines[1:]))


def _offers(there: set[str], offers: Mapping[str, str]) -> Iterator[str]:
    for key, example in offers.items():
        if key not in there:
            yield from ("    " + line for line in _comment(_meaning(GroupSpec, key)))
            yield from ("    # " + line for line in example.splitlines())


def _meaning(model: type[BaseModel], key: str) -> str:
    return model.model_fields[key].description or ""


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent="# ",
        subsequent_indent="#   " if text.startswith("- ") else "# ",
        break_on_hyphens=False,
    )


def _yaml(answer: Mapping[str, Any]) -> list[str]:
    """A key and its value, as people would write them."""
    inside = any(isinstance(value, list | dict) for value in answer.values())
    dumper = _Dumper if inside else yaml.SafeDumper
    text: str = yaml.dump(
        dict(answer),
        Dumper=dumper,
        default_flow_style=False,
        sort_keys=False,
        allow_unicode=True,
        width=1 << 16,
    )
    return text.splitlines()


class _Dumper(yaml.SafeDumper):
    """Small lists and structures on one line, the others indented below their key."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_sequence(self, *args: Any, **more: Any) -> yaml.SequenceNode:
        node = super().represent_sequence(*args, **more)
        node.flow_style = _small(node.value)
        return node

    def represent_mapping(self, *args: Any, **more: Any) -> yaml.MappingNode:
        node = super().represent_mapping(*args, **more)
        node.flow_style = _small([part for pair in node.value for part in pair])
        return node


def _small(nodes: Sequence[yaml.Node]) -> bool:
    scalars = all(isinstance(node, yaml.ScalarNode) for node in nodes)
    return scalars and sum(len(str(node.value)) + 2 for node in nodes) <= SMALL

"""Draft a cluster file: from a few answers, an existing cluster, or a request.

The YAML is what people go on with. Of a living cluster's file `cluster update` has nothing to do;
of a create-cluster request's `cluster create` sends the same.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, get_args

import msgspec
import yaml
from msgspec import Struct
from msgspec.structs import FieldInfo, fields, replace

from hpctl.clusters import diff
from hpctl.clusters import request as provisioning
from hpctl.clusters.request import (
    CAPACITY,
    CLUSTER,
    GROUP,
    NODE_TYPES,
    make_create_cluster_request,
    make_instance_group_request,
)
from hpctl.clusters.spec import (
    ClusterSpec,
    ClusterSpecError,
    GroupSpec,
    build_cluster_spec,
    require_valid_cluster_spec,
)
from hpctl.clusters.spec.field_types import ApiSection, SpecSection
from hpctl.clusters.spec.schema import read_spec_field_docs
from hpctl.clusters.validate.facts import SageMakerServiceModel
from hpctl.toolkit.errors import HpctlError

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


class ClusterInitAnswers(Struct, frozen=True):
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


def build_spec_from_answers(answers: ClusterInitAnswers) -> ClusterSpec:
    """Return the spec that the answers make. Raises ClusterSpecError where they contradict each
    other."""
    groups = [
        _make_instance_group_mapping(
            answers, "controller", "controller", (answers.controller_type,), 1
        )
    ]
    if answers.login_type:
        groups.append(
            _make_instance_group_mapping(answers, "login", "login", (answers.login_type,), 1)
        )
    partition = answers.partition or answers.group
    more: dict[str, Any] = {"partition": partition}
    if answers.training_plan:
        more["training_plan"] = answers.training_plan
    if answers.spot:
        more["capacity"] = "spot"
    types = answers.instance_types
    groups.append(
        _make_instance_group_mapping(
            answers, answers.group, "compute", types, answers.count, **more
        )
    )
    answer: dict[str, Any] = {"name": answers.name, "instance_groups": groups}
    if answers.subnets or answers.security_groups:
        answer["vpc"] = {
            "subnets": list(answers.subnets),
            "security_groups": list(answers.security_groups),
        }
    if answers.continuous:
        answer["node_provisioning_mode"] = "Continuous"
    if answers.mode:
        answer["hpctl"] = {"mode": answers.mode}
    if answers.mode == "own":
        answer["node_recovery"] = "None"  # else the service replaces nodes as well
    return require_valid_cluster_spec(build_cluster_spec(answer, "the file"), "the file")


def _make_instance_group_mapping(
    answers: ClusterInitAnswers,
    name: str,
    role: str,
    types: tuple[str, ...],
    count: int,
    **more: Any,
) -> dict[str, Any]:
    answer: dict[str, Any] = {"name": name, "count": count, "role": role, **more}
    answer |= {"instance_type": types[0]} if len(types) == 1 else {"instance_types": list(types)}
    answer["execution_role"] = answers.role
    if answers.scripts:
        answer["lifecycle"] = {"source_s3_uri": answers.scripts, "on_init_complete": answers.entry}
    storage: list[dict[str, Any]] = []
    if answers.lustre:
        dns_name, mount_name = answers.lustre
        storage.append({"fsx_lustre": {"dns_name": dns_name, "mount_name": mount_name}})
    if answers.openzfs:
        storage.append({"fsx_openzfs": {"dns_name": answers.openzfs}})
    return {**answer, "storage": storage}


WIDTH = 90
"""Columns of a comment."""
SMALL = 60
"""Characters of a list or structure that is written on one line."""


def format_commented_cluster_spec_yaml(
    spec: ClusterSpec,
    head: Sequence[str] = (),
    offers: Mapping[str, str] | None = None,
    remarks: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return what `spec.read` takes, and people too.

    `head` are paragraphs above it, or entries of a list, which begin with a dash. `offers` are
    optional keys of a group, each with an example as a comment below the last group;
    `remarks` are comments below a group, by its name.
    """
    lines: list[str] = []
    for text in head:
        lines += [
            *(["#"] if lines and not text.startswith("- ") else []),
            *_wrap_yaml_comment(text),
        ]
    if lines:
        lines.append("")
    answer = _convert_spec_to_dict(spec)
    for key, value in answer.items():
        lines += _wrap_yaml_comment(_get_spec_key_description(ClusterSpec, key))
        if key == "instance_groups":
            lines += ["instance_groups:", *_format_instance_group_lines(value, remarks or {})]
            lines += _format_optional_group_key_comments(
                set(chain.from_iterable(value)), offers or {}
            )
        else:
            lines += _format_yaml_entry({key: value})
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _convert_spec_to_dict(spec: ClusterSpec) -> dict[str, Any]:
    """Return what a file has to say, the groups last: they are long."""
    answer = _convert_spec_value_to_yaml(spec)
    groups = answer.pop("instance_groups")
    return {**answer, "instance_groups": groups}


def _convert_spec_value_to_yaml(value: Any) -> Any:
    """Return a value as YAML has it; of a section what differs from its defaults."""
    if isinstance(value, SpecSection):
        said = {
            f.name: getattr(value, f.name)
            for f in fields(value)
            if _has_nondefault_field_value(value, f)
        }
        return {name: _convert_spec_value_to_yaml(one) for name, one in said.items()}
    if isinstance(value, tuple | list):
        return [_convert_spec_value_to_yaml(one) for one in value]
    return msgspec.to_builtins(value)


def _has_nondefault_field_value(section: SpecSection, field: FieldInfo) -> bool:
    if field.required:
        return True
    made = field.default_factory is not msgspec.NODEFAULT
    default = field.default_factory() if made else field.default
    return bool(getattr(section, field.name) != default)


def _format_instance_group_lines(
    groups: Sequence[Mapping[str, Any]], remarks: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield each group; a key is explained in the first group that has it."""
    explained = {"name"}
    for number, group in enumerate(groups):
        if number:
            yield ""
        lines: list[str] = []
        for key, value in group.items():
            if key not in explained:
                lines += _wrap_yaml_comment(_get_spec_key_description(GroupSpec, key))
            explained.add(key)
            lines += _format_yaml_entry({key: value})
        lines += [f"# {remark}" for remark in remarks.get(group["name"], ())]
        yield from ("  - " + lines[0], *("    " + line for line in lines[1:]))


def _format_optional_group_key_comments(
    there: set[str], offers: Mapping[str, str]
) -> Iterator[str]:
    for key, example in offers.items():
        if key not in there:
            yield from (
                "    " + line
                for line in _wrap_yaml_comment(_get_spec_key_description(GroupSpec, key))
            )
            yield from ("    # " + line for line in example.splitlines())


def _get_spec_key_description(kind: type[SpecSection], key: str) -> str:
    return read_spec_field_docs(kind).get(key, "")


def _wrap_yaml_comment(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent="# ",
        subsequent_indent="#   " if text.startswith("- ") else "# ",
        break_on_hyphens=False,
    )


def _format_yaml_entry(answer: Mapping[str, Any]) -> list[str]:
    """Return a key and its value, as people would write them."""
    inside = any(isinstance(value, list | dict) for value in answer.values())
    dumper = _ClusterFileDumper if inside else yaml.SafeDumper
    text: str = yaml.dump(
        dict(answer),
        Dumper=dumper,
        default_flow_style=False,
        sort_keys=False,
        allow_unicode=True,
        width=1 << 16,
    )
    return text.splitlines()


class _ClusterFileDumper(yaml.SafeDumper):
    """Small lists and structures on one line, the others indented below their key."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_sequence(self, *args: Any, **more: Any) -> yaml.SequenceNode:
        node = super().represent_sequence(*args, **more)
        node.flow_style = _can_yaml_nodes_fit_one_line(node.value)
        return node

    def represent_mapping(self, *args: Any, **more: Any) -> yaml.MappingNode:
        node = super().represent_mapping(*args, **more)
        node.flow_style = _can_yaml_nodes_fit_one_line(list(chain.from_iterable(node.value)))
        return node


def _can_yaml_nodes_fit_one_line(nodes: Sequence[yaml.Node]) -> bool:
    scalars = all(isinstance(node, yaml.ScalarNode) for node in nodes)
    return scalars and sum(len(str(node.value)) + 2 for node in nodes) <= SMALL


__all__ = [
    "build_spec_from_request",
    "format_commented_cluster_spec_yaml",
    "import_spec_from_cluster_description",
    "import_spec_from_request_json",
    "list_settings_missing_from_import",
    "read_group_image_settings",
]

Roles = Mapping[str, tuple[str, str | None]]

_NO_WISH = ("ImageId", "ImageReleaseVersion")
_ROLES = {theirs: ours for ours, theirs in NODE_TYPES.items()}
_CAPACITIES = {theirs: ours for ours, theirs in CAPACITY.items()}


def import_spec_from_cluster_description(
    describe: Mapping[str, Any],
    tags: Mapping[str, str] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> ClusterSpec:
    """Return the spec of the cluster that DescribeCluster answered.

    What it does not answer comes from elsewhere: `tags` from ListTags, and where Slurm is not
    configured by the API, groups' roles from `parameters`, the provisioning_parameters.json beside
    the scripts. Raises HpctlError for a cluster that no spec can say.
    """
    _require_slurm_cluster(describe)
    request = diff.rebuild_create_request(describe)
    for group in request["InstanceGroups"]:
        for key in _NO_WISH:
            group.pop(key, None)
        # The service sets the date again for each patch.
        group.get("AutoPatchConfig", {}).pop("PatchSchedule", None)
    tags = {key: value for key, value in (tags or {}).items() if not key.startswith("aws:")}
    if tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items()]
    return build_spec_from_request(request, parameters)


def import_spec_from_request_json(
    text: str, path: str, model: SageMakerServiceModel
) -> ClusterSpec:
    """Return the spec of a create-cluster request, as the AWS CLI's `--cli-input-json` takes it.

    `path` names it in errors. Raises ClusterSpecError with every place that the service's model
    refuses, HpctlError for EKS.
    """
    try:
        request = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClusterSpecError(path, [f"it is not JSON: {error}"]) from error
    wrong = model.problems(request)
    if wrong:
        places = [(".".join(map(str, place)) or "the request", what) for place, what in wrong]
        raise ClusterSpecError(path, [f"{place}: {what}" for place, what in places])
    _require_slurm_cluster(request)
    return build_spec_from_request(request)


def _require_slurm_cluster(answer: Mapping[str, Any]) -> None:
    name = answer.get("ClusterName", "")
    if "Eks" in answer.get("Orchestrator", {}) or answer.get("RestrictedInstanceGroups"):
        raise HpctlError(
            f"cluster {name} uses EKS, but hpctl supports only clusters with Slurm",
            "name a HyperPod cluster with Slurm",
        )


def read_group_image_settings(describe: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the AMI of each group, as keys of the file that would pin it.

    Not part of the spec: the service tells the AMI of every group, chosen or not, and a file that
    pins it asks for a step back after the next software update.
    """
    args = {"image_id": "ImageId", "image_release_version": "ImageReleaseVersion"}
    images = {}
    for group in diff.rebuild_create_request(describe)["InstanceGroups"]:
        pins = {ours: str(group[theirs]) for ours, theirs in args.items() if theirs in group}
        images[str(group["InstanceGroupName"])] = pins
    return images


def list_settings_missing_from_import(
    spec: ClusterSpec, no_roles: str = "", *, images: bool = True
) -> list[str]:
    """Return what the service does not tell of a cluster, so that the file cannot say it.

    `no_roles` says why provisioning_parameters.json could not be had. Not `images`: a request
    tells which AMI was chosen.
    """
    lines = []
    if spec.slurm_config == "provisioning_parameters" and not any(g.role for g in spec.groups):
        why = f" ({no_roles})" if no_roles else ""
        lines.append(f"the groups' roles and partitions, which are in {provisioning.FILE}{why}")
    lines.append("max_count of the groups and all below hpctl: they are hpctl's own")
    chosen = "whether a group's AMI was chosen: what it has is next to it as a comment"
    return [*lines, chosen] if images else lines


def build_spec_from_request(
    request: Mapping[str, Any], parameters: Mapping[str, Any] | None = None
) -> ClusterSpec:
    """Return the spec of a CreateCluster request; what the models have no word for goes to `raw`.

    Raises ClusterSpecError.
    """
    name = str(request["ClusterName"])
    groups = request["InstanceGroups"]
    style = "api" if any("SlurmConfig" in group for group in groups) else "provisioning_parameters"
    roles, section = provisioning.parse_provisioning_parameters(parameters or {})
    slurm = request.get("Orchestrator", {}).get("Slurm", {})
    answer = {
        **{ours: request.get(theirs) for theirs, ours in CLUSTER.items() if ours},
        "instance_groups": [_convert_request_instance_group(group, roles) for group in groups],
        "vpc": _convert_vpc_config(request.get("VpcConfig")),
        "tags": {tag["Key"]: tag["Value"] for tag in request.get("Tags", ())},
        "slurm_config": style,
        "slurm_config_strategy": slurm.get("SlurmConfigStrategy"),
        "accounting_database": slurm.get("AccountingDatabase"),
        "provisioning_parameters": section if style != "api" else None,
    }
    spec = build_cluster_spec(_select_known_section_keys(ClusterSpec, answer), f"cluster {name}")
    return require_valid_cluster_spec(
        _add_unmodeled_request_values(spec, request), f"cluster {name}"
    )


def _convert_request_instance_group(request: Mapping[str, Any], roles: Roles) -> dict[str, Any]:
    name = str(request["InstanceGroupName"])
    slurm = request.get("SlurmConfig")
    role, partition = roles.get(name, (None, None))
    if slurm:
        role = _ROLES[slurm["NodeType"]]
        partition = next(iter(slurm.get("PartitionNames", ())), None)
    vpc = request.get("OverrideVpcConfig", {})
    answer: dict[str, Any] = {
        **{ours: request.get(theirs) for theirs, ours in GROUP.items() if ours},
        "instance_types": request.get("InstanceRequirements", {}).get("InstanceTypes"),
        "role": role,
        "partition": partition,
        "subnets": vpc.get("Subnets"),
        "security_groups": vpc.get("SecurityGroupIds"),
        "capacity": next(
            (_CAPACITIES[one] for one in request.get("CapacityRequirements", ())), None
        ),
        "network_interface": request.get("NetworkInterface", {}).get("InterfaceType"),
    }
    return answer


def _select_known_section_keys(
    kind: type[SpecSection], answer: Mapping[str, Any]
) -> dict[str, Any]:
    """Return an answer with the keys of a section, at any depth. An API section is in the API's
    words.

    What the sections have no word for is found again in `_add_unmodeled_request_values`.
    """
    names = kind.api_names() if issubclass(kind, ApiSection) else {}
    found = {}
    for field in fields(kind):
        value = answer.get(names.get(field.name, field.name))
        if value not in (None, {}):
            inner = _find_section_class(field.type)
            found[field.name] = (
                value if inner is None else _select_known_keys_in_value(inner, value)
            )
    return found


def _select_known_keys_in_value(kind: type[SpecSection], value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_select_known_keys_in_value(kind, one) for one in value]
    return _select_known_section_keys(kind, value) if isinstance(value, Mapping) else value


def _find_section_class(kind: Any) -> type[SpecSection] | None:
    """Return the section that a type is made of, at any depth."""
    if isinstance(kind, type) and issubclass(kind, SpecSection):
        return kind
    return next((found for part in get_args(kind) if (found := _find_section_class(part))), None)


def _convert_vpc_config(answer: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not answer:
        return None
    return {"subnets": answer["Subnets"], "security_groups": answer["SecurityGroupIds"]}


def _add_unmodeled_request_values(spec: ClusterSpec, request: Mapping[str, Any]) -> ClusterSpec:
    """Return the spec with everything in `raw` that its fields do not say of the request."""
    groups = tuple(
        replace(
            group,
            raw=_find_values_missing_from_spec(theirs, make_instance_group_request(spec, group)),
        )
        for group, theirs in zip(spec.groups, request["InstanceGroups"], strict=True)
    )
    rest = {key: value for key, value in request.items() if key != "InstanceGroups"}
    raw = _find_values_missing_from_spec(rest, make_create_cluster_request(spec))
    return replace(spec, instance_groups=groups, raw=raw)


def _find_values_missing_from_spec(
    theirs: Mapping[str, Any], ours: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a structure says that another does not."""
    found: dict[str, Any] = {}
    for key, value in theirs.items():
        text = ours.get(key)
        if isinstance(value, Mapping) and isinstance(text, Mapping):
            deeper = _find_values_missing_from_spec(value, text)
            if deeper:
                found[key] = deeper
        elif isinstance(text, datetime):
            # The spec has read it: of a request it may have been text.
            continue
        elif value != text and value not in (None, [], {}):
            found[key] = value
    return found

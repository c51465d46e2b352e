"""A spec from a living cluster, so that `cluster update` with it has nothing to do; or from a
create-cluster request, so that `cluster create` sends the same.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from pydantic import ValidationError

from hpctl.clusters import diff
from hpctl.clusters import request as provisioning
from hpctl.clusters.cluster_file import to_yaml
from hpctl.clusters.request import (
    CAPACITY,
    CLUSTER,
    GROUP,
    NODE_TYPES,
    create_request,
    group_request,
)
from hpctl.clusters.spec import ClusterSpec, GroupSpec, SpecError, checked
from hpctl.clusters.validate.facts import ServiceModel
from hpctl.errors import HpctlError

__all__ = ["images_of", "spec_from", "spec_of", "spec_of_json", "to_yaml", "unsaid"]

Roles = Mapping[str, tuple[str, str | None]]
_S = TypeVar("_S", ClusterSpec, GroupSpec)

_NO_WISH = ("ImageId", "ImageReleaseVersion")
_ROLES = {theirs: ours for ours, theirs in NODE_TYPES.items()}
_CAPACITIES = {theirs: ours for ours, theirs in CAPACITY.items()}


def spec_of(
    describe: Mapping[str, Any],
    tags: Mapping[str, str] | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> ClusterSpec:
    """The spec of the cluster that DescribeCluster answered.

    What it does not answer comes from elsewhere: `tags` from ListTags, and where Slurm is not
    configured by the API, groups' roles from `parameters`, the provisioning_parameters.json beside
    the scripts. Raises HpctlError for a cluster that no spec can say.
    """
    _for_slurm(describe)
    request = diff.request_of(describe)
    for group in request["InstanceGroups"]:
        for key in _NO_WISH:
            group.pop(key, None)
        # The service sets the date anew for each patch.
        group.get("AutoPatchConfig", {}).pop("PatchSchedule", None)
    tags = {key: value for key, value in (tags or {}).items() if not key.startswith("aws:")}
    if tags:
        request["Tags"] = [{"Key": key, "Value": value} for key, value in tags.items()]
    return spec_from(request, parameters)


def spec_of_json(text: str, path: str, model: ServiceModel) -> ClusterSpec:
    """The spec of a create-cluster request, as the AWS CLI's `--cli-input-json` takes it.

    `path` names it in errors. Raises SpecError with every place that the service's model refuses,
    HpctlError for EKS.
    """
    try:
        request = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(path, [f"it is not JSON: {error}"]) from error
    if wrong := model.problems(request):
        places = [(".".join(map(str, place)) or "the request", what) for place, what in wrong]
        raise SpecError(path, [f"{place}: {what}" for place, what in places])
    _for_slurm(request)
    return spec_from(request)


def _for_slurm(answer: Mapping[str, Any]) -> None:
    name = answer.get("ClusterName", "")
    if "Eks" in answer.get("Orchestrator", {}) or answer.get("RestrictedInstanceGroups"):
        raise HpctlError(f"cluster {name} is orchestrated by EKS", "hpctl is for Slurm")


def images_of(describe: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """The AMI of each group, as keys of the file that would pin it.

    Not part of the spec: the service tells the AMI of every group, chosen or not, and a file that
    pins it asks for a step back after the next software update.
    """
    args = {"image_id": "ImageId", "image_release_version": "ImageReleaseVersion"}
    groups = diff.request_of(describe)["InstanceGroups"]
    return {
        str(group["InstanceGroupName"]): {
            ours: str(group[theirs]) for ours, theirs in args.items() if theirs in group
        }
        for group in groups
    }


def unsaid(spec: ClusterSpec, no_roles: str = "", *, images: bool = True) -> list[str]:
    """What the service does not tell of a cluster, so that the file cannot say it.

    `no_roles` says why provisioning_parameters.json could not be had. Not `images`: a request
    tells which AMI was chosen.
    """
    lines = []
    if spec.slurm_config == "provisioning_parameters" and not any(g.role for g in spec.groups):
        why = f" ({no_roles})" if no_roles else ""
        lines.append(f"the groups' roles and partitions, which are in {provisioning.FILE}{why}")
    lines.append("max_count of the groups and all below hpctl: they are hpctl's own")
    chosen = "whether a group's AMI was chosen: what it has stands beside it as a comment"
    return [*lines, chosen] if images else lines


def spec_from(
    request: Mapping[str, Any], parameters: Mapping[str, Any] | None = None
) -> ClusterSpec:
    """The spec of a CreateCluster request; what the models have no word for goes to `raw`.

    Raises SpecError.
    """
    name = str(request["ClusterName"])
    groups = request["InstanceGroups"]
    style = "api" if any("SlurmConfig" in group for group in groups) else "provisioning_parameters"
    roles, section = provisioning.read_back(parameters or {})
    slurm = request.get("Orchestrator", {}).get("Slurm", {})
    try:
        answer = {
            **{ours: request.get(theirs) for theirs, ours in CLUSTER.items() if ours},
            "instance_groups": tuple(_group(group, roles) for group in groups),
            "vpc": _vpc(request.get("VpcConfig")),
            "tags": {tag["Key"]: tag["Value"] for tag in request.get("Tags", ())},
            "slurm_config": style,
            "slurm_config_strategy": slurm.get("SlurmConfigStrategy"),
            "accounting_database": slurm.get("AccountingDatabase"),
            "provisioning_parameters": section if style != "api" else None,
        }
        spec = _read(ClusterSpec, answer)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise SpecError(f"cluster {name}", problems) from error
    return checked(_with_raw(spec, request), f"cluster {name}")


def _group(request: Mapping[str, Any], roles: Roles) -> GroupSpec:
    name = str(request["InstanceGroupName"])
    slurm = request.get("SlurmConfig")
    role, partition = roles.get(name, (None, None))
    if slurm:
        role = _ROLES[slurm["NodeType"]]
        partition = next(iter(slurm.get("PartitionNames", ())), None)
    vpc = request.get("OverrideVpcConfig", {})
    answer = {
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
    return _read(GroupSpec, answer)


def _read(model: type[_S], answer: Mapping[str, Any]) -> _S:
    """Sections are in the API's words. What they have no word for is found again in `_with_raw`."""
    kept = {key: value for key, value in answer.items() if value not in (None, {})}
    return model.model_validate(kept, by_alias=True, by_name=True, extra="ignore")


def _vpc(answer: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if not answer:
        return None
    return {"subnets": answer["Subnets"], "security_groups": answer["SecurityGroupIds"]}


def _with_raw(spec: ClusterSpec, request: Mapping[str, Any]) -> ClusterSpec:
    """The spec with everything in `raw` that its fields do not say of the request."""
    groups = tuple(
        group.model_copy(update={"raw": _missing(theirs, group_request(spec, group))})
        for group, theirs in zip(spec.groups, request["InstanceGroups"], strict=True)
    )
    rest = {key: value for key, value in request.items() if key != "InstanceGroups"}
    raw = _missing(rest, create_request(spec))
    return spec.model_copy(update={"instance_groups": groups, "raw": raw})


def _missing(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """What a structure says that another does not."""
    found: dict[str, Any] = {}
    for key, value in theirs.items():
        text = ours.get(key)
        if isinstance(value, Mapping) and isinstance(text, Mapping):
            if deeper := _missing(value, text):
                found[key] = deeper
        elif isinstance(text, datetime):
            # The spec has read it: of a request it may have been text.
            continue
        elif value != text and value not in (None, [], {}):
            found[key] = value
    return found

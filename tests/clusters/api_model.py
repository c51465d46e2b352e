"""CreateCluster and DescribeCluster as botocore's service model has them."""

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from botocore.session import Session
from botocore.validate import ParamValidator

from hpctl.clusters.spec import ClusterSpec, read_cluster_spec
from hpctl.toolkit.compat import UTC

FILES = Path(__file__).parent / "files"


@cache
def model():
    return Session().get_service_model("sagemaker")


def shape(operation: str, side: str = "input_shape"):
    return getattr(model().operation_model(operation), side)


def complaints(request, operation: str = "CreateCluster") -> str:
    """What botocore's own validator says of a request; nothing where it would be sent."""
    return str(ParamValidator().validate(request, shape(operation)).generate_report())


def described(request) -> dict[str, Any]:
    """What DescribeCluster answers of a cluster that this request made: with all it fills in."""
    kept = {k: v for k, v in request.items() if k not in ("InstanceGroups", "Tags")}
    return {
        "ClusterArn": "arn:aws:sagemaker:us-west-2:000000000000:cluster/abcd1234efgh",
        "ClusterStatus": "InService",
        "CreationTime": datetime(2026, 1, 1, tzinfo=UTC),
        "NodeRecovery": "Automatic",
        **kept,
        "InstanceGroups": [_group(group) for group in request["InstanceGroups"]],
    }


def _group(request) -> dict[str, Any]:
    said = {"Status": "InService", **request}
    said["TargetCount"] = said["CurrentCount"] = said.pop("InstanceCount")
    if minimum := said.pop("MinInstanceCount", None):
        said["MinCount"] = minimum
    if flexible := said.pop("InstanceRequirements", None):
        kinds = ("CurrentInstanceTypes", "DesiredInstanceTypes")
        said["InstanceRequirements"] = dict.fromkeys(kinds, flexible["InstanceTypes"])
    for field, default in (("ImageId", "ami-00000000"), ("ImageReleaseVersion", "1.0.0")):
        said[f"Current{field}"] = said[f"Desired{field}"] = said.pop(field, default)
    if patch := dict(said.pop("AutoPatchConfig", {})):
        schedule = patch.pop("PatchSchedule", {"NextPatchDate": datetime(2027, 1, 1, tzinfo=UTC)})
        patch |= {"CurrentPatchSchedule": schedule, "DesiredPatchSchedule": schedule}
        said["AutoPatchConfig"] = patch
    return said


def paths(part, prefix: str = "", *, within: tuple[str, ...] = ()) -> Iterator[str]:
    """Every field of a structure at any depth, lists seen through: `InstanceGroups.ImageId`."""
    if part.type_name == "list":
        yield from paths(part.member, prefix, within=within)
    elif part.type_name == "structure" and part.name not in within:
        for name, inner in part.members.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path
            yield from paths(inner, path, within=(*within, part.name))


def said(request, prefix: str = "") -> Iterator[str]:
    """Every field that a request says, by the same paths."""
    if isinstance(request, list):
        for one in request:
            yield from said(one, prefix)
    elif isinstance(request, dict):
        for name, inner in request.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path
            yield from said(inner, path)


def files() -> dict[str, ClusterSpec]:
    """The sample files, which use every key between them."""
    return {path.stem: read_cluster_spec(path) for path in sorted(FILES.glob("*.yaml"))}

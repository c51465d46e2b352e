"""CreateCluster and DescribeCluster as botocore's service model has them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from botocore.session import Session
from botocore.validate import ParamValidator

from hpctl.clusters.spec import ClusterSpec, read

FILES = Path(__file__).parent / "files"


@cache
def model() -> Any:
    return Session().get_service_model("sagemaker")


def shape(operation: str, side: str = "input_shape") -> Any:
    return getattr(model().operation_model(operation), side)


def complaints(request: Any, operation: str = "CreateCluster") -> str:
    """What botocore's own validator says of a request; nothing where it would be sent."""
    return str(ParamValidator().validate(request, shape(operation)).generate_report())


def paths(part: Any, prefix: str = "", *, within: tuple[str, ...] = ()) -> Iterator[str]:
    """Every field of a structure at any depth, lists seen through: `InstanceGroups.ImageId`."""
    if part.type_name == "list":
        yield from paths(part.member, prefix, within=within)
    elif part.type_name == "structure" and part.name not in within:
        for name, inner in part.members.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path
            yield from paths(inner, path, within=(*within, part.name))


def said(request: Any, prefix: str = "") -> Iterator[str]:
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
    return {path.stem: read(path) for path in sorted(FILES.glob("*.yaml"))}

"""SageMaker's service model, as the installed botocore carries it: held against a request."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from botocore.model import ListShape, MapShape, ServiceModel, Shape, StructureShape
from botocore.session import get_session

from hpctl.cloud.aws import loader

Place = tuple[str | int, ...]

_KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "long": (int,),
    "boolean": (bool,),
    "float": (int, float),
    "double": (int, float),
}


_WORDS = {"integer": "a whole number", "long": "a whole number", "string": "text"}


class SageMakerModel:
    """What the API takes, without asking it."""

    def instance_types(self) -> frozenset[str]:
        """Every instance type that it knows for clusters."""
        return frozenset(_model().shape_for("ClusterInstanceType").metadata["enum"])

    def problems(self, request: Mapping[str, Any]) -> Sequence[tuple[Place, str]]:
        """Where a CreateCluster request departs from the model."""
        shape = _model().operation_model("CreateCluster").input_shape
        assert shape is not None
        return tuple(_walk(request, shape, ()))


@cache
def _model() -> ServiceModel:
    models = loader(get_session().get_config_variable("data_path"))
    return ServiceModel(models.load_service_model("sagemaker", "service-2"), "sagemaker")


def _walk(value: Any, shape: Shape, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(shape, StructureShape):
        yield from _structure(value, shape, place)
    elif isinstance(shape, ListShape):
        if not isinstance(value, list | tuple):
            yield place, f"must be a list, not {_kind(value)}"
            return
        yield from _length(value, shape, place, "entries")
        for at, item in enumerate(value):
            yield from _walk(item, shape.member, (*place, at))
    elif isinstance(shape, MapShape):
        if not isinstance(value, Mapping):
            yield place, f"must be a map, not {_kind(value)}"
            return
        for key, item in value.items():
            yield from _walk(item, shape.value, (*place, str(key)))
    else:
        yield from _scalar(value, shape, place)


def _structure(value: Any, shape: StructureShape, place: Place) -> Iterator[tuple[Place, str]]:
    if not isinstance(value, Mapping):
        yield place, f"must be a structure, not {_kind(value)}"
        return
    for name in shape.required_members:
        if name not in value:
            yield place, f"{name} is needed"
    for name, item in value.items():
        if name in shape.members:
            yield from _walk(item, shape.members[name], (*place, name))
        else:
            known = ", ".join(shape.members)
            yield (*place, name), f"the service's model has no {name} here; it has {known}"


def _scalar(value: Any, shape: Shape, place: Place) -> Iterator[tuple[Place, str]]:
    wanted = _KINDS.get(shape.type_name)
    if wanted is None:
        return
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        yield place, f"must be {_WORDS.get(shape.type_name, shape.type_name)}, not {_kind(value)}"
        return
    if isinstance(value, str):
        yield from _length(value, shape, place, "characters")
        yield from _text(value, shape, place)
    elif not isinstance(value, bool):
        low, high = shape.metadata.get("min"), shape.metadata.get("max")
        if (low is not None and value < low) or (high is not None and value > high):
            yield place, f"is {value}, not within {low} to {high}"


def _text(value: str, shape: Shape, place: Place) -> Iterator[tuple[Place, str]]:
    text = shape.metadata.get("enum")
    if text and value not in text:
        yield place, f"is {value!r}, not one of {', '.join(text)}"
    pattern = _compiled(shape.metadata.get("pattern") or "")
    if pattern and not pattern.fullmatch(value):
        yield place, f"is {value[:80]!r}, which does not match {pattern.pattern}"


def _length(value: Any, shape: Shape, place: Place, what: str) -> Iterator[tuple[Place, str]]:
    low, high = shape.metadata.get("min", 0), shape.metadata.get("max")
    if len(value) < low or (high is not None and len(value) > high):
        yield place, f"has {len(value)} {what}, not {low} to {high}"


@cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """None for Java's classes (`\\p{L}`), which re does not know."""
    try:
        return re.compile(pattern) if pattern else None
    except re.error:
        return None


def _kind(value: Any) -> str:
    return type(value).__name__

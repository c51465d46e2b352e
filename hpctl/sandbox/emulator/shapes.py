"""SageMaker's own service model, held against every request and every response.

botocore's ParamValidator knows types, required and unknown members and minimum lengths; the
service also refuses what is too long, not in an enumeration or not of the pattern. Both are
checked here, in both directions, so that the emulator cannot drift from what clients are built
against without saying so.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, TypeVar

import botocore.session
from botocore.model import ListShape, MapShape, OperationModel, ServiceModel, Shape, StructureShape
from botocore.validate import ParamValidator

from hpctl.core.compat import UTC, iso_time
from hpctl.sandbox.emulator.errors import validation

Body = dict[str, Any]


SAGEMAKER = "sagemaker"
SERVICES = {
    "SageMaker": SAGEMAKER,
    "AmazonSSM": "ssm",
    "ServiceQuotasV20190624": "service-quotas",
}
"""The services that are spoken here, by the word before the dot of X-Amz-Target."""

_VERSIONS = {SAGEMAKER: "2017-07-24", "ssm": "2014-11-06", "service-quotas": "2019-06-24"}


@cache
def service_model(service: str = SAGEMAKER) -> ServiceModel:
    """botocore's model of a service, loaded once a process (SageMaker's in a third of a second)."""
    session = botocore.session.get_session()
    return ServiceModel(session.get_data(f"{service}/{_VERSIONS[service]}/service-2"), service)


@cache
def operation_model(name: str, service: str = SAGEMAKER) -> OperationModel | None:
    """The model of one operation, or None where the service has no such operation."""
    model = service_model(service)
    return model.operation_model(name) if name in model.operation_names else None


def enumeration(shape: str) -> tuple[str, ...]:
    """The words of one of SageMaker's enumerations."""
    return tuple(service_model().shape_for(shape).metadata["enum"])


def request_errors(operation: OperationModel, params: Body) -> list[str]:
    """What the service would find wrong with a request; empty where it is well formed."""
    return _errors(operation.input_shape, params)


def response_errors(operation: OperationModel, body: Body) -> list[str]:
    """Where an answer departs from the model, its types, enumerations and lengths."""
    return _errors(operation.output_shape, body)


def decode(operation: OperationModel, params: Body) -> Body:
    """The request with its wire timestamps (epoch seconds) as aware datetimes."""
    shape = operation.input_shape
    return dict(_convert(params, shape, _to_datetime)) if shape is not None else params


def encode(operation: OperationModel, body: Body) -> Body:
    """The answer with datetimes as epoch seconds, SageMaker's form on the wire."""
    shape = operation.output_shape
    return dict(_convert(body, shape, _to_epoch)) if shape is not None else body


def _errors(shape: Shape | None, value: Body) -> list[str]:
    if shape is None:
        return [] if not value else ["the model has no shape for this"]
    report = ParamValidator().validate(value, shape)
    found = report.generate_report().splitlines() if report.has_errors() else []
    return [*found, *_constraints(value, shape, shape.name)]


def _constraints(value: Any, shape: Shape, place: str) -> Iterator[str]:
    """Maximum lengths, enumerations and patterns, which ParamValidator leaves to the service."""
    if isinstance(shape, StructureShape) and isinstance(value, Mapping):
        for name, item in value.items():
            if name in shape.members:
                yield from _constraints(item, shape.members[name], f"{place}.{name}")
    elif isinstance(shape, ListShape) and isinstance(value, list | tuple):
        yield from _length(value, shape, place)
        for at, item in enumerate(value):
            yield from _constraints(item, shape.member, f"{place}[{at}]")
    elif isinstance(shape, MapShape) and isinstance(value, Mapping):
        for name, item in value.items():
            yield from _constraints(name, shape.key, f"{place} key")
            yield from _constraints(item, shape.value, f"{place}.{name}")
    elif shape.type_name == "string" and isinstance(value, str):
        yield from _text(value, shape, place)
    elif shape.type_name in ("integer", "long") and isinstance(value, int):
        top = shape.metadata.get("max")
        if top is not None and value > top:
            yield _constraint(value, place, f"have value less than or equal to {top}")


def _length(value: Any, shape: Shape, place: str) -> Iterator[str]:
    top = shape.metadata.get("max")
    if top is not None and len(value) > top:
        yield _constraint(value, place, f"have length less than or equal to {top}")


def _text(value: str, shape: Shape, place: str) -> Iterator[str]:
    yield from _length(value, shape, place)
    enum = shape.metadata.get("enum")
    if enum and value not in enum:
        yield _constraint(value, place, f"satisfy enum value set: [{', '.join(enum)}]")
    pattern = shape.metadata.get("pattern")
    if pattern and (compiled := _compiled(pattern)) and not compiled.fullmatch(value):
        yield _constraint(value, place, f"satisfy regular expression pattern: {pattern}")


def _constraint(value: Any, place: str, rule: str) -> str:
    return (
        f"Value '{str(value)[:120]}' at '{place}' failed to satisfy constraint: Member must {rule}"
    )


@cache
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """A pattern of the model, or None for Java's classes (`\\p{L}`), which re cannot read."""
    try:
        return re.compile(pattern)
    except re.error:
        return None


def _convert(value: Any, shape: Shape, timestamp: Any) -> Any:
    if isinstance(shape, StructureShape) and isinstance(value, Mapping):
        return {
            name: _convert(item, shape.members[name], timestamp) if name in shape.members else item
            for name, item in value.items()
        }
    if isinstance(shape, ListShape) and isinstance(value, list | tuple):
        return [_convert(item, shape.member, timestamp) for item in value]
    if isinstance(shape, MapShape) and isinstance(value, Mapping):
        return {name: _convert(item, shape.value, timestamp) for name, item in value.items()}
    return timestamp(value) if shape.type_name == "timestamp" else value


def _to_datetime(value: Any) -> Any:
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    return iso_time(value) if isinstance(value, str) else value


def _to_epoch(value: Any) -> Any:
    return value.timestamp() if isinstance(value, datetime) else value


PAGE = 100

Item = TypeVar("Item")


def page(items: Sequence[Item], request: Body) -> tuple[Sequence[Item], str]:
    """One page of `items` and the token of the next, "" on the last.

    Raises ApiError ValidationException for a token that this API did not give.
    """
    size = min(request.get("MaxResults") or PAGE, PAGE)
    start = _start(request.get("NextToken"))
    rest = start + size < len(items)
    token = base64.urlsafe_b64encode(f"at:{start + size}".encode()).decode() if rest else ""
    return items[start : start + size], token


def _start(token: str | None) -> int:
    if not token:
        return 0
    try:
        word, _, number = base64.urlsafe_b64decode(token).decode().partition(":")
        if word == "at":
            return int(number)
    except (binascii.Error, UnicodeDecodeError, ValueError):
        pass
    raise validation("Invalid NextToken.")

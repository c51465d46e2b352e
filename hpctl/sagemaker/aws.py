"""An AWS account as the operator's commands use it: reads retried, orders sent with care.

Reads are repeated by botocore's standard mode, which knows throttling, lost connections and 5xx;
orders only where they certainly were not taken. What an error means says `classify`; here it
becomes one of the errors of `ports`.

Sessions of boto3 read the services' models once for a process. A model is megabytes of JSON: a
session with a separate loader takes 0.1 to 0.2 s for its first client of a service, one that
shares the loader 0.01 s. A request is held against SageMaker's model without asking the service.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from itertools import islice
from typing import Any, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ProfileNotFound
from botocore.loaders import Loader, create_loader
from botocore.model import ListShape, MapShape, ServiceModel, Shape, StructureShape
from botocore.parsers import ResponseParserError
from botocore.session import get_session
from botocore.utils import parse_timestamp
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from hpctl.sagemaker.classify import (
    UNREADABLE,
    find_user_hint_for_aws_error,
    format_aws_error,
    is_aws_not_found_error,
    is_aws_request_not_accepted,
    is_permanent_aws_refusal,
    read_aws_error_code,
)
from hpctl.toolkit.errors import (
    HpctlError,
    OrderOutcomeUnknown,
    ResourceNotFound,
    ServiceCallRefused,
    ServiceUnavailable,
)


def open_aws_session(
    region: str | None, profile: str | None, where: str = "--profile"
) -> boto3.session.Session:
    """Return a session with its own credentials. Raises HpctlError where there is no such
    profile."""
    try:
        return _make_boto3_session(region, profile)
    except ProfileNotFound as error:
        raise HpctlError(str(error), f"name a profile of ~/.aws/config in {where}") from error


def _make_boto3_session(region: str | None, profile: str | None) -> boto3.session.Session:
    core = get_session()
    if profile is not None:
        core.set_config_variable("profile", profile)
    models = make_botocore_model_loader(core.get_config_variable("data_path"))
    core.register_component("data_loader", models)
    parsers = core.get_component("response_parser_factory")
    parsers.set_parser_defaults(timestamp_parser=_parse_timestamp)
    session = boto3.session.Session(region_name=region, botocore_session=core)
    # Each session names boto3's own folder to its loader once more.
    models.search_paths[:] = dict.fromkeys(models.search_paths)
    return session


def _parse_timestamp(value: Any) -> datetime:
    """Return a time in an answer. dateutil takes minutes for a text of megabytes: ValueError
    instead."""
    if isinstance(value, str) and len(value) > 64:
        raise ValueError(f"a time of {len(value)} characters")
    parsed: datetime = parse_timestamp(value)
    return parsed


@cache
def make_botocore_model_loader(data_path: str | None) -> Loader:
    """Return what reads botocore's models, and those of the user's data_path before them."""
    return create_loader(data_path)


def make_client_config(attempts: int, timeout_s: float, connections: int = 10) -> Config:
    """Return how long a client tries, in so many attempts of `timeout_s` each."""
    return Config(
        retries={"total_max_attempts": attempts, "mode": "standard"},
        connect_timeout=min(5.0, timeout_s),
        read_timeout=timeout_s,
        max_pool_connections=connections,
        user_agent_extra="hpctl",
    )


CONNECTIONS = 32
"""Calls to one service that may be under way at once."""

READ_ATTEMPTS = 8
"""Half a minute of backing off. The cluster API's throttling lasts seconds, not minutes."""

ORDER_FOR_S = 120.0
"""How long an order is repeated that certainly was not taken."""

MAX_PAGES = 1000
"""Of a hundred entries and more each: a longer listing is none of the service's."""

MAX_TEXT = 1024 * 1024
"""Characters of one text in an answer."""

_NOT_THE_SERVICE = "another server than AWS answered: check --endpoint-url and HTTPS_PROXY"
_FAILED = (BotoCoreError, ClientError, ResponseParserError, *UNREADABLE)
"""What a call raises. A proxy's page in HTML, where an answer should be, is no BotoCoreError."""
_TYPES: dict[str, type | tuple[type, ...]] = {
    "structure": Mapping,
    "map": Mapping,
    "list": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "long": int,
    "float": (int, float),
    "double": (int, float),
    "timestamp": datetime,
}
"""What botocore makes of a type of its models. It looks itself at times alone, and in JSON at
nothing else; blobs and streams are left to who reads them."""


class AwsAccount:
    """A user's credentials in a region. `endpoint_url` is for SageMaker only.

    The other services' endpoints are named as for every AWS tool: AWS_ENDPOINT_URL_S3 and so on.
    """

    def __init__(
        self,
        profile: str | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._endpoint_url = endpoint_url
        self._sleep = sleep
        self._lock = threading.Lock()
        self._services: dict[str, AwsService] = {}
        # The AWS CLI and the other SDKs know AWS_REGION; boto3 alone does not.
        self._session = open_aws_session(region or os.environ.get("AWS_REGION"), profile)

    @property
    def region(self) -> str:
        """See ports.Aws."""
        if not self._session.region_name:
            raise HpctlError(
                "no AWS region is given",
                "give --region, or set the region in AWS_REGION or in the AWS profile",
            )
        return str(self._session.region_name)

    def service(self, name: str) -> AwsService:
        """See ports.Aws. For all threads."""
        with self._lock:
            if name not in self._services:
                reads, orders = (
                    self._make_client(name, READ_ATTEMPTS),
                    partial(self._make_client, name, 1),
                )
                self._services[name] = AwsService(name, reads, orders, self._sleep)
            return self._services[name]

    def _make_client(self, name: str, attempts: int) -> Any:
        config = make_client_config(attempts, 60.0, CONNECTIONS)
        endpoint = self._endpoint_url if name == "sagemaker" else None
        make: Callable[..., Any] = self._session.client
        try:
            client = make(name, region_name=self.region, endpoint_url=endpoint, config=config)
        except (BotoCoreError, ValueError) as error:
            raise HpctlError(
                f"cannot create a client for the AWS service {name}: {error}",
                "check --region and --endpoint-url",
            ) from error
        client.meta.events.register("before-parse", _reject_html_response)
        return client


class AwsService:
    """See ports.Service. `orders` makes the client that sends once: most commands only read."""

    def __init__(
        self, name: str, reads: Any, orders: Callable[[], Any], sleep: Callable[[float], None]
    ) -> None:
        self._name = name
        self._reads = reads
        self._make_orders = orders
        self._orders: Any = None
        self._lock = threading.Lock()
        self._again = Retrying(
            stop=stop_after_delay(ORDER_FOR_S),
            wait=wait_random_exponential(multiplier=0.5, max=15.0),
            retry=retry_if_exception(is_aws_request_not_accepted),
            sleep=sleep,
            reraise=True,
        )

    def read(self, operation: str, **request: Any) -> Mapping[str, Any]:
        """See ports.Service."""
        call = getattr(self._reads, operation)
        try:
            answer = self._check_response_field_types(operation, call(**request))
        except _FAILED as error:
            raise self._make_call_error(error, operation, ServiceUnavailable) from error
        return answer

    def pages(self, operation: str, key: str, **request: Any) -> Iterator[Any]:
        """See ports.Service."""
        if not self._reads.can_paginate(operation):
            yield from self.read(operation, **request).get(key, ())
            return
        pages = iter(self._reads.get_paginator(operation).paginate(**request))
        try:
            for page in islice(pages, MAX_PAGES):
                yield from self._check_response_field_types(operation, page).get(key, ())
            if next(pages, None) is not None:
                raise ValueError(f"no end after {MAX_PAGES} pages")
        except _FAILED as error:
            raise self._make_call_error(error, operation, ServiceUnavailable) from error

    def order(self, operation: str, **request: Any) -> Mapping[str, Any]:
        """See ports.Service."""
        with self._lock:
            self._orders = self._orders or self._make_orders()
        call = getattr(self._orders, operation)
        try:
            answer = self._check_response_field_types(
                operation, self._again.copy()(call, **request)
            )
        except _FAILED as error:
            # Throttled to the end, or never connected: nothing was taken, and no look is needed.
            unknown = (
                ServiceCallRefused if is_aws_request_not_accepted(error) else OrderOutcomeUnknown
            )
            raise self._make_call_error(error, operation, unknown) from error
        return answer

    def _check_response_field_types(self, operation: str, answer: Any) -> Mapping[str, Any]:
        """Return an answer that is of the model's types. Raises ValueError with the place that is
        not."""
        meta = self._reads.meta
        model = meta.service_model.operation_model(meta.method_to_api_mapping[operation])
        # XML is texts, of which botocore itself makes the types.
        wanted = model.output_shape if _is_json_protocol(model) else None
        if wanted is not None and (flaw := _find_response_type_error(answer, wanted, "$")):
            raise ValueError(flaw)
        return cast(Mapping[str, Any], answer)

    def _make_call_error(
        self, error: Exception, operation: str, unknown: type[HpctlError]
    ) -> HpctlError:
        action = f"{self._name}:{self._reads.meta.method_to_api_mapping[operation]}"
        message, hint = (
            f"{action}: {format_aws_error(error)}",
            find_user_hint_for_aws_error(error, action),
        )
        if not isinstance(error, BotoCoreError | ClientError):
            message = f"cannot read the answer of AWS to {action}: {format_aws_error(error)}"
            hint = _NOT_THE_SERVICE
        if is_aws_not_found_error(error):
            return ResourceNotFound(message, hint, code=read_aws_error_code(error))
        if is_permanent_aws_refusal(error):
            return ServiceCallRefused(message, hint, code=read_aws_error_code(error))
        if issubclass(unknown, ServiceCallRefused):
            return unknown(message, hint, code=read_aws_error_code(error))
        return unknown(message, hint)


def _reject_html_response(operation_model: Any, response_dict: Mapping[str, Any], **_: Any) -> None:
    """Raises ValueError for a page in HTML, or half an answer, which botocore reads as `{}`."""
    body, fine = response_dict["body"], response_dict["status_code"] < 300
    if fine and body and isinstance(body, bytes) and _is_json_protocol(operation_model):
        json.loads(body)


def _is_json_protocol(operation_model: Any) -> bool:
    return "json" in operation_model.service_model.metadata["protocol"]


def _find_response_type_error(value: Any, shape: Any, place: str) -> str:
    """Return the first place of an answer that is not of its type in the model; empty: there is
    none."""
    kind = shape.type_name
    fits = isinstance(value, _TYPES.get(kind, object))
    if not fits or (isinstance(value, bool) and kind != "boolean"):
        return f"{place} is a {type(value).__name__}, not a {kind}"
    parts: Iterator[tuple[Any, Any, str]] = iter(())
    if kind == "string" and len(value) > MAX_TEXT:
        return f"{place} is a text of {len(value)} characters"
    if kind == "structure":
        for name in shape.required_members:
            if name not in value:
                return f"{place}.{name} is missing"
        parts = ((value[n], s, f"{place}.{n}") for n, s in shape.members.items() if n in value)
    elif kind == "list":
        parts = ((one, shape.member, f"{place}[{n}]") for n, one in enumerate(value))
    elif kind == "map":
        parts = ((one, shape.value, f"{place}.{name[:64]}") for name, one in value.items())
    return next(filter(None, (_find_response_type_error(*part) for part in parts)), "")


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


class SageMakerApiModel:
    """What the API takes, without asking it."""

    def instance_types(self) -> frozenset[str]:
        """Return every instance type that it knows for clusters."""
        return frozenset(
            _load_sagemaker_api_model().shape_for("ClusterInstanceType").metadata["enum"]
        )

    def problems(self, request: Mapping[str, Any]) -> Sequence[tuple[Place, str]]:
        """Return where a CreateCluster request departs from the model."""
        shape = _load_sagemaker_api_model().operation_model("CreateCluster").input_shape
        assert shape is not None
        return tuple(_check_request_value(request, shape, ()))


@cache
def _load_sagemaker_api_model() -> ServiceModel:
    models = make_botocore_model_loader(get_session().get_config_variable("data_path"))
    return ServiceModel(models.load_service_model("sagemaker", "service-2"), "sagemaker")


def _check_request_value(value: Any, shape: Shape, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(shape, StructureShape):
        yield from _check_request_structure(value, shape, place)
    elif isinstance(shape, ListShape):
        if not isinstance(value, list | tuple):
            yield place, f"must be a list, not {_name_json_type(value)}"
            return
        yield from _check_request_value_length(value, shape, place, "entries")
        for at, item in enumerate(value):
            yield from _check_request_value(item, shape.member, (*place, at))
    elif isinstance(shape, MapShape):
        if not isinstance(value, Mapping):
            yield place, f"must be a map, not {_name_json_type(value)}"
            return
        for key, item in value.items():
            yield from _check_request_value(item, shape.value, (*place, str(key)))
    else:
        yield from _check_scalar_request_value(value, shape, place)


def _check_request_structure(
    value: Any, shape: StructureShape, place: Place
) -> Iterator[tuple[Place, str]]:
    if not isinstance(value, Mapping):
        yield place, f"must be a structure, not {_name_json_type(value)}"
        return
    for name in shape.required_members:
        if name not in value:
            yield place, f"{name} is needed"
    for name, item in value.items():
        if name in shape.members:
            yield from _check_request_value(item, shape.members[name], (*place, name))
        else:
            known = ", ".join(shape.members)
            yield (*place, name), f"the service's model has no {name} here; it has {known}"


def _check_scalar_request_value(
    value: Any, shape: Shape, place: Place
) -> Iterator[tuple[Place, str]]:
    wanted = _KINDS.get(shape.type_name)
    if wanted is None:
        return
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        yield (
            place,
            f"must be {_WORDS.get(shape.type_name, shape.type_name)}, not {_name_json_type(value)}",
        )
        return
    if isinstance(value, str):
        yield from _check_request_value_length(value, shape, place, "characters")
        yield from _check_text_pattern(value, shape, place)
    elif not isinstance(value, bool):
        low, high = shape.metadata.get("min"), shape.metadata.get("max")
        if (low is not None and value < low) or (high is not None and value > high):
            yield place, f"is {value}, not within {low} to {high}"


def _check_text_pattern(value: str, shape: Shape, place: Place) -> Iterator[tuple[Place, str]]:
    text = shape.metadata.get("enum")
    if text and value not in text:
        yield place, f"is {value!r}, not one of {', '.join(text)}"
    pattern = _compile_pattern(shape.metadata.get("pattern") or "")
    if pattern and not pattern.fullmatch(value):
        yield place, f"is {value[:80]!r}, which does not match {pattern.pattern}"


def _check_request_value_length(
    value: Any, shape: Shape, place: Place, what: str
) -> Iterator[tuple[Place, str]]:
    low, high = shape.metadata.get("min", 0), shape.metadata.get("max")
    if len(value) < low or (high is not None and len(value) > high):
        yield place, f"has {len(value)} {what}, not {low} to {high}"


@cache
def _compile_pattern(pattern: str) -> re.Pattern[str] | None:
    """None for Java's classes (`\\p{L}`), which re does not know."""
    try:
        return re.compile(pattern) if pattern else None
    except re.error:
        return None


def _name_json_type(value: Any) -> str:
    return type(value).__name__

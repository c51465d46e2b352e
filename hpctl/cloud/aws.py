"""An AWS account as the operator's commands use it: reads retried, orders sent with care.

Reads are repeated by botocore's standard mode, which knows throttling, lost connections and 5xx;
orders only where they certainly were not taken. What an error means says `classify`; here it
becomes one of the errors of `ports`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ProfileNotFound
from botocore.parsers import ResponseParserError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random_exponential

from hpctl.cloud.classify import (
    call_hint,
    code_of,
    is_absent,
    is_refused,
    never_taken,
    words_of,
)
from hpctl.cloud.session import open_session
from hpctl.ports import Absent, HpctlError, InDoubt, Refused, Unavailable

CONNECTIONS = 32
"""Calls to one service that may be under way at once."""

READ_ATTEMPTS = 8
"""Half a minute of backing off. The cluster API's throttling lasts seconds, not minutes."""

ORDER_FOR_S = 120.0
"""How long an order is repeated that certainly was not taken."""

_FAILED = (BotoCoreError, ClientError, ResponseParserError)
"""What a call raises. A proxy's page in HTML, where an answer should be, is no BotoCoreError."""


class AwsAccount:
    """Somebody's credentials in a region. `endpoint_url` is SageMaker's alone.

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
        try:
            # The AWS CLI and the other SDKs know AWS_REGION; boto3 alone does not.
            self._session = open_session(region or os.environ.get("AWS_REGION"), profile)
        except ProfileNotFound as error:
            raise HpctlError(str(error), "name a profile of ~/.aws/config in --profile") from error

    @property
    def region(self) -> str:
        """See ports.Aws."""
        if not self._session.region_name:
            raise HpctlError(
                "no AWS region is named", "name it in --region, in AWS_REGION or in the profile"
            )
        return str(self._session.region_name)

    def service(self, name: str) -> AwsService:
        """See ports.Aws. For all threads."""
        with self._lock:
            if name not in self._services:
                reads, orders = self._client(name, READ_ATTEMPTS), partial(self._client, name, 1)
                self._services[name] = AwsService(name, reads, orders, self._sleep)
            return self._services[name]

    def _client(self, name: str, attempts: int) -> Any:
        config = Config(
            retries={"total_max_attempts": attempts, "mode": "standard"},
            connect_timeout=5.0,
            read_timeout=60.0,
            max_pool_connections=CONNECTIONS,
            user_agent_extra="hpctl",
        )
        endpoint = self._endpoint_url if name == "sagemaker" else None
        make: Callable[..., Any] = self._session.client
        try:
            return make(name, region_name=self.region, endpoint_url=endpoint, config=config)
        except (BotoCoreError, ValueError) as error:
            raise HpctlError(
                f"cannot make a client for {name}: {error}", "check --region and --endpoint-url"
            ) from error


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
            retry=retry_if_exception(never_taken),
            sleep=sleep,
            reraise=True,
        )

    def read(self, operation: str, **request: Any) -> Mapping[str, Any]:
        """See ports.Service."""
        try:
            answer: Mapping[str, Any] = getattr(self._reads, operation)(**request)
        except _FAILED as error:
            raise self._failed(error, operation, Unavailable) from error
        return answer

    def pages(self, operation: str, key: str, **request: Any) -> Iterator[Any]:
        """See ports.Service."""
        if not self._reads.can_paginate(operation):
            yield from self.read(operation, **request).get(key, ())
            return
        try:
            for page in self._reads.get_paginator(operation).paginate(**request):
                yield from page.get(key, ())
        except _FAILED as error:
            raise self._failed(error, operation, Unavailable) from error

    def order(self, operation: str, **request: Any) -> Mapping[str, Any]:
        """See ports.Service."""
        with self._lock:
            self._orders = self._orders or self._make_orders()
        call = getattr(self._orders, operation)
        try:
            answer: Mapping[str, Any] = self._again.copy()(call, **request)
        except _FAILED as error:
            # Throttled to the end, or never connected: nothing was taken, and nobody need look.
            unknown = Refused if never_taken(error) else InDoubt
            raise self._failed(error, operation, unknown) from error
        return answer

    def _failed(self, error: Exception, operation: str, unknown: type[HpctlError]) -> HpctlError:
        action = f"{self._name}:{self._reads.meta.method_to_api_mapping[operation]}"
        message, hint = f"{action}: {words_of(error)}", call_hint(error, action)
        if is_absent(error):
            return Absent(message, hint, code=code_of(error))
        if is_refused(error):
            return Refused(message, hint, code=code_of(error))
        if issubclass(unknown, Refused):
            return unknown(message, hint, code=code_of(error))
        return unknown(message, hint)

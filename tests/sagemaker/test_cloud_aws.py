"""`ports.AwsClientFactory` over real HTTP and boto3: each class of error, retries, orders in doubt,
pages."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hpctl.sagemaker import aws as account
from hpctl.sagemaker.aws import AwsAccount
from hpctl.toolkit.errors import (
    HpctlError,
    OrderOutcomeUnknown,
    ResourceNotFound,
    ServiceCallRefused,
    ServiceUnavailable,
)
from tests.aws_wire import Answer, answering
from tests.clusters.bed import SANDBOX_KEYS

FINE = {"ClusterArn": "arn:aws:sagemaker:us-west-2:000000000000:cluster/abcd1234efgh"}
Reply = tuple[int, dict[str, Any]]


def no(code: str, status: int = 400) -> Reply:
    return status, {"__type": code, "message": f"{code} it is."}


class Wire:
    """A service that answers what it is told, in order; the last for ever. None: no reply."""

    def __init__(self) -> None:
        self.url = ""
        self.replies: list[Reply | None] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._lock = threading.Lock()

    def answer(self, operation: str, body: dict[str, Any]) -> Answer:
        with self._lock:
            self.calls.append((operation, body))
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return reply and (reply[0], json.dumps(reply[1]).encode())


@pytest.fixture(scope="module")
def _wire():
    made = Wire()
    with answering(made.answer) as made.url:
        yield made


@pytest.fixture
def wire(_wire: Wire) -> Wire:
    _wire.calls.clear()
    return _wire


@pytest.fixture(autouse=True)
def _keys(monkeypatch) -> None:
    for name, value in SANDBOX_KEYS.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    # Botocore sleeps between a read's attempts: how long is its business, and not this test's.
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", _no_delay)


def _no_delay(_self, _context) -> float:
    return 0.0


@pytest.fixture(scope="module")
def slept() -> list[float]:
    return []


@pytest.fixture(scope="module")
def aws_account(_wire: Wire, slept: list[float]) -> AwsAccount:
    return AwsAccount(region="us-west-2", endpoint_url=_wire.url, sleep=slept.append)


@pytest.fixture
def sagemaker(aws_account: AwsAccount, slept: list[float]):
    slept.clear()
    return aws_account.service("sagemaker")


def read(service):
    return service.read("describe_cluster", ClusterName="llm")


def order(service):
    return service.order("delete_cluster", ClusterName="llm")


@pytest.mark.parametrize("call", [read, order])
@pytest.mark.parametrize(
    ("code", "kind", "hint"),
    [
        ("ResourceNotFound", ResourceNotFound, ""),
        ("AccessDeniedException", ServiceCallRefused, "allow sagemaker:"),
        ("ExpiredTokenException", ServiceCallRefused, "renew"),
        ("InvalidSignatureException", ServiceCallRefused, "renew"),
        ("SomethingNewException", ServiceCallRefused, ""),
    ],
)
def test_a_refusal_has_the_services_code_and_is_not_asked_again(
    wire, sagemaker, call, code, kind, hint
):
    wire.replies = [no(code)]
    with pytest.raises(ServiceCallRefused) as caught:
        call(sagemaker)
    assert type(caught.value) is kind
    assert caught.value.code == code
    assert f"{code} it is ({code})" in str(caught.value)
    assert hint in caught.value.hint
    assert len(wire.calls) == 1


@pytest.mark.parametrize("reply", [no("ThrottlingException"), no("InternalFailure", 500), None])
def test_a_read_rides_out_what_passes(wire, sagemaker, reply):
    answer = {**FINE, "ClusterStatus": "InService", "InstanceGroups": []}
    wire.replies = [reply, reply, reply, (200, answer)]
    assert (read(sagemaker)["ClusterStatus"], len(wire.calls)) == ("InService", 4)


@pytest.mark.parametrize("reply", [no("ThrottlingException"), no("InternalFailure", 500), None])
def test_a_read_that_gets_no_answer_says_so_after_its_attempts(wire, sagemaker, reply):
    wire.replies = [reply]
    with pytest.raises(ServiceUnavailable, match="sagemaker:DescribeCluster"):
        read(sagemaker)
    assert len(wire.calls) == account.READ_ATTEMPTS


@pytest.mark.parametrize(
    "code",
    ["ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded"],
)
def test_a_throttled_order_is_sent_again_for_it_was_not_taken(wire, sagemaker, slept, code):
    wire.replies = [no(code), no(code), (200, FINE)]
    assert order(sagemaker)["ClusterArn"] == FINE["ClusterArn"]
    assert (len(wire.calls), len(slept)) == (3, 2)


@pytest.mark.parametrize(
    "reply", [no("InternalFailure", 500), no("ServiceUnavailable", 503), None, (200, {"x": 1})]
)
def test_an_order_in_doubt_is_sent_once(wire, sagemaker, reply):
    wire.replies = [reply, (200, FINE)]
    with pytest.raises(OrderOutcomeUnknown, match="sagemaker:DeleteCluster"):
        order(sagemaker)
    assert len(wire.calls) == 1


def test_where_no_server_listens_an_order_is_refused_and_a_read_unavailable(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setattr(account, "ORDER_FOR_S", 0.0)
    service = AwsAccount(region="us-west-2", endpoint_url=url, sleep=lambda _: None).service(
        "sagemaker"
    )
    with pytest.raises(ServiceCallRefused, match="sagemaker:DeleteCluster") as caught:
        order(service)
    assert "--endpoint-url" in caught.value.hint
    with pytest.raises(ServiceUnavailable) as unread:
        read(service)
    assert "no connection" in unread.value.hint


def test_a_malformed_request_is_refused_before_it_is_sent(wire, sagemaker):
    with pytest.raises(ServiceCallRefused, match="ClusterName"):
        sagemaker.read("describe_cluster")
    assert wire.calls == []


def test_threads_share_a_service(wire, aws_account):
    wire.replies = [(200, {**FINE, "ClusterStatus": "InService", "InstanceGroups": []})]
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: aws_account.service("sagemaker"), range(16)))
        assert len(set(map(id, made))) == 1
        assert len(list(pool.map(lambda _: read(made[0]), range(64)))) == 64
    assert len(wire.calls) == 64


def test_no_credentials_no_region_and_no_profile_each_have_their_fix(wire, monkeypatch):
    with pytest.raises(HpctlError, match="no AWS region") as caught:
        AwsAccount(endpoint_url=wire.url).service("sagemaker")
    assert "--region" in caught.value.hint
    with pytest.raises(HpctlError, match="nosuch") as caught:
        AwsAccount(profile="nosuch")
    assert "--profile" in caught.value.hint
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    service = AwsAccount(region="us-west-2", endpoint_url=wire.url).service("sagemaker")
    with pytest.raises(ServiceCallRefused) as refused:
        read(service)
    assert "aws sso login" in refused.value.hint
    assert wire.calls == []

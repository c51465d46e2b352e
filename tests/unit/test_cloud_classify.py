"""The table of answers, row by row, without a wire."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from hpctl.cloud.classify import hint_for, of_batch, of_error, words_of, worth_retrying
from hpctl.cloud.none import NoProvider
from hpctl.core.model import InstanceId, Outcome, OutcomeKind

A, B, C = InstanceId("i-a"), InstanceId("i-b"), InstanceId("i-c")


def refused(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "BatchReplaceClusterNodes",
    )


def test_every_id_of_a_batch_is_answered() -> None:
    answer = {
        "Successful": [A],
        "Failed": [{"NodeId": B, "ErrorCode": "InstanceIdInUse", "Message": "busy"}],
    }
    assert of_batch([A, B, C], answer) == {
        A: Outcome.accepted(),
        B: Outcome.rejected("InstanceIdInUse", "busy", transient=True),
        C: Outcome.ambiguous("unanswered", "the id stands in neither list"),
    }


def test_an_id_in_both_lists_is_ambiguous() -> None:
    answer = {"Successful": [A], "Failed": [{"NodeId": A, "ErrorCode": "InstanceIdNotFound"}]}
    assert of_batch([A], answer)[A].kind is OutcomeKind.AMBIGUOUS
    assert of_batch([A], {})[A].kind is OutcomeKind.AMBIGUOUS


@pytest.mark.parametrize(
    ("code", "kind", "transient"),
    [
        ("InstanceIdNotFound", OutcomeKind.REJECTED, False),
        ("InvalidInstanceStatus", OutcomeKind.REJECTED, True),
        ("InstanceIdInUse", OutcomeKind.REJECTED, True),
        ("InternalServerError", OutcomeKind.AMBIGUOUS, False),
        ("SomethingNew", OutcomeKind.AMBIGUOUS, False),
        ("", OutcomeKind.AMBIGUOUS, False),
    ],
)
def test_codes_of_a_node(code: str, kind: OutcomeKind, transient: bool) -> None:
    outcome = of_batch([A], {"Failed": [{"NodeId": A, "ErrorCode": code, "Message": "m"}]})[A]
    assert (outcome.kind, outcome.transient) == (kind, transient)


@pytest.mark.parametrize(
    ("error", "kind", "transient"),
    [
        (refused("ThrottlingException"), OutcomeKind.REJECTED, True),
        (refused("ExpiredTokenException"), OutcomeKind.REJECTED, True),
        (refused("ValidationException"), OutcomeKind.REJECTED, False),
        (refused("AccessDeniedException"), OutcomeKind.REJECTED, False),
        (refused("ResourceNotFound"), OutcomeKind.REJECTED, False),
        (refused("ResourceLimitExceeded"), OutcomeKind.REJECTED, False),
        (refused("UnrecognizedClientException"), OutcomeKind.REJECTED, False),
        (refused("InternalFailure", 500), OutcomeKind.AMBIGUOUS, False),
        (refused("ServiceUnavailable", 503), OutcomeKind.AMBIGUOUS, False),
        (refused("NeverHeardOf"), OutcomeKind.AMBIGUOUS, False),
        (NoCredentialsError(), OutcomeKind.REJECTED, True),
        (EndpointConnectionError(endpoint_url="u"), OutcomeKind.REJECTED, True),
        (ConnectTimeoutError(endpoint_url="u"), OutcomeKind.REJECTED, True),
        (ParamValidationError(report="r"), OutcomeKind.REJECTED, False),
        (ReadTimeoutError(endpoint_url="u"), OutcomeKind.AMBIGUOUS, False),
        (ConnectionClosedError(endpoint_url="u"), OutcomeKind.AMBIGUOUS, False),
        (BotoCoreError(), OutcomeKind.AMBIGUOUS, False),
    ],
)
def test_whole_calls(
    error: ClientError | BotoCoreError, kind: OutcomeKind, transient: bool
) -> None:
    outcome = of_error(error)
    assert (outcome.kind, outcome.transient) == (kind, transient)
    assert outcome.code


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (refused("ThrottlingException"), True),
        (refused("InternalFailure", 500), True),
        (refused("AccessDeniedException"), False),
        (refused("ResourceNotFound"), False),
        (ReadTimeoutError(endpoint_url="u"), True),
        (ParamValidationError(report="r"), False),
        (ValueError(), False),
    ],
)
def test_reads_worth_retrying(error: Exception, again: bool) -> None:
    assert worth_retrying(error) is again


@pytest.mark.parametrize(
    "error",
    [refused(c) for c in ("AccessDeniedException", "ExpiredToken", "ThrottlingException", "X")]
    + [NoCredentialsError(), EndpointConnectionError(endpoint_url="u"), BotoCoreError()],
)
def test_every_failure_has_a_hint(error: Exception) -> None:
    assert hint_for(error, "c", "DescribeCluster")


def test_a_web_page_is_not_taken_for_the_service_s_words() -> None:
    page = {"Error": {"Code": "500", "Message": "<!doctype html>\n<title>no</title>"}}
    error = ClientError(page, "DescribeFileSystems")  # type: ignore[arg-type]
    assert words_of(error) == "the answer is a web page, not the service's (500)"


def test_no_provider_refuses_and_says_so() -> None:
    none = NoProvider()
    assert not none.view().present
    for outcomes in (none.replace([A, B]), none.reboot([A, B])):
        assert list(outcomes) == [A, B]
        assert {(o.kind, o.code, o.transient) for o in outcomes.values()} == {
            (OutcomeKind.REJECTED, "no_provider", False)
        }

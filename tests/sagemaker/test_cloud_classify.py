"""The table of answers, row by row, without a wire."""

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from hpctl.sagemaker.classify import (
    classify_aws_call_error,
    classify_batch_node_response,
    format_aws_error,
)
from hpctl.sagemaker.no_provider import NoProvider
from hpctl.vocabulary.outcome import Outcome, OutcomeKind

A, B, C = "i-a", "i-b", "i-c"


def refused(code: str, status: int = 400) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": status}},
        "BatchReplaceClusterNodes",
    )


def test_every_id_of_a_batch_is_answered():
    answer = {
        "Successful": [A],
        "Failed": [{"NodeId": B, "ErrorCode": "InstanceIdInUse", "Message": "busy"}],
    }
    assert classify_batch_node_response([A, B, C], answer) == {
        A: Outcome.accepted(),
        B: Outcome.rejected("InstanceIdInUse", "busy", transient=True),
        C: Outcome.ambiguous("unanswered", "the id is in neither list"),
    }


def test_an_id_in_both_lists_is_ambiguous():
    answer = {"Successful": [A], "Failed": [{"NodeId": A, "ErrorCode": "InstanceIdNotFound"}]}
    assert classify_batch_node_response([A], answer)[A].kind is OutcomeKind.AMBIGUOUS
    assert classify_batch_node_response([A], {})[A].kind is OutcomeKind.AMBIGUOUS


@pytest.mark.parametrize(
    ("error", "kind", "transient"),
    [
        (refused("ThrottlingException"), OutcomeKind.REJECTED, True),
        (refused("ValidationException"), OutcomeKind.REJECTED, False),
        (refused("InternalFailure", 500), OutcomeKind.AMBIGUOUS, False),
        (refused("NeverHeardOf"), OutcomeKind.AMBIGUOUS, False),
        (NoCredentialsError(), OutcomeKind.REJECTED, True),
        (EndpointConnectionError(endpoint_url="u"), OutcomeKind.REJECTED, True),
        (ParamValidationError(report="r"), OutcomeKind.REJECTED, False),
        (ReadTimeoutError(endpoint_url="u"), OutcomeKind.AMBIGUOUS, False),
        (BotoCoreError(), OutcomeKind.AMBIGUOUS, False),
    ],
)
def test_whole_calls(error, kind, transient):
    outcome = classify_aws_call_error(error)
    assert (outcome.kind, outcome.transient) == (kind, transient)
    assert outcome.code


def test_a_web_page_is_not_taken_for_the_service_s_words():
    page = {"Error": {"Code": "500", "Message": "<!doctype html>\n<title>no</title>"}}
    error = ClientError(page, "DescribeFileSystems")
    assert format_aws_error(error) == "the answer is a web page, not the service's (500)"


def test_no_provider_refuses_and_says_so():
    none = NoProvider()
    assert not none.view().present
    for outcomes in (none.replace([A, B]), none.reboot([A, B])):
        assert list(outcomes) == [A, B]
        assert {(o.kind, o.code, o.transient) for o in outcomes.values()} == {
            (OutcomeKind.REJECTED, "no_provider", False)
        }

"""What an answer of the SageMaker cluster API means: one table, read at the boundary.

No caller of this module parses a code or a message. The rule of the table: Rejected only where
the order certainly was not taken; where that is unknown, Ambiguous. Sources: botocore's SageMaker
model (per-node codes), AWS's common errors (whole-call codes), botocore.exceptions (transport).
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
)

from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import InstanceId
from hpctl.vocabulary.outcome import Outcome


def _split_error_codes(text: str) -> frozenset[str]:
    return frozenset(text.split())


BUSY = _split_error_codes(
    "InstanceIdInUse InvalidInstanceStatus InvalidInstanceGroupStatus InvalidNodeStatus NodeIdInUse"
)
"""Per node or group: another request acts on it, or it is between states. The same call may succeed
later."""

REFUSED = _split_error_codes(
    "IncompatibleAvailabilityZones IncompatibleInstanceTypes InstanceGroupNotFound"
    " InstanceIdNotFound NodeIdNotFound"
)
"""Per node or group: certainly not done, and not to be asked again; an id that is not found was
replaced or deleted already. With BUSY, all that the model enumerates but InternalServerError, which
says nothing of whether it was done."""

THROTTLED = _split_error_codes(
    "Throttling ThrottlingException ThrottledException RequestThrottled RequestThrottledException"
    " TooManyRequestsException RequestLimitExceeded"
)
EXPIRED = _split_error_codes("ExpiredToken ExpiredTokenException RequestExpired")
DENIED = _split_error_codes(
    "AccessDenied AccessDeniedException UnauthorizedOperation NotAuthorized OptInRequired"
)
UNSIGNED = _split_error_codes(
    "UnrecognizedClientException InvalidClientTokenId InvalidSignatureException"
    " SignatureDoesNotMatch IncompleteSignature MissingAuthenticationToken"
    " MissingAuthenticationTokenException"
)
MALFORMED = _split_error_codes(
    "ValidationException ValidationError SerializationException UnknownOperationException"
    " InvalidParameterValue ResourceNotFound"
)
EXHAUSTED = _split_error_codes("ResourceLimitExceeded")
"""A quota. The model has it for what adds instances: none was added."""
NEEDS_UPDATE = {
    "BatchDeleteClusterNodes": datetime(2024, 6, 20, tzinfo=UTC),
    "BatchReplaceClusterNodes": datetime(2025, 11, 20, tzinfo=UTC),
}
"""Orders that a cluster from before their release takes only after one UpdateClusterSoftware.

That it is needed: the operations' own texts in botocore's model ("on an existing cluster"). The
days: HyperPod's release notes, by awslabs' page on deleting nodes; botocore's change log.
"""
TRANSIENT_CALL = THROTTLED | EXPIRED | {"ConflictException", "ResourceInUse"}
REFUSED_CALL = TRANSIENT_CALL | DENIED | UNSIGNED | MALFORMED | EXHAUSTED

NEVER_SENT = (EndpointConnectionError, ConnectTimeoutError)
"""No connection was made, so the service cannot have taken the order."""

UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What botocore and our own reading raise about an answer that is not the service's: a list where
an object belongs, a time in the year 10000. An order that is answered so may have been taken."""

NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)


def classify_batch_node_response(
    asked: Iterable[InstanceId], answer: Mapping[str, Any]
) -> dict[InstanceId, Outcome]:
    """Return the outcome of every id of BatchReplace-, -Reboot- or -DeleteClusterNodes that
    answered.

    An id that is in neither list, or in both, is Ambiguous.
    """
    successful = set(answer.get("Successful") or ())
    failed = {str(f.get("NodeId", "")): f for f in answer.get("Failed") or ()}
    outcomes = {}
    for instance in asked:
        entry = failed.get(instance)
        if instance in successful and entry is None:
            outcomes[instance] = Outcome.accepted()
        elif entry is not None and instance not in successful:
            outcomes[instance] = classify_failed_batch_entry(entry)
        else:
            where = "both lists" if entry is not None else "neither list"
            outcomes[instance] = Outcome.ambiguous("unanswered", f"the id is in {where}")
    return outcomes


def classify_failed_batch_entry(entry: Mapping[str, Any]) -> Outcome:
    """Return the outcome of one entry of a batch's Failed list."""
    # BatchDelete says Code where the others say ErrorCode.
    code = str(entry.get("ErrorCode") or entry.get("Code") or "")
    message = str(entry.get("Message", ""))
    if code in BUSY | REFUSED:
        return Outcome.rejected(code, message, transient=code in BUSY)
    return Outcome.ambiguous(code or "unanswered", message)


def classify_aws_call_error(error: Exception) -> Outcome:
    """Return the outcome of a whole call that raised, the same for each of its ids."""
    if isinstance(error, ClientError):
        code, message = read_aws_error_code(error), str(error.response["Error"].get("Message", ""))
        if code in REFUSED_CALL:
            return Outcome.rejected(code, message, transient=code in TRANSIENT_CALL)
        return Outcome.ambiguous(code, message)
    name = type(error).__name__
    if not isinstance(error, BotoCoreError):  # some of which are an OSError too
        return Outcome.ambiguous("unreadable", f"the answer cannot be read: {name}")
    if isinstance(error, (*NEVER_SENT, *NO_CREDENTIALS)):
        return Outcome.rejected(name, str(error), transient=True)
    if isinstance(error, ParamValidationError | NoRegionError):
        return Outcome.rejected(name, str(error))
    return Outcome.ambiguous(name, str(error))


def list_unsupported_operations(
    cluster: Mapping[str, Any], summaries: Iterable[Mapping[str, Any]]
) -> tuple[str, ...]:
    """The orders that this cluster refuses until its software was updated once."""
    # An instance that came after the update shows none: one node speaks for all.
    times = [one.get("LastSoftwareUpdateTime") for one in summaries]
    newest = max(filter(None, [cluster.get("CreationTime"), *times]), default=None)
    if newest is None:
        return ()
    return tuple(name for name, since in NEEDS_UPDATE.items() if newest < since)


def describe_software_update_fix(cluster: str) -> str:
    """Return what to do about an order that a cluster does not take yet."""
    return f"update its software once, when no jobs run: `hpctl cluster software-update {cluster}`"


def is_retryable_error(error: BaseException) -> bool:
    """Return whether a read that failed so may succeed a moment later."""
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return read_aws_error_code(error) in THROTTLED or status >= 500
    if isinstance(error, (ParamValidationError, NoRegionError, PartialCredentialsError)):
        return False
    return isinstance(error, BotoCoreError)


def is_aws_request_not_accepted(error: BaseException) -> bool:
    """Return whether an order that failed so certainly was not taken, and may be sent again."""
    if isinstance(error, ClientError):
        return read_aws_error_code(error) in THROTTLED
    return isinstance(error, NEVER_SENT)


def is_aws_not_found_error(error: BaseException) -> bool:
    """Return whether the answer is that what the call names is not there."""
    # A proxy's page may have any status.
    if not isinstance(error, ClientError) or _read_error_message(error).startswith("<"):
        return False
    code = read_aws_error_code(error)
    # EC2 says InvalidSubnetID.NotFound, IAM NoSuchEntity, S3 NoSuchBucket and 404 for a HEAD.
    return (
        code in ("ResourceNotFound", "404", "NotFound")
        or code.startswith("NoSuch")
        or code.endswith((".NotFound", "NotFoundException", "NotFound"))
    )


def is_permanent_aws_refusal(error: BaseException) -> bool:
    """Return whether the answer is no: asked again alike, it would be no again."""
    if isinstance(error, (*NO_CREDENTIALS, ParamValidationError, NoRegionError)):
        return True
    if not isinstance(error, ClientError):
        return False
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return read_aws_error_code(error) not in THROTTLED and status < 500


def format_aws_error(error: BaseException) -> str:
    """Return what an error says, without botocore's frame around the service's own words."""
    if not isinstance(error, ClientError):
        # A proxy's whole page may stand in one; what is wrong with parameters takes some lines.
        return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())[:300]
    message = _read_error_message(error).rstrip(".")
    if message.startswith("<"):
        message = "the answer is a web page, not the service's"
    return f"{message} ({read_aws_error_code(error)})" if message else read_aws_error_code(error)


def _read_error_message(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Message") or "")[:2000].strip()


def read_aws_error_code(error: BaseException) -> str:
    """Return the error code of an answer, `Unknown` where it has none; else the error's own
    name."""
    if not isinstance(error, ClientError):
        return type(error).__name__
    return str(error.response.get("Error", {}).get("Code") or "Unknown")[:200]


_RENEW = "the credentials are wrong or have expired: renew them, and check the clock"
_HINTS = {
    "no credentials": (
        "name a profile in --profile or AWS_PROFILE, or sign in (`aws sso login`)",
        "give the daemon AWS credentials: on HyperPod the execution role of the controller's "
        "instance group, elsewhere AWS_PROFILE or the usual variables",
    ),
    "never sent": (
        "no connection: check --region, --endpoint-url and the network",
        "no connection to the SageMaker endpoint: check the region, and that the subnet has "
        "a NAT gateway or an interface endpoint for sagemaker.api",
    ),
    "no answer": ("", "check network and endpoint; `hpctl doctor` tells more"),
    "denied": (
        "allow {action} to these credentials; `hpctl cluster iam policy operator` prints a policy",
        "allow the IAM action {action} on the cluster to the role that the "
        "daemon runs with; HyperPod's sample execution role has no sagemaker action at all, "
        "and `hpctl cluster iam policy head-node` prints the policy",
    ),
    "unsigned": (_RENEW, _RENEW),
    "throttled": (
        "other clients use up the API's rate: try again in a minute",
        "other clients use up the API's rate: raise the daemon's polling interval",
    ),
    "": ("", "check the AWS Health Dashboard if it lasts"),
}
"""What a user at a terminal does about a call that failed, and an operator of the daemon."""


def _classify_aws_error_for_hint(error: BaseException) -> str:
    if isinstance(error, NO_CREDENTIALS):
        return "no credentials"
    if not isinstance(error, ClientError):
        return "never sent" if isinstance(error, NEVER_SENT) else "no answer"
    kinds = {"denied": DENIED, "unsigned": UNSIGNED | EXPIRED, "throttled": THROTTLED}
    return next((kind for kind, codes in kinds.items() if read_aws_error_code(error) in codes), "")


def find_user_hint_for_aws_error(error: BaseException, action: str) -> str:
    """Return what a user at a terminal does about a failed call; "" where its words say it."""
    late = (
        read_aws_error_code(error) == "ValidationException"
        and action.partition(":")[2] in NEEDS_UPDATE
    )
    if late:
        return (
            f"where the cluster is older than this call: {describe_software_update_fix('CLUSTER')}"
        )
    return _HINTS[_classify_aws_error_for_hint(error)][0].format(action=action)


def find_operator_hint_for_aws_error(error: BaseException, cluster: str, operation: str) -> str:
    """Return what an operator does about a call that failed for good."""
    if read_aws_error_code(error) == "ResourceNotFound":
        return f"no cluster {cluster!r} here: check its name, the region and the account"
    return _HINTS[_classify_aws_error_for_hint(error)][1].format(action=f"sagemaker:{operation}")

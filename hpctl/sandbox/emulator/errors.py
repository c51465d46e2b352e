"""The errors that the emulated API answers with, in SageMaker's words.

Only the codes of botocore's SageMaker model and the common AWS ones appear: a client cannot meet
a word here that the service would not say.
"""

from __future__ import annotations


class ApiError(Exception):
    """A refusal of a whole call: code, HTTP status and message as they go over the wire."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def validation(message: str) -> ApiError:
    """The request is malformed, or asks for what the cluster's mode does not offer."""
    return ApiError("ValidationException", message)


def not_found(message: str) -> ApiError:
    """No such cluster, node or event."""
    return ApiError("ResourceNotFound", message)


def in_use(message: str) -> ApiError:
    """A cluster of that name exists."""
    return ApiError("ResourceInUse", message)


def conflict(message: str) -> ApiError:
    """The cluster is in a state that does not permit the call."""
    return ApiError("ConflictException", message)


def throttled() -> ApiError:
    """Too many calls; SageMaker sends this with status 400."""
    return ApiError("ThrottlingException", "Rate exceeded")


def access_denied(action: str) -> ApiError:
    """IAM says no; the message names the action, as AWS does."""
    return ApiError(
        "AccessDeniedException",
        f"User: arn:aws:sts::000000000000:assumed-role/sandbox/session is not authorized to "
        f"perform: {action} because no identity-based policy allows the {action} action",
    )


def internal(message: str = "We encountered an internal error. Please try again.") -> ApiError:
    """The service failed: nobody can say from this whether the call took effect."""
    return ApiError("InternalFailure", message, status=500)


def limit_exceeded(kind: str, quota: int, used: int, more: int) -> ApiError:
    """Service Quotas grants no more instances of this type."""
    return ApiError(
        "ResourceLimitExceeded",
        f"The account-level service limit '{kind} for cluster usage' is {quota} Instances, with "
        f"current utilization of {used} Instances and a request delta of {more} Instances. Please "
        "use AWS Service Quotas to request an increase for this quota. If AWS Service Quotas is "
        "not available, contact AWS support to request an increase for this quota.",
    )

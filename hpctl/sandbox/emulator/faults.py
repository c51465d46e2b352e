"""Faults of the API and of the service behind it, switched at run time.

A fault holds for a number of calls (or instances), or until it is cleared. The random draw of a
fault with a probability is seeded, so a run can be repeated.

The errors that the emulated API answers with, in SageMaker's codes and texts.

Only the codes of botocore's SageMaker model and the common AWS ones appear: a client cannot meet
a word here that the service would not say.
"""

import random
import threading
import time
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from hpctl.toolkit.compat import StrEnum
from hpctl.toolkit.errors import HpctlError


class FaultKind(StrEnum):
    """What goes wrong. The first five befall a call, the others what the service does."""

    THROTTLE = "throttle"
    """The call is refused with ThrottlingException."""
    INTERNAL_ERROR = "internal_error"
    """The call is answered with status 500; with `accepted` it took effect all the same."""
    ACCESS_DENIED = "access_denied"
    """The call is refused with AccessDeniedException."""
    LATENCY = "latency"
    """The call is acted on only `seconds` later."""
    DROP_REPLY = "drop_reply"
    """The call is accepted and the connection closed without a reply."""
    FAIL_NODES = "fail_nodes"
    """Nodes of a batch get `code` in Failed ("" leaves them out of both lists)."""
    NO_CAPACITY = "no_capacity"
    """A replacement stays Pending for `seconds`, then becomes Failure for lack of capacity; an
    instance that is launched (operation `Create`) finds none. Lasting shortage: `capacity`."""
    FAIL_HEALTH_CHECK = "fail_health_check"
    """A deep health check condemns a node; `code` is the remedy, `reboot` or `replace`."""
    STUCK = "stuck"
    """A replacement stays Pending until this kind of fault is cleared."""
    VANISH = "vanish"
    """ListClusterNodes leaves the named nodes out."""
    NO_DNS = "no_dns"
    """No PrivateDnsHostname, which the model has as optional, in ListClusterNodes and
    DescribeClusterNode."""
    UNPATCHED = "unpatched"
    """The cluster is older than an order, and refuses it until UpdateClusterSoftware ran once."""
    LIST_LAG = "list_lag"
    """Lists and counts show the cluster as it was `seconds` ago."""


class ServiceFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault. Empty `operations` or `nodes` means any; `calls` None means until cleared.

    `nodes` holds instance ids, node names or logical ids. `calls` counts calls; for NO_CAPACITY
    and STUCK it counts replacements, for FAIL_NODES the nodes failed. After `for_s` seconds the
    fault ends.
    """

    kind: FaultKind
    operations: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    calls: int | None = None
    probability: float = 1.0
    seconds: float = 0.0
    for_s: float | None = None
    code: str = "InternalServerError"
    accepted: bool = False


class _ActiveServiceFault(Struct):
    fault: ServiceFault
    left: int | None
    until: float | None


class FaultInjector:
    """The faults in force. Every method may be called from any thread."""

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._armed: list[_ActiveServiceFault] = []
        self._random = random.Random(seed)  # noqa: S311 -- a repeatable draw, not a secret
        self._released = threading.Event()

    def add(self, kind: FaultKind | str, **settings: Any) -> ServiceFault:
        """Put a fault in force; `settings` are the fields of Fault, numbers perhaps as text."""
        try:
            fault = msgspec.convert({"kind": str(kind), **settings}, ServiceFault, strict=False)
        except msgspec.ValidationError as error:
            kinds = ", ".join(FaultKind)
            raise HpctlError(
                f"not a valid fault of the emulated HyperPod API: {error}",
                f"Choose one of: {kinds}",
            ) from error
        with self._lock:
            until = None if fault.for_s is None else time.monotonic() + fault.for_s
            self._armed.append(_ActiveServiceFault(fault, fault.calls, until))
        return fault

    def clear(self, kind: FaultKind | str | None = None) -> None:
        """End the faults of a kind, or all. Replacements that were stuck go on."""
        wanted = None if kind is None else FaultKind(kind)
        with self._lock:
            self._armed = [a for a in self._armed if wanted not in (None, a.fault.kind)]
            if wanted in (None, FaultKind.STUCK):
                self._released.set()
                self._released = threading.Event()

    def active(self) -> tuple[dict[str, Any], ...]:
        """Return the faults in force, with the calls each has left."""
        with self._lock:
            return tuple({**msgspec.to_builtins(a.fault), "left": a.left} for a in self._armed)

    def take(
        self, kind: FaultKind, *, operation: str = "", names: Iterable[str] = ()
    ) -> ServiceFault | None:
        """Return the fault of this kind that befalls this call or node, spending one of its
        calls."""
        with self._lock:
            armed = self._find_fault(kind, operation, frozenset(names))
            if armed is None:
                return None
            if armed.left is not None:
                armed.left -= 1
                self._armed = [a for a in self._armed if a.left is None or a.left > 0]
            return armed.fault

    def holds(
        self, kind: FaultKind, *, operation: str = "", names: Iterable[str] = ()
    ) -> ServiceFault | None:
        """Return the fault of this kind in force here, spending nothing."""
        with self._lock:
            armed = self._find_fault(kind, operation, frozenset(names))
            return armed.fault if armed else None

    def get_stuck_replacement_release_event(self) -> threading.Event:
        """Set when the replacements that are stuck now may go on."""
        with self._lock:
            return self._released

    def _find_fault(
        self, kind: FaultKind, operation: str, names: frozenset[str]
    ) -> _ActiveServiceFault | None:
        for armed in self._armed:
            fault = armed.fault
            if fault.kind is not kind or (armed.until and time.monotonic() > armed.until):
                continue
            if fault.operations and operation not in fault.operations:
                continue
            if fault.nodes and not names & set(fault.nodes):
                continue
            if fault.probability < 1.0 and self._random.random() >= fault.probability:
                continue
            return armed
        return None


class ApiError(Exception):
    """A refusal of a whole call: code, HTTP status and message as they go over the wire."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status


def make_validation_error(message: str) -> ApiError:
    """The request is malformed, or asks for what the cluster's mode does not offer."""
    return ApiError("ValidationException", message)


def make_not_found_error(message: str) -> ApiError:
    """No such cluster, node or event."""
    return ApiError("ResourceNotFound", message)


def make_cluster_name_in_use_error(message: str) -> ApiError:
    """Return a cluster of that name exists."""
    return ApiError("ResourceInUse", message)


def make_conflict_error(message: str) -> ApiError:
    """The cluster is in a state that does not permit the call."""
    return ApiError("ConflictException", message)


def make_throttling_error() -> ApiError:
    """Too many calls; SageMaker sends this with status 400."""
    return ApiError("ThrottlingException", "Rate exceeded")


def make_access_denied_error(action: str) -> ApiError:
    """IAM says no; the message names the action, as AWS does."""
    return ApiError(
        "AccessDeniedException",
        f"User: arn:aws:sts::000000000000:assumed-role/sandbox/session is not authorized to "
        f"perform: {action} because no identity-based policy allows the {action} action",
    )


def make_internal_error(
    message: str = "We encountered an internal error. Please try again.",
) -> ApiError:
    """Return the error of a failed service: whether the call took effect is unknown."""
    return ApiError("InternalFailure", message, status=500)


def make_resource_limit_exceeded_error(kind: str, quota: int, used: int, more: int) -> ApiError:
    """Return the error of Service Quotas, which grants no further instances of this type."""
    return ApiError(
        "ResourceLimitExceeded",
        f"The account-level service limit '{kind} for cluster usage' is {quota} Instances, with "
        f"current utilization of {used} Instances and a request delta of {more} Instances. Please "
        "use AWS Service Quotas to request an increase for this quota. If AWS Service Quotas is "
        "not available, contact AWS support to request an increase for this quota.",
    )

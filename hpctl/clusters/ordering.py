"""Orders to the cluster API, observed before they are repeated.

Every order here is one that cannot take effect twice: a cluster's name is its own, UpdateCluster
states counts and not increments, BatchDelete names instances, BatchAdd has a client token. So an
order in doubt is looked for, and sent once more only where nothing of it is to be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpctl.errors import Absent, HpctlError, InDoubt, Refused, Unavailable
from hpctl.ports import Aws

_MENDS = {
    "ResourceLimitExceeded": (
        "a quota is used up: Service Quotas, SageMaker, `<type> for cluster usage`, `Maximum "
        "number of instances per cluster` and `Total number of instances across clusters`; "
        "`hpctl cluster validate` compares them with the spec"
    ),
    "ConflictException": "another change is under way: `hpctl cluster wait {cluster}`, then again",
    "ResourceInUse": "`hpctl cluster describe {cluster}` shows the cluster that has this name",
    "ResourceNotFound": "`hpctl cluster list` names the clusters of this region",
    "ValidationException": "`hpctl cluster validate` finds most of what the service refuses",
}
_OUTDATED = (
    "its AMI is from before January 2026: `hpctl cluster software-update --cluster {cluster}`, "
    "then again"
)


@dataclass(frozen=True, slots=True)
class Patience:
    """How an order in doubt is looked for: `looks` times, `every_s` apart."""

    sleep: Callable[[float], None]
    looks: int = 6
    every_s: float = 5.0


def ordered(
    send: Callable[[], Mapping[str, Any]], taken: Callable[[], bool], patience: Patience
) -> Mapping[str, Any]:
    """The answer to an order, {} where it got none but was seen to be taken.

    Raises Refused, Absent, and InDoubt where a second sending got no answer either.
    """
    try:
        return send()
    except InDoubt:
        if seen(taken, patience):
            return {}
    try:
        return send()
    except InDoubt as error:
        if seen(taken, patience):
            return {}
        raise InDoubt(
            f"{error}; it was sent twice, and nothing of it is to be seen",
            "look with `hpctl cluster describe`, and run the same command again: it goes on from "
            "what is there",
        ) from error


def seen(taken: Callable[[], bool], patience: Patience) -> bool:
    """Whether an effect shows within the patience. A look that fails has seen nothing."""
    for left in range(patience.looks, 0, -1):
        try:
            if taken():
                return True
        except Unavailable:
            pass
        if left > 1:
            patience.sleep(patience.every_s)
    return False


def described(aws: Aws, cluster: str) -> Mapping[str, Any] | None:
    """DescribeCluster's answer; None where there is no such cluster."""
    try:
        return aws.service("sagemaker").read("describe_cluster", ClusterName=cluster)
    except Absent:
        return None


def there(aws: Aws, cluster: str) -> Mapping[str, Any]:
    """DescribeCluster's answer. Raises Absent, with how to find what there is."""
    try:
        return aws.service("sagemaker").read("describe_cluster", ClusterName=cluster)
    except Absent as error:
        raise mended(error, cluster) from error


def mended(error: Refused, cluster: str) -> Refused:
    """The same refusal, with what to do about its code."""
    outdated = "Update required to use SlurmConfig" in str(error) and _OUTDATED
    hint = error.hint or (outdated or _MENDS.get(error.code, "")).format(cluster=cluster)
    return type(error)(str(error), hint, code=error.code)


def busy(cluster: str, status: str) -> HpctlError:
    """The error for a cluster that is in the middle of something."""
    return HpctlError(
        f"cluster {cluster} is {status}: the service takes no change now",
        f"`hpctl cluster wait {cluster}` says when it is done",
    )

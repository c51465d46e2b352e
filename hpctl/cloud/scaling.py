"""What makes a group larger, and takes instances out of it: each order sent once.

BatchAddClusterNodes needs NodeProvisioningMode=Continuous and takes a client token, so that a
repeat is no second order. Elsewhere a group grows by UpdateCluster to an absolute size, which is
no second order either; it restates the group as it is, and is not sent where somebody has made
the group as large by now. Instances leave by BatchDeleteClusterNodes alone: UpdateCluster would
choose them at random.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hpctl.core.model import InstanceId, Outcome
from hpctl.core.update_cluster import IMAGES, group_of

BUSY = frozenset({"InvalidNodeStatus", "NodeIdInUse", "InvalidInstanceGroupStatus"})
"""Somebody is acting on it, or it is between states. The same call may succeed later."""

REFUSED = frozenset(
    {
        "InstanceGroupNotFound",
        "IncompatibleAvailabilityZones",
        "IncompatibleInstanceTypes",
        "NodeIdNotFound",
    }
)
"""Certainly not done, and not to be asked again. With BUSY, all that the model enumerates; what
else may come (InternalServerError) says nothing of whether it was done."""


def _failed(code: str, message: str) -> Outcome:
    if code in BUSY or code in REFUSED:
        return Outcome.rejected(code, message, transient=code in BUSY)
    return Outcome.ambiguous(code or "unanswered", message)


def of_add(group: str, count: int, answer: Mapping[str, Any]) -> Outcome:
    """The outcome of a BatchAddClusterNodes call that answered: Accepted for some or all."""
    made = [n for n in answer.get("Successful") or () if n.get("InstanceGroupName") == group]
    if made:
        ids = ",".join(str(n["NodeLogicalId"]) for n in made)
        return Outcome.accepted(f"{len(made)} of {count}: {ids}")
    for failed in answer.get("Failed") or ():
        return _failed(str(failed.get("ErrorCode", "")), str(failed.get("Message", "")))
    return Outcome.ambiguous("unanswered", "the group stands in neither list")


def of_delete(asked: Iterable[InstanceId], answer: Mapping[str, Any]) -> dict[InstanceId, Outcome]:
    """The outcome of every id of a BatchDeleteClusterNodes call that answered."""
    successful = set(answer.get("Successful") or ())
    failed = {str(f.get("NodeId", "")): f for f in answer.get("Failed") or ()}
    outcomes = {}
    for instance in asked:
        entry = failed.get(instance)
        if instance in successful and entry is None:
            outcomes[instance] = Outcome.accepted()
        elif entry is not None and instance not in successful:
            outcomes[instance] = _failed(str(entry.get("Code", "")), str(entry.get("Message", "")))
        else:
            where = "both lists" if entry is not None else "neither list"
            outcomes[instance] = Outcome.ambiguous("unanswered", f"the id stands in {where}")
    return outcomes


def add_request(cluster: str, group: str, count: int, token: str) -> dict[str, Any]:
    """BatchAddClusterNodes."""
    wanted = {"InstanceGroupName": group, "IncrementTargetCountBy": count}
    return {"ClusterName": cluster, "ClientToken": token, "NodesToAdd": [wanted]}


def update_request(
    cluster: str, group: str, size: int, told: Mapping[str, Any]
) -> dict[str, Any] | Outcome:
    """UpdateCluster to that size; or what there is to say instead.

    `told` is DescribeCluster's answer of this moment. A group that somebody has made as large, or
    larger, is left alone: a smaller size would have the service take nodes at random.
    """
    for known in told.get("InstanceGroups", ()):
        if known["InstanceGroupName"] != group:
            continue
        same = {key: value for key, value in group_of(known).items() if key not in IMAGES}
        if same["InstanceCount"] >= size:
            return Outcome.accepted(f"{group} is told to have {same['InstanceCount']} already")
        return {"ClusterName": cluster, "InstanceGroups": [{**same, "InstanceCount": size}]}
    return Outcome.rejected("InstanceGroupNotFound", f"no group {group}")

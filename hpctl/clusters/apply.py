"""Create, update, grow and delete a cluster. Nodes are removed by `node_orders` alone.

Nothing here waits for the service's work: that is `watch`. Every function looks first, so that a
command that was killed is simply run again.

Orders to the cluster API, observed before they are repeated.

Every order here is one that cannot take effect twice: a cluster's name is its own, UpdateCluster
states counts and not increments, BatchDelete names instances, BatchAdd has a client token. So an
order in doubt is looked for, and sent once more only where nothing of it is to be seen.
"""

import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct, field

from hpctl.clusters.diff import (
    ClusterDiff,
    diff_request_with_cluster,
    fill_unset_request_values,
    is_controller_group,
    rebuild_create_request,
)
from hpctl.clusters.fleet_reading import read_node_rows
from hpctl.clusters.node_lookup import find_instance_group
from hpctl.clusters.order_call import choose_node_id_for_api_call
from hpctl.sagemaker.update_cluster import IMAGES, make_group_update
from hpctl.toolkit.errors import (
    HpctlError,
    OrderOutcomeUnknown,
    ResourceNotFound,
    ServiceCallRefused,
    ServiceUnavailable,
)
from hpctl.vocabulary.ports import AwsClientFactory

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


class PollSchedule(Struct, frozen=True):
    """How an order in doubt is looked for: `looks` times, `every_s` apart."""

    sleep: Callable[[float], None]
    looks: int = 6
    every_s: float = 5.0


def send_mutating_call_with_retry(
    send: Callable[[], Mapping[str, Any]], taken: Callable[[], bool], patience: PollSchedule
) -> Mapping[str, Any]:
    """Return the answer to an order, {} where it got none but was seen to be taken.

    Raises Refused, ResourceNotFound, and OrderOutcomeUnknown where a second sending got no answer
    either.
    """
    try:
        return send()
    except OrderOutcomeUnknown:
        if poll_until_call_took_effect(taken, patience):
            return {}
    try:
        return send()
    except OrderOutcomeUnknown as error:
        if poll_until_call_took_effect(taken, patience):
            return {}
        raise OrderOutcomeUnknown(
            f"AWS did not confirm the request: {error}; hpctl sent it twice, and the cluster "
            "shows no effect of it",
            "check the cluster with `hpctl cluster describe`, and run the same command again: it "
            "continues from "
            "the cluster's state",
        ) from error


def poll_until_call_took_effect(taken: Callable[[], bool], patience: PollSchedule) -> bool:
    """Return whether an effect shows within the patience. A look that fails has seen nothing."""
    for left in range(patience.looks, 0, -1):
        try:
            if taken():
                return True
        except ServiceUnavailable:
            pass
        if left > 1:
            patience.sleep(patience.every_s)
    return False


def describe_cluster(aws: AwsClientFactory, cluster: str) -> Mapping[str, Any] | None:
    """DescribeCluster's answer; None where there is no such cluster."""
    try:
        return aws.service("sagemaker").read("describe_cluster", ClusterName=cluster)
    except ResourceNotFound:
        return None


def describe_existing_cluster(aws: AwsClientFactory, cluster: str) -> Mapping[str, Any]:
    """DescribeCluster's answer. Raises ResourceNotFound, with how to find what there is."""
    try:
        return aws.service("sagemaker").read("describe_cluster", ClusterName=cluster)
    except ResourceNotFound as error:
        raise add_hint_to_refused_call(error, cluster) from error


def add_hint_to_refused_call(error: ServiceCallRefused, cluster: str) -> ServiceCallRefused:
    """Return the same refusal, with what to do about its code."""
    outdated = "Update required to use SlurmConfig" in str(error) and _OUTDATED
    hint = error.hint or (outdated or _MENDS.get(error.code, "")).format(cluster=cluster)
    return type(error)(str(error), hint, code=error.code)


def make_busy_cluster_error(cluster: str, status: str) -> HpctlError:
    """Return the error for a cluster that is in the middle of something."""
    return HpctlError(
        f"cannot change cluster {cluster}: its status is {status}, in which SageMaker accepts no "
        "changes",
        f"`hpctl cluster wait {cluster}` waits until it is InService; then run the command again",
    )


MOST_ADDED = 50
"""Nodes in one BatchAddClusterNodes."""

_AGAIN = "run the same command again; if hpctl's daemon scales the group, run `hpctl pause` first"

_UPDATABLE = (
    "NodeRecovery", "NodeProvisioningMode", "ClusterRole", "TieredStorageConfig", "AutoScaling",
    "Orchestrator",
)  # fmt: skip


class CreateResult(Struct, frozen=True):
    """`adopted`: the cluster was there already, made from the same spec."""

    arn: str
    adopted: bool


def create_cluster(
    aws: AwsClientFactory, request: Mapping[str, Any], patience: PollSchedule
) -> CreateResult:
    """Create a cluster, or adopt the one that an earlier, interrupted create has made.

    Raises HpctlError where a cluster of this name is there and differs, or has failed.
    """
    name = str(request["ClusterName"])
    found = describe_cluster(aws, name)
    if found is not None:
        return adopt_existing_cluster(request, found)
    sagemaker = aws.service("sagemaker")
    try:
        answer = send_mutating_call_with_retry(
            lambda: sagemaker.order("create_cluster", **request),
            lambda: describe_cluster(aws, name) is not None,
            patience,
        )
    except ServiceCallRefused as error:
        if error.code == "ResourceInUse" and (found := describe_cluster(aws, name)) is not None:
            return adopt_existing_cluster(request, found)
        raise add_hint_to_refused_call(error, name) from error
    arn = answer.get("ClusterArn") or (describe_cluster(aws, name) or {}).get("ClusterArn", "")
    return CreateResult(str(arn), adopted=False)


def adopt_existing_cluster(request: Mapping[str, Any], found: Mapping[str, Any]) -> CreateResult:
    """Take a cluster that is there for the one requested. Raises HpctlError where it is not."""
    name, status = str(request["ClusterName"]), str(found["ClusterStatus"])
    if status == "Deleting":
        raise HpctlError(
            f"cannot create cluster {name}: a cluster with this name is still being deleted",
            f"`hpctl cluster wait {name} --deleted` waits for the deletion; then create the "
            "cluster",
        )
    if status == "Failed":
        raise HpctlError(
            f"cannot create cluster {name}: a cluster with this name exists and its creation "
            f"failed: {found.get('FailureMessage', '')}",
            f"`hpctl cluster wait {name}` shows the nodes that failed and why; fix the cause, run "
            f"`hpctl cluster delete {name}`, and create the cluster again",
        )
    differences = diff_request_with_cluster(request, found).changes
    if differences:
        places = ", ".join(c.place for c in differences[:5])
        raise HpctlError(
            f"cannot create cluster {name}: it exists, and differs from the cluster file in "
            f"{places}",
            "`hpctl cluster update --dry-run` shows the differences, `hpctl cluster update` "
            "applies them",
        )
    return CreateResult(str(found["ClusterArn"]), adopted=True)


class ClusterUpdatePlan(Struct, frozen=True):
    """The orders that make a cluster as its spec says, in this sequence.

    `update` is UpdateCluster's request, `shrink` how many instances go from a group, `leaving`
    the groups that go whole. `before` are the counts that were seen; of what is touched, `targets`
    are those after `update` and `final` those after everything.
    """

    cluster: str
    update: Mapping[str, Any] = field(default_factory=dict)
    tags_set: Mapping[str, str] = field(default_factory=dict)
    tags_gone: tuple[str, ...] = ()
    shrink: Mapping[str, int] = field(default_factory=dict)
    leaving: tuple[str, ...] = ()
    before: Mapping[str, int] = field(default_factory=dict)
    targets: Mapping[str, int] = field(default_factory=dict)
    final: Mapping[str, int] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Return whether there is nothing to do."""
        tags = self.tags_set or self.tags_gone
        return not (self.update or tags or self.shrink or self.leaving)


def plan_cluster_update(
    requested: Mapping[str, Any], found: Mapping[str, Any], changes: ClusterDiff
) -> ClusterUpdatePlan:
    """Return what to order for a diff. Raises HpctlError where a part of it is impossible.

    Growing comes before shrinking: where there is no capacity, nothing is lost yet.
    """
    if changes.impossible_changes:
        raise _make_impossible_change_error(changes)
    observed = rebuild_create_request(found)
    have = {g["InstanceGroupName"]: g for g in observed["InstanceGroups"]}
    want = {g["InstanceGroupName"]: g for g in requested.get("InstanceGroups", ())}
    touched = {c.place.partition(".")[0] for c in changes.changes}
    groups, shrink = [], {}
    for name, group in want.items():
        there_ = have.get(name)
        if name not in touched:
            continue
        new = build_group_update_request(group, there_)
        if there_ is not None and (less := int(there_["InstanceCount"]) - new["InstanceCount"]) > 0:
            shrink[name] = less
            new["InstanceCount"] = there_["InstanceCount"]
            places = {
                c.place for c in changes.changes if _is_request_field_path_within(c.place, name)
            }
            if places == {f"{name}.InstanceCount"}:
                continue
        groups.append(new)
    update: dict[str, Any] = {
        k: requested[k] for k in _UPDATABLE if k in touched and k in requested
    }
    if groups:
        update["InstanceGroups"] = groups
    if changes.migrates:  # the default has two forms, and Merge keeps jobs and edits
        update.setdefault("Orchestrator", {"Slurm": {"SlurmConfigStrategy": "Merge"}})
    final = {name: int(g["InstanceCount"]) for name, g in want.items() if name in touched}
    leaving = tuple(name for name in have if name not in want)
    tags = {
        c.place.removeprefix("Tags."): c.new
        for c in changes.changes
        if _is_request_field_path_within(c.place, "Tags")
    }
    return ClusterUpdatePlan(
        cluster=str(requested["ClusterName"]),
        update=update,
        tags_set={k: v for k, v in tags.items() if v is not None},
        tags_gone=tuple(k for k, v in tags.items() if v is None),
        shrink=shrink,
        leaving=leaving,
        before={name: int(group["InstanceCount"]) for name, group in have.items()},
        targets={n: count + shrink.get(n, 0) for n, count in final.items()},
        final=final,
    )


def count_requested_instances(request: Mapping[str, Any]) -> dict[str, int]:
    """Return how many instances a request asks for, by group."""
    return {g["InstanceGroupName"]: int(g["InstanceCount"]) for g in request["InstanceGroups"]}


def build_group_update_request(
    group: Mapping[str, Any], there_: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return a group for UpdateCluster: what the spec omits stays as it is, except the image,
    which the service chooses where the spec names none.
    """
    full: dict[str, Any] = fill_unset_request_values(group, there_ or {})
    return {k: v for k, v in full.items() if k not in IMAGES or k in group}


def apply_cluster_update(
    aws: AwsClientFactory, wanted: ClusterUpdatePlan, patience: PollSchedule
) -> None:
    """Order UpdateCluster, as far as it grows and changes, and the tags.

    Raises HpctlError: before anything is ordered where the counts are no longer those of the plan:
    a restated count that is too low by now would end instances at random.
    """
    sagemaker = aws.service("sagemaker")
    found = describe_existing_cluster(aws, wanted.cluster)
    moved = _describe_changed_targets(wanted, found)
    if moved:
        raise HpctlError(
            f"cluster {wanted.cluster} was changed by another user or program while this command "
            f"ran: {moved}; nothing was "
            "done",
            _AGAIN,
        )
    if wanted.update:
        _send_update_cluster_request(aws, wanted.cluster, dict(wanted.update), patience)
    if wanted.tags_set:
        tags = [{"Key": k, "Value": v} for k, v in wanted.tags_set.items()]
        sagemaker.order("add_tags", ResourceArn=found["ClusterArn"], Tags=tags)
    if wanted.tags_gone:
        gone = list(wanted.tags_gone)
        sagemaker.order("delete_tags", ResourceArn=found["ClusterArn"], TagKeys=gone)


def _describe_changed_targets(wanted: ClusterUpdatePlan, found: Mapping[str, Any]) -> str:
    """Return which groups have another target by now than when they were looked at."""
    now = {g["InstanceGroupName"]: g.get("TargetCount", 0) for g in found["InstanceGroups"]}
    return "; ".join(
        f"{name} had a target of {wanted.before.get(name, 'none')}, and has {now.get(name, 'none')}"
        for group in wanted.update.get("InstanceGroups", ())
        if now.get(name := group["InstanceGroupName"]) != wanted.before.get(name)
    )


def delete_instance_groups(
    aws: AwsClientFactory,
    cluster: str,
    groups: tuple[str, ...],
    patience: PollSchedule,
    emptied: Collection[str],
) -> None:
    """Order the deletion of whole groups. `emptied` are the nodes that were ordered away before.

    Raises HpctlError where others have come meanwhile, on which jobs may run.
    """
    found = describe_existing_cluster(aws, cluster)
    for row in read_node_rows(aws, cluster, details=False):
        if (
            row.group in groups
            and row.status != "ShuttingDown"
            and choose_node_id_for_api_call(row) not in emptied
        ):
            raise HpctlError(
                f"group {row.group} was not deleted: another user or program added node "
                f"{row.display_name} to it while this command ran",
                _AGAIN,
            )
    going = [
        g["InstanceGroupName"]
        for g in found["InstanceGroups"]
        if g["InstanceGroupName"] in groups and g.get("Status") != "Deleting"
    ]
    if going:
        _send_update_cluster_request(aws, cluster, {"InstanceGroupsToDelete": going}, patience)


def grow_instance_group(
    aws: AwsClientFactory, cluster: str, group: str, count: int, patience: PollSchedule
) -> int:
    """Order instances until a group has a target of `count`; how many that are.

    Raises HpctlError, also where the service refuses a part: then with what it did take.
    """
    # Before the count is read: what another command adds in between shows there, or here.
    newest = _find_newest_group_event_id(aws, cluster, group)
    found = describe_existing_cluster(aws, cluster)
    more = count - int(find_instance_group(found, group).get("TargetCount", 0))
    added = 0
    for operation, request in plan_group_growth_api_calls(found, group, count, newest):
        if operation == "UpdateCluster":
            _send_update_cluster_request(aws, cluster, request, patience)
        else:
            _add_cluster_nodes(aws, cluster, request, (added, more), patience)
            added += request["NodesToAdd"][0]["IncrementTargetCountBy"]
    return max(more, 0)


def _find_newest_group_event_id(aws: AwsClientFactory, cluster: str, group: str) -> str:
    """Return the id of the last thing that the service did to a group; something random if
    unknown."""
    try:
        answer = aws.service("sagemaker").read(
            "list_cluster_events", ClusterName=cluster, InstanceGroupName=group, MaxResults=1
        )
    except (ServiceCallRefused, ServiceUnavailable):
        return uuid.uuid4().hex
    return "".join(str(event["EventId"]) for event in answer.get("Events", ()))


def plan_group_growth_api_calls(
    found: Mapping[str, Any], group: str, count: int, newest: str = ""
) -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return the calls that give a group a target of `count`: none where it has so many.

    With Continuous provisioning BatchAddClusterNodes, in calls of 50 with a token each: repeated,
    it adds nothing twice. The token is made of what was seen, so that two commands that have seen
    the same count order the same instances; `newest` tells a count from its return. Raises
    HpctlError for a second controller where the API sets Slurm up.
    """
    here = find_instance_group(found, group)
    more = count - int(here.get("TargetCount", 0))
    if more <= 0:
        return ()
    if is_controller_group(here):
        # No way back from this: no controller can be removed.
        raise HpctlError(
            f"cannot add instances to group {group}: it is the controller (head node), and with "
            "the API's Slurm configuration a cluster has only one",
            "for several head nodes, create the cluster with slurm_config: provisioning_parameters",
        )
    if found.get("NodeProvisioningMode") != "Continuous":
        stays = {k: v for k, v in make_group_update(here).items() if k not in IMAGES}
        return (("UpdateCluster", {"InstanceGroups": [stays | {"InstanceCount": count}]}),)
    sizes = [min(MOST_ADDED, more - at) for at in range(0, more, MOST_ADDED)]
    seen = f"{found['ClusterArn']} {group} {here.get('TargetCount', 0)} {count} {newest}"
    return tuple(
        (
            "BatchAddClusterNodes",
            {
                "ClientToken": uuid.uuid5(uuid.NAMESPACE_OID, f"{seen} {at}").hex,
                "NodesToAdd": [{"InstanceGroupName": group, "IncrementTargetCountBy": size}],
            },
        )
        for at, size in enumerate(sizes)
    )


def delete_cluster(aws: AwsClientFactory, cluster: str, patience: PollSchedule) -> bool:
    """Order a cluster's deletion; False where that is under way or done already."""
    found = describe_cluster(aws, cluster)
    if found is None or found["ClusterStatus"] == "Deleting":
        return False
    sagemaker = aws.service("sagemaker")

    def is_cluster_deletion_started() -> bool:
        now = describe_cluster(aws, cluster)
        return now is None or now["ClusterStatus"] == "Deleting"

    try:
        send_mutating_call_with_retry(
            lambda: sagemaker.order("delete_cluster", ClusterName=cluster),
            is_cluster_deletion_started,
            patience,
        )
    except ResourceNotFound:
        return True
    except ServiceCallRefused as error:
        raise add_hint_to_refused_call(error, cluster) from error
    return True


def _send_update_cluster_request(
    aws: AwsClientFactory, cluster: str, request: dict[str, Any], patience: PollSchedule
) -> None:
    sagemaker = aws.service("sagemaker")

    def is_cluster_updated() -> bool:
        now = describe_existing_cluster(aws, cluster)
        return now["ClusterStatus"] in ("Updating", "RollingBack") or _is_update_request_applied(
            request, now
        )

    try:
        send_mutating_call_with_retry(
            lambda: sagemaker.order("update_cluster", ClusterName=cluster, **request),
            is_cluster_updated,
            patience,
        )
    except ServiceCallRefused as error:
        if error.code == "ConflictException":
            status = str(describe_existing_cluster(aws, cluster)["ClusterStatus"])
            raise make_busy_cluster_error(cluster, status) from error
        raise add_hint_to_refused_call(error, cluster) from error


def _is_update_request_applied(request: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether a cluster is as UpdateCluster's request says, in all that it says."""
    observed = rebuild_create_request(now)
    groups = {g["InstanceGroupName"]: g for g in observed["InstanceGroups"]}
    groups |= {g["InstanceGroupName"]: g for g in request.get("InstanceGroups", ())}
    answer = {k: v for k, v in request.items() if k in _UPDATABLE}
    asked = {**observed, **answer, "InstanceGroups": list(groups.values())}
    stay = {g["InstanceGroupName"] for g in now["InstanceGroups"] if g.get("Status") != "Deleting"}
    return not diff_request_with_cluster(asked, now).changes and not stay & {
        *request.get("InstanceGroupsToDelete", ())
    }


def _add_cluster_nodes(
    aws: AwsClientFactory,
    cluster: str,
    request: Mapping[str, Any],
    so_far: tuple[int, int],
    patience: PollSchedule,
) -> None:
    """One BatchAddClusterNodes. `so_far`: how many were added, of how many that shall be."""
    added, more = so_far
    wanted = request["NodesToAdd"][0]
    try:
        answer = _send_add_nodes_with_token(
            aws.service("sagemaker").order, {"ClusterName": cluster, **request}, patience
        )
    except ServiceCallRefused as error:
        result = add_hint_to_refused_call(error, cluster)
        raise type(result)(
            f"{result}; {added} of {more} were added", result.hint, code=result.code
        ) from error
    failed = answer.get("Failed")
    if failed:
        first, lost = failed[0], sum(int(f["FailedCount"]) for f in failed)
        took = added + wanted["IncrementTargetCountBy"] - lost
        raise HpctlError(
            f"group {wanted['InstanceGroupName']}: SageMaker refused {lost} node(s): "
            f"{first.get('Message', '')} ({first['ErrorCode']}); {took} of {more} were added",
            f"`hpctl cluster describe {cluster}` shows the group's instance types, zones and "
            "status",
        )


def _send_add_nodes_with_token(
    order: Any, request: Mapping[str, Any], patience: PollSchedule
) -> Mapping[str, Any]:
    """Send with the same token until it is answered: the one order that needs no look."""
    for left in range(patience.looks, 0, -1):
        try:
            answer: Mapping[str, Any] = order("batch_add_cluster_nodes", **request)
            return answer
        except OrderOutcomeUnknown:
            if left == 1:
                raise
            patience.sleep(patience.every_s)
    raise AssertionError("patience has at least one look")


def _make_impossible_change_error(changes: ClusterDiff) -> HpctlError:
    lines = [f"{c.place}: {c.old} -> {c.new}: {c.consequence}" for c in changes.impossible_changes]
    return HpctlError(
        "\n  ".join(
            [f"{len(lines)} thing(s) cannot be changed in place; nothing was done", *lines]
        ),
        "put these back in the spec, or do as each line says",
    )


def _is_request_field_path_within(place: str, name: str) -> bool:
    return place == name or place.startswith(f"{name}.")

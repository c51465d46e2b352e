"""The requests for another image and for deep health checks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hpctl.clusters.fleet import NodeRow
from hpctl.clusters.maintenance import CHECKING, DOUBT_LOOKS, DOUBT_S, IDS, UPDATING
from hpctl.toolkit.errors import (
    HpctlError,
    OrderOutcomeUnknown,
    ServiceCallRefused,
    ServiceUnavailable,
)
from hpctl.vocabulary.ports import AwsClientFactory, AwsServiceClient

NO_BATCHES = (
    "rolling batches are for clusters with EKS (AWS's notes on HyperPod): with Slurm all nodes may "
    "be updated at once"
)


def parse_batch_size(text: str) -> dict[str, Any]:
    """`2` or `10%` as a RollingUpdatePolicy has it. Raises ValueError."""
    number = int(text.removesuffix("%"))
    if number < 1 or (text.endswith("%") and number > 100):
        raise ValueError("at least 1, and at most 100%")
    kind = "CAPACITY_PERCENTAGE" if text.endswith("%") else "INSTANCE_COUNT"
    return {"Type": kind, "Value": number}


class SoftwareUpdateOptions(Struct, frozen=True):
    """What an operator orders of UpdateClusterSoftware; what is empty is left to the service."""

    groups: Sequence[str] = ()
    release: str = ""
    image: str = ""
    batch: str = ""
    rollback_batch: str = ""
    interval_s: float | None = None
    """Seconds between two batches."""
    alarms: Sequence[str] = ()


def make_software_update_request(cluster: str, update: SoftwareUpdateOptions) -> dict[str, Any]:
    """Make UpdateClusterSoftware's request. Raises ValueError."""
    batch, rollback = update.batch, update.rollback_batch
    rolling = {"MaximumBatchSize": parse_batch_size(batch)} if batch else {}
    rolling |= {"RollbackMaximumBatchSize": parse_batch_size(rollback)} if rollback else {}
    if rollback and not batch:
        raise ValueError("a rollback batch needs a batch")
    deployment: dict[str, Any] = {"RollingUpdatePolicy": rolling} if rolling else {}
    if update.interval_s is not None:
        deployment["WaitIntervalInSeconds"] = round(update.interval_s)
    if update.alarms:
        deployment["AutoRollbackConfiguration"] = [{"AlarmName": name} for name in update.alarms]
    release = {"ImageReleaseVersion": update.release} if update.release else {}
    wanted = [{"InstanceGroupName": group, **release} for group in update.groups]
    return {
        "ClusterName": cluster,
        **({"InstanceGroups": wanted} if wanted else {}),
        **({"ImageId": update.image} if update.image else {}),
        **({"DeploymentConfig": deployment} if deployment else {}),
    }


def make_health_check_request(
    cluster: str, rows: Sequence[NodeRow], whole: Sequence[str], checks: Sequence[str]
) -> dict[str, Any]:
    """StartClusterHealthCheck's request for these nodes and all nodes of the groups in `whole`.

    Raises HpctlError for a node that has no instance to check.
    """
    empty = [row.display_name for row in rows if not row.instance_id]
    if empty:
        raise HpctlError(
            f"cannot check nodes that have no instance yet: {', '.join(empty)}",
            "wait for their instances: `hpctl cluster wait`",
        )
    configurations: list[dict[str, Any]] = [
        {"InstanceGroupName": group, "DeepHealthChecks": list(checks)} for group in whole
    ]
    for group in dict.fromkeys(row.group for row in rows if row.group not in whole):
        ids = [row.instance_id for row in rows if row.group == group]
        configurations += [
            {
                "InstanceGroupName": group,
                "InstanceIds": ids[at : at + IDS],
                "DeepHealthChecks": list(checks),
            }
            for at in range(0, len(ids), IDS)
        ]
    return {"ClusterName": cluster, "DeepHealthCheckConfigurations": configurations}


def send_maintenance_order(
    aws: AwsClientFactory,
    operation: str,
    request: Mapping[str, Any],
    under_way: Callable[[], bool],
    sleep: Callable[[float], None],
) -> None:
    """Send it once; in doubt look, and send it once more. Raises Refused, OrderOutcomeUnknown."""
    sagemaker = aws.service("sagemaker")
    try:
        sagemaker.order(operation, **request)
        return
    except OrderOutcomeUnknown:
        for _ in range(DOUBT_LOOKS):
            sleep(DOUBT_S)
            if under_way():
                return
    try:
        sagemaker.order(operation, **request)
    except ServiceCallRefused:
        # What was in doubt and is refused now is under way: that is what conflicts with it.
        if not under_way():
            raise


def is_software_updating(aws: AwsClientFactory, cluster: str) -> bool:
    """Return whether a software update is known to be under way. False where it is unknown."""
    try:
        description = aws.service("sagemaker").read("describe_cluster", ClusterName=cluster)
    except ServiceUnavailable:
        return False
    groups = description.get("InstanceGroups", ())
    return description["ClusterStatus"] == "SystemUpdating" or any(
        group.get("SoftwareUpdateStatus") in UPDATING for group in groups
    )


def is_health_check_running(aws: AwsClientFactory, cluster: str) -> bool:
    """Return whether deep health checks on demand are under way. Raises nothing but
    ResourceNotFound, Refused."""
    try:
        return has_running_health_checks(aws.service("sagemaker"), cluster)
    except ServiceUnavailable:
        return False


def has_running_health_checks(sagemaker: AwsServiceClient, cluster: str) -> bool:
    """Return whether the service lists deep health checks that are under way."""
    try:
        found = sagemaker.pages(
            "list_cluster_operations",
            "ClusterOperationSummaries",
            ClusterName=cluster,
            Type="DeepHealthCheck",
            Status="InProgress",
        )
        return any(True for _ in found)
    except ServiceCallRefused:
        # An operator's policy from before the operation was there: the nodes tell as well.
        rows = sagemaker.pages(
            "list_cluster_nodes", "ClusterNodeSummaries", ClusterName=cluster, MaxResults=100
        )
        return any(row["InstanceStatus"]["Status"] == CHECKING for row in rows)

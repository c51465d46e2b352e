"""Two long orders for whole groups: another image, and deep health checks on demand.

Neither takes a client token. Both show in what DescribeCluster and ListClusterOperations say, so
an order in doubt is looked for there; sent again, it would be answered with a conflict.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, field

from hpctl.clusters.names import NodeRow, node_rows
from hpctl.errors import HpctlError, InDoubt, Refused, Unavailable
from hpctl.ports import Aws, Service

EVERY_S = 10.0
LAG_S = 120.0
"""How long the API may still show the time before an order that it has taken."""

DOUBT_LOOKS, DOUBT_S = 6, 5.0

CHECKS = ("InstanceStress", "InstanceConnectivity", "MultiNodeTrainingValidation")
"""DeepHealthCheckType, in the model's words."""

IDS = 500
"""Instance ids in one group's configuration of StartClusterHealthCheck."""

UPDATING = frozenset({"Pending", "InProgress", "RollbackInProgress"})
CHECKING = "DeepHealthCheckInProgress"


class GroupWork(Struct, frozen=True):
    """How far one group is: its own status, and how many of its nodes are in which."""

    name: str
    status: str
    desired: str
    nodes: Mapping[str, int]
    updated: int
    total: int


class Work(Struct, frozen=True):
    """One look. `done` is the last; `failed` says what went wrong, empty where nothing did."""

    status: str
    groups: tuple[GroupWork, ...]
    done: bool = False
    failed: str = ""
    unread: str = ""


# --- ordering ---------------------------------------------------------------------------------


NO_BATCHES = (
    "rolling batches are for clusters with EKS (AWS's notes on HyperPod): with Slurm all nodes may "
    "be updated at once"
)


def batch_size(text: str) -> dict[str, Any]:
    """`2` or `10%` as a RollingUpdatePolicy has it. Raises ValueError."""
    number = int(text.removesuffix("%"))
    if number < 1 or (text.endswith("%") and number > 100):
        raise ValueError("at least 1, and at most 100%")
    kind = "CAPACITY_PERCENTAGE" if text.endswith("%") else "INSTANCE_COUNT"
    return {"Type": kind, "Value": number}


def software_request(
    cluster: str,
    *,
    groups: Sequence[str] = (),
    release: str = "",
    image: str = "",
    batch: str = "",
    rollback_batch: str = "",
    interval_s: float | None = None,
    alarms: Sequence[str] = (),
) -> dict[str, Any]:
    """UpdateClusterSoftware's request; nothing named is left to the service. Raises ValueError."""
    rolling = {"MaximumBatchSize": batch_size(batch)} if batch else {}
    rolling |= {"RollbackMaximumBatchSize": batch_size(rollback_batch)} if rollback_batch else {}
    if rollback_batch and not batch:
        raise ValueError("a rollback batch needs a batch")
    deployment: dict[str, Any] = {"RollingUpdatePolicy": rolling} if rolling else {}
    deployment |= {} if interval_s is None else {"WaitIntervalInSeconds": round(interval_s)}
    if alarms:
        deployment["AutoRollbackConfiguration"] = [{"AlarmName": alarm} for alarm in alarms]
    wanted = [
        {"InstanceGroupName": g, **({"ImageReleaseVersion": release} if release else {})}
        for g in groups
    ]
    return {
        "ClusterName": cluster,
        **({"InstanceGroups": wanted} if wanted else {}),
        **({"ImageId": image} if image else {}),
        **({"DeploymentConfig": deployment} if deployment else {}),
    }


def health_request(
    cluster: str, rows: Sequence[NodeRow], whole: Sequence[str], checks: Sequence[str]
) -> dict[str, Any]:
    """StartClusterHealthCheck's request for these nodes and all nodes of the groups in `whole`.

    Raises HpctlError for a node that has no instance to check.
    """
    if empty := [row.shown for row in rows if not row.instance_id]:
        raise HpctlError(
            f"no instance yet: {', '.join(empty)}", "wait for it: `hpctl cluster wait`"
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


def order(
    aws: Aws,
    operation: str,
    request: Mapping[str, Any],
    under_way: Callable[[], bool],
    sleep: Callable[[float], None],
) -> None:
    """Send it once; in doubt look, and send it once more. Raises Refused, InDoubt."""
    sagemaker = aws.service("sagemaker")
    try:
        sagemaker.order(operation, **request)
        return
    except InDoubt:
        for _ in range(DOUBT_LOOKS):
            sleep(DOUBT_S)
            if under_way():
                return
    try:
        sagemaker.order(operation, **request)
    except Refused:
        # What was in doubt and is refused now is under way: that is what conflicts with it.
        if not under_way():
            raise


def updating(aws: Aws, cluster: str) -> bool:
    """Whether a software update is under way. Where nobody can tell: not that we know."""
    try:
        description = aws.service("sagemaker").read("describe_cluster", ClusterName=cluster)
    except Unavailable:
        return False
    groups = description.get("InstanceGroups", ())
    return description["ClusterStatus"] == "SystemUpdating" or any(
        group.get("SoftwareUpdateStatus") in UPDATING for group in groups
    )


def checking(aws: Aws, cluster: str) -> bool:
    """Whether deep health checks on demand are under way. Raises nothing but Absent, Refused."""
    try:
        return _running_checks(aws.service("sagemaker"), cluster)
    except Unavailable:
        return False


def _running_checks(sagemaker: Service, cluster: str) -> bool:
    try:
        found = sagemaker.pages(
            "list_cluster_operations",
            "ClusterOperationSummaries",
            ClusterName=cluster,
            Type="DeepHealthCheck",
            Status="InProgress",
        )
        return any(True for _ in found)
    except Refused:
        # An operator's policy from before the operation was there: the nodes tell as well.
        rows = sagemaker.pages(
            "list_cluster_nodes", "ClusterNodeSummaries", ClusterName=cluster, MaxResults=100
        )
        return any(row["InstanceStatus"]["Status"] == CHECKING for row in rows)


# --- following --------------------------------------------------------------------------------


class Following(Struct):
    """Looks at a cluster until an order for some of its groups is done.

    `before` is what DescribeCluster said before the order: what differs from it is the order's.
    """

    aws: Aws
    cluster: str
    groups: tuple[str, ...]
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    every_s: float = EVERY_S
    timeout_s: float = 6 * 3600.0
    before: Mapping[str, Any] = field(default_factory=dict)
    _seen: bool = False
    _begun: float = field(default=0.0)

    def software(self) -> Iterator[Work]:
        """Until every group's SoftwareUpdateStatus is an end."""
        return self._looks(self._software, "SoftwareUpdateStatus")

    def health(self) -> Iterator[Work]:
        """Until no deep health check is under way and no node is being checked or replaced."""
        return self._looks(self._health, "Status")

    def _looks(
        self, judged: Callable[[Mapping[str, Any], Work], Work], status: str
    ) -> Iterator[Work]:
        self._begun = self.clock()
        last = Work("", ())
        while True:
            try:
                description = self.aws.service("sagemaker").read(
                    "describe_cluster", ClusterName=self.cluster
                )
                rows = node_rows(self.aws, self.cluster, details=False)
                last = judged(description, self._work(description, rows, status))
            except Unavailable as error:
                last = Work(last.status, last.groups, unread=str(error))
            yield last
            if last.done:
                return
            if self.clock() - self._begun > self.timeout_s:
                raise InDoubt(
                    f"not done after {self.timeout_s:.0f} s; it goes on",
                    "`hpctl cluster describe` and `hpctl cluster nodes` show how far it is",
                )
            self.sleep(self.every_s)

    def _work(self, description: Mapping[str, Any], rows: Sequence[NodeRow], status: str) -> Work:
        groups = []
        for answer in description.get("InstanceGroups", ()):
            name = str(answer.get("InstanceGroupName", ""))
            if self.groups and name not in self.groups:
                continue
            mine = [row for row in rows if row.group == name]
            desired = str(
                answer.get("DesiredImageReleaseVersion") or answer.get("DesiredImageId", "")
            )
            groups.append(
                GroupWork(
                    name=name,
                    status=str(answer.get(status) or answer.get("Status", "")),
                    desired=desired,
                    nodes=dict(Counter(row.status for row in mine)),
                    updated=sum(bool(desired) and row.image == desired for row in mine),
                    total=len(mine),
                )
            )
        return Work(str(description["ClusterStatus"]), tuple(groups))

    def _lagging(self) -> bool:
        """Whether what is shown may be from before the order."""
        return not self._seen and self.clock() - self._begun < LAG_S

    def _software(self, description: Mapping[str, Any], work: Work) -> Work:
        active = work.status == "SystemUpdating" or any(g.status in UPDATING for g in work.groups)
        changed = bool(self.before) and _images(description) != _images(self.before)
        self._seen = self._seen or active or changed
        if active or self._lagging():
            return work
        bad = [f"group {g.name}: {g.status}" for g in work.groups if g.status in _BAD_ENDS]
        failure = str(description.get("FailureMessage", ""))
        text = "; ".join([*bad, *([failure] if bad and failure else [])])
        return Work(work.status, work.groups, done=True, failed=text)

    def _health(self, _description: Mapping[str, Any], work: Work) -> Work:
        moving = any(n for g in work.groups for s, n in g.nodes.items() if s not in _SETTLED)
        active = moving or _running_checks(self.aws.service("sagemaker"), self.cluster)
        self._seen = self._seen or active
        if active or self._lagging():
            return work
        # What became of the nodes is told one by one: another of the group may have failed before.
        return Work(work.status, work.groups, done=True)


def _images(description: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """What a software update changes of each group."""
    keys = ("SoftwareUpdateStatus", "DesiredImageId", "DesiredImageReleaseVersion")
    return [
        tuple(str(group.get(key, "")) for key in ("InstanceGroupName", *keys))
        for group in description.get("InstanceGroups", ())
    ]


_BAD_ENDS = frozenset({"Failed", "RollbackComplete"})
_SETTLED = frozenset({"Running", "Failure", "Failed"})


# --- what a health check found ----------------------------------------------------------------

SKEW = timedelta(minutes=5)
"""How far a node's clock may be from the operator's."""

_VERDICT = re.compile(r"(replacement|reboot)Required:\s*(true|false)", re.IGNORECASE)


def health_verdict(
    aws: Aws, arn: str, cluster: str, instance: str, since: datetime
) -> tuple[str, str]:
    """What an instance's own log says it needs (`replacement`, `reboot` or nothing), and its line.

    Of lines `since` the order alone: the stream keeps what earlier checks said of the instance.

    The stream `DeepHealthCheckResults/<instance id>` is the only place for it. A log that cannot be
    read is no verdict: ("", "").
    """
    try:
        answer = aws.service("logs").read(
            "get_log_events",
            logGroupName=f"/aws/sagemaker/Clusters/{cluster}/{arn.rpartition('/')[2]}",
            logStreamName=f"DeepHealthCheckResults/{instance}",
            startTime=int((since - SKEW).timestamp() * 1000),
            limit=100,
            startFromHead=False,
        )
    except HpctlError:
        return "", ""
    for event in reversed(answer.get("events", ())):
        line = str(event.get("message", "")).strip()
        needs = {what.lower(): is_so.lower() == "true" for what, is_so in _VERDICT.findall(line)}
        if needs:
            return next((what for what in ("replacement", "reboot") if needs.get(what)), ""), line
    return "", ""

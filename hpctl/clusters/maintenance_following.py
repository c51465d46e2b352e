"""Following an update or a health check to its end."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from msgspec import Struct, field

from hpctl.clusters.fleet import NodeRow
from hpctl.clusters.fleet_reading import read_node_rows
from hpctl.clusters.maintenance import (
    EVERY_S,
    LAG_S,
    UPDATING,
    ClusterMaintenanceProgress,
    GroupMaintenanceProgress,
)
from hpctl.clusters.maintenance_orders import has_running_health_checks
from hpctl.toolkit.errors import OrderOutcomeUnknown, ServiceUnavailable
from hpctl.vocabulary.ports import AwsClientFactory


class MaintenanceFollower(Struct):
    """Looks at a cluster until an order for some of its groups is done.

    `before` is what DescribeCluster said before the order: what differs from it is the order's.
    """

    aws: AwsClientFactory
    cluster: str
    groups: tuple[str, ...]
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    every_s: float = EVERY_S
    timeout_s: float = 6 * 3600.0
    before: Mapping[str, Any] = field(default_factory=dict)
    _seen: bool = False
    _begun: float = field(default=0.0)

    def software(self) -> Iterator[ClusterMaintenanceProgress]:
        """Until every group's SoftwareUpdateStatus is an end."""
        return self._poll_maintenance_progress(
            self._evaluate_software_update, "SoftwareUpdateStatus"
        )

    def health(self) -> Iterator[ClusterMaintenanceProgress]:
        """Until no deep health check is under way and no node is being checked or replaced."""
        return self._poll_maintenance_progress(self._evaluate_health_checks, "Status")

    def _poll_maintenance_progress(
        self,
        judged: Callable[
            [Mapping[str, Any], ClusterMaintenanceProgress], ClusterMaintenanceProgress
        ],
        status: str,
    ) -> Iterator[ClusterMaintenanceProgress]:
        self._begun = self.clock()
        last = ClusterMaintenanceProgress("", ())
        while True:
            try:
                description = self.aws.service("sagemaker").read(
                    "describe_cluster", ClusterName=self.cluster
                )
                rows = read_node_rows(self.aws, self.cluster, details=False)
                last = judged(
                    description, self._build_maintenance_progress(description, rows, status)
                )
            except ServiceUnavailable as error:
                last = ClusterMaintenanceProgress(last.status, last.groups, unread=str(error))
            yield last
            if last.done:
                return
            if self.clock() - self._begun > self.timeout_s:
                raise OrderOutcomeUnknown(
                    f"stopped waiting after {self.timeout_s:.0f} s: SageMaker has not finished, "
                    "and continues",
                    "`hpctl cluster describe` and `hpctl cluster instances` show the progress",
                )
            self.sleep(self.every_s)

    def _build_maintenance_progress(
        self, description: Mapping[str, Any], rows: Sequence[NodeRow], status: str
    ) -> ClusterMaintenanceProgress:
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
                GroupMaintenanceProgress(
                    name=name,
                    status=str(answer.get(status) or answer.get("Status", "")),
                    desired=desired,
                    nodes=dict(Counter(row.status for row in mine)),
                    updated=sum(bool(desired) and row.image == desired for row in mine),
                    total=len(mine),
                )
            )
        return ClusterMaintenanceProgress(str(description["ClusterStatus"]), tuple(groups))

    def _can_status_predate_maintenance_order(self) -> bool:
        """Return whether what is shown may be from before the order."""
        return not self._seen and self.clock() - self._begun < LAG_S

    def _evaluate_software_update(
        self, description: Mapping[str, Any], work: ClusterMaintenanceProgress
    ) -> ClusterMaintenanceProgress:
        active = work.status == "SystemUpdating" or any(g.status in UPDATING for g in work.groups)
        changed = bool(self.before) and _list_group_images(description) != _list_group_images(
            self.before
        )
        self._seen = self._seen or active or changed
        if active or self._can_status_predate_maintenance_order():
            return work
        bad = [f"group {g.name}: {g.status}" for g in work.groups if g.status in _BAD_ENDS]
        failure = str(description.get("FailureMessage", ""))
        text = "; ".join([*bad, *([failure] if bad and failure else [])])
        return ClusterMaintenanceProgress(work.status, work.groups, done=True, failed=text)

    def _evaluate_health_checks(
        self, _description: Mapping[str, Any], work: ClusterMaintenanceProgress
    ) -> ClusterMaintenanceProgress:
        counts = chain.from_iterable(group.nodes.items() for group in work.groups)
        moving = any(number for status, number in counts if status not in _SETTLED)
        active = moving or has_running_health_checks(self.aws.service("sagemaker"), self.cluster)
        self._seen = self._seen or active
        if active or self._can_status_predate_maintenance_order():
            return work
        # Each node's outcome is reported separately: another of the group may have failed before.
        return ClusterMaintenanceProgress(work.status, work.groups, done=True)


def _list_group_images(description: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return what a software update changes of each group."""
    keys = (
        "InstanceGroupName",
        "SoftwareUpdateStatus",
        "DesiredImageId",
        "DesiredImageReleaseVersion",
    )
    changes = []
    for group in description.get("InstanceGroups", ()):
        changes.append(tuple(str(group.get(key, "")) for key in keys))
    return changes


_BAD_ENDS = frozenset({"Failed", "RollbackComplete"})


_SETTLED = frozenset({"Running", "Failure", "Failed"})

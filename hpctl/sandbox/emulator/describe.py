"""DescribeCluster: the cluster and its groups, in the words of the service model."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hpctl.core.model import InstanceStatus
from hpctl.sandbox.emulator.capacity import plan_status
from hpctl.sandbox.emulator.faults import FaultKind
from hpctl.sandbox.emulator.launch import Launches
from hpctl.sandbox.emulator.shapes import Body
from hpctl.sandbox.emulator.state import Cluster, Group

_KEPT_OF_GROUP = (
    "InstanceGroupName", "InstanceType", "LifeCycleConfig", "ExecutionRole", "ThreadsPerCore",
    "InstanceStorageConfigs", "OnStartDeepHealthChecks", "TrainingPlanArn", "OverrideVpcConfig",
    "ScheduledUpdateConfig", "SlurmConfig", "NetworkInterface", "CapacityRequirements",
)  # fmt: skip
_KEPT_OF_CLUSTER = (
    "VpcConfig", "Orchestrator", "TieredStorageConfig", "NodeProvisioningMode", "ClusterRole",
)  # fmt: skip
_OF_CLUSTER = {"Creating": "Creating", "Deleting": "Deleting", "Failed": "Failed",
               "Updating": "Updating", "RollingBack": "Updating"}  # fmt: skip


@dataclass(slots=True)
class DescribeOperation:
    """DescribeCluster."""

    launches: Launches

    def describe_cluster(self, request: Body) -> Body:
        """DescribeCluster. Counts may lag, as lists do."""
        cluster = self.launches.world.cluster(request["ClusterName"])
        kept = {k: cluster.spec[k] for k in _KEPT_OF_CLUSTER if k in cluster.spec}
        failure = {"FailureMessage": cluster.failure} if cluster.failure else {}
        return {
            "ClusterArn": cluster.arn,
            "ClusterName": cluster.name,
            "ClusterStatus": cluster.status,
            "CreationTime": cluster.created,
            "NodeRecovery": cluster.spec.get("NodeRecovery", "Automatic"),
            "InstanceGroups": [self._group(cluster, g) for g in cluster.groups.values()],
            **kept,
            **failure,
        }

    def _group(self, cluster: Cluster, group: Group) -> dict[str, Any]:
        lag = self.launches.faults.holds(FaultKind.LIST_LAG, operation="DescribeCluster")
        moment = time.monotonic() - (lag.seconds if lag else 0.0)
        states = [n.state_at(moment) for n in cluster.nodes.values() if n.group is group]
        running = sum(1 for s in states if s and s.status is InstanceStatus.RUNNING)
        kept = {k: group.spec[k] for k in _KEPT_OF_GROUP if k in group.spec}
        active = self.launches.operations.active_in(cluster, group)
        return {
            **kept,
            "CurrentCount": running,
            "TargetCount": group.target,
            **({"MinCount": group.minimum} if group.minimum else {}),
            "Status": _status(cluster, group, running, scaling="Scaling" in active),
            **({"ActiveOperations": active} if active else {}),
            **plan_status(self.launches.capacity, group),
            **self._types(cluster, group),
            **self._software(group, cluster),
            **_patching(group),
        }

    def _types(self, cluster: Cluster, group: Group) -> Body:
        """A flexible group's types, and how many instances of each it has."""
        if "InstanceRequirements" not in group.spec:
            return {}
        wanted = list(group.instance_types)
        held = Counter(
            n.instance_type for n in cluster.nodes.values() if n.group is group and n.instance_type
        )
        threads = {"ThreadsPerCore": group.spec.get("ThreadsPerCore", 1)}
        return {
            "InstanceRequirements": {
                "CurrentInstanceTypes": wanted,
                "DesiredInstanceTypes": wanted,
            },
            "InstanceTypeDetails": [
                {"InstanceType": kind, "CurrentCount": held[kind], **threads} for kind in wanted
            ],
        }

    def _software(self, group: Group, cluster: Cluster) -> Body:
        world, software = self.launches.world, group.software
        body: Body = {
            "CurrentImageId": software.image or world.image_of(software.current),
            "DesiredImageId": software.image or world.image_of(software.desired),
            "CurrentImageReleaseVersion": software.current,
            "DesiredImageReleaseVersion": software.desired,
            "ImageVersionStatus": world.version_status(software.current),
        }
        if software.status:
            body["SoftwareUpdateStatus"] = software.status
            body["TargetStateCount"] = sum(
                1
                for n in cluster.nodes.values()
                if n.group is group
                and n.release == software.desired
                and n.state.status is InstanceStatus.RUNNING
            )
        if software.rollout:
            body["ActiveSoftwareUpdateConfig"] = software.rollout
        return body


def _status(cluster: Cluster, group: Group, running: int, *, scaling: bool) -> str:
    """Degraded is a group some of whose instances failed or have gone, not one that still grows."""
    if group.phase:
        return group.phase
    if cluster.status in _OF_CLUSTER:
        return _OF_CLUSTER[cluster.status]
    if running < group.target and cluster.continuous:
        grows = scaling and not any(
            n.state.message and n.state.status is not InstanceStatus.RUNNING
            for n in cluster.nodes.values()
            if n.group is group
        )
        return "Updating" if grows else "Degraded"
    if cluster.status == "SystemUpdating":
        return "InService"
    return cluster.status


def _patching(group: Group) -> Body:
    """AutoPatchConfig comes back as what is in force and what is wanted."""
    given = dict(group.spec.get("AutoPatchConfig", {}))
    if not given:
        return {}
    schedule = given.pop("PatchSchedule", {})
    return {
        "AutoPatchConfig": {
            **given,
            "CurrentPatchSchedule": schedule,
            "DesiredPatchSchedule": schedule,
        }
    }

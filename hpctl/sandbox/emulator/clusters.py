"""CreateCluster, DescribeCluster, ListClusters and DeleteCluster, and the tags of clusters."""

import time
from typing import Any

from msgspec import Struct

from hpctl.sandbox.emulator.faults import (
    FaultKind,
    make_cluster_name_in_use_error,
    make_conflict_error,
    make_validation_error,
)
from hpctl.sandbox.emulator.launch import (
    GroupScaler,
    InstanceLauncher,
    NodeTransitions,
    format_failure_message,
)
from hpctl.sandbox.emulator.shapes import (
    BOTH_STYLES,
    Body,
    Parameters,
    build_paginated_response,
    check_create_cluster_request,
    has_conflicting_slurm_config_sources,
    make_emulated_instance_group,
)
from hpctl.sandbox.emulator.state import (
    EmulatedAwsRegion,
    EmulatedCluster,
    EmulatedInstanceGroup,
    EmulatedNode,
    GroupImageState,
)
from hpctl.vocabulary.cloud_facts import InstanceStatus

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


class DescribeClusterOperation(Struct):
    """DescribeCluster."""

    launches: InstanceLauncher

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
            "InstanceGroups": [self._describe_group(cluster, g) for g in cluster.groups.values()],
            **kept,
            **failure,
        }

    def _describe_group(
        self, cluster: EmulatedCluster, group: EmulatedInstanceGroup
    ) -> dict[str, Any]:
        lag = self.launches.faults.holds(FaultKind.LIST_LAG, operation="DescribeCluster")
        moment = time.monotonic() - (lag.seconds if lag else 0.0)
        states = [n.get_state_at_time(moment) for n in cluster.nodes.values() if n.group is group]
        running = sum(1 for s in states if s and s.status is InstanceStatus.RUNNING)
        kept = {k: group.spec[k] for k in _KEPT_OF_GROUP if k in group.spec}
        return {
            **kept,
            "CurrentCount": running,
            "TargetCount": group.target,
            **({"MinCount": group.minimum} if group.minimum else {}),
            "Status": _compute_instance_group_status(cluster, group, running),
            **_describe_flexible_instance_types(group),
            **self._describe_group_software_versions(group),
            **_describe_auto_patch_config(group),
        }

    def _describe_group_software_versions(self, group: EmulatedInstanceGroup) -> Body:
        world, software = self.launches.world, group.software
        body: Body = {
            "CurrentImageId": software.image or world.find_image_id(software.current),
            "DesiredImageId": software.image or world.find_image_id(software.desired),
            "CurrentImageReleaseVersion": software.current,
            "DesiredImageReleaseVersion": software.desired,
            "ImageVersionStatus": world.get_image_version_status(software.current),
        }
        if software.status:
            body["SoftwareUpdateStatus"] = software.status
        return body


def _describe_flexible_instance_types(group: EmulatedInstanceGroup) -> Body:
    """Return a flexible group's types, under the names that a description has for them."""
    if "InstanceRequirements" not in group.spec:
        return {}
    kinds = list(group.instance_types)
    return {"InstanceRequirements": {"CurrentInstanceTypes": kinds, "DesiredInstanceTypes": kinds}}


def _compute_instance_group_status(
    cluster: EmulatedCluster, group: EmulatedInstanceGroup, running: int
) -> str:
    """Degraded is a group some of whose instances failed or have gone, not one that still grows."""
    if group.phase:
        return group.phase
    if cluster.status in _OF_CLUSTER:
        return _OF_CLUSTER[cluster.status]
    if running < group.target and cluster.continuous:
        nodes = [n for n in cluster.nodes.values() if n.group is group]
        failed = any(
            n.state.message and n.state.status is not InstanceStatus.RUNNING for n in nodes
        )
        grows = not failed and any(n.operation == "Create" for n in nodes)
        return "Updating" if grows else "Degraded"
    return "InService" if cluster.status == "SystemUpdating" else cluster.status


def _describe_auto_patch_config(group: EmulatedInstanceGroup) -> Body:
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


class ClusterOperations(Struct):
    """The operations on whole clusters."""

    world: EmulatedAwsRegion
    walks: NodeTransitions
    scaling: GroupScaler
    parameters: Parameters

    def create_cluster(self, request: Body) -> Body:
        """CreateCluster: Creating, then InService; without Continuous RollingBack and Failed."""
        if any(c.name == request["ClusterName"] for c in self.world.clusters.values()):
            raise make_cluster_name_in_use_error(
                f"Cluster {request['ClusterName']} already exists."
            )
        check_create_cluster_request(request, self.world.releases)
        specs = {g["InstanceGroupName"]: g for g in request["InstanceGroups"]}
        self.walks.launches.capacity.check_training_plans(specs)
        self.walks.launches.capacity.check_quota(None, specs)
        cluster = EmulatedCluster(self.world.make_cluster_arn(), dict(request), self.world.now())
        self.world.clusters[cluster.arn] = cluster
        nodes: list[EmulatedNode] = []
        for spec in request["InstanceGroups"]:
            latest = self.world.releases[-1]
            group = make_emulated_instance_group(
                spec, self.parameters, GroupImageState(latest, latest)
            )
            cluster.groups[group.name] = group
            nodes += self.scaling.new_nodes(cluster, group, group.target)
        self.scaling.begun(cluster, {})
        self.walks.launches.threads.spawn(
            lambda: self._launch_cluster(cluster, nodes), f"create-{cluster.name}"
        )
        return {"ClusterArn": cluster.arn}

    def list_clusters(self, request: Body) -> Body:
        """ListClusters, by name or, unless asked so, by time; its filters are not offered."""
        by_name = request.get("SortBy") == "NAME"
        found = sorted(
            self.world.clusters.values(), key=lambda c: (c.name if by_name else "", c.created)
        )

        def summarize_cluster(one: EmulatedCluster) -> Body:
            kept = {"ClusterArn": one.arn, "ClusterName": one.name, "ClusterStatus": one.status}
            return {**kept, "CreationTime": one.created}

        return build_paginated_response("ClusterSummaries", found, request, summarize_cluster)

    def delete_cluster(self, request: Body) -> Body:
        """DeleteCluster: every instance goes, then the cluster."""
        cluster = self.world.cluster(request["ClusterName"])
        if cluster.status not in ("InService", "Failed"):
            raise make_conflict_error(
                f"Cluster {cluster.name} is {cluster.status} and cannot be deleted."
            )
        cluster.status = "Deleting"
        nodes = [n for n in cluster.nodes.values() if not n.doomed]

        def remove_cluster() -> None:
            with self.world.changed:
                self.world.clusters.pop(cluster.arn, None)
                self.world.changed.notify_all()

        self.walks.delete(cluster, nodes, remove_cluster)
        return {"ClusterArn": cluster.arn}

    def _launch_cluster(self, cluster: EmulatedCluster, nodes: list[EmulatedNode]) -> None:
        """The controller first, then login nodes, then workers; Continuous does not wait for
        these.
        """
        launches = self.walks.launches
        pause_s = launches.timings.create_s
        if has_conflicting_slurm_config_sources(
            (g.spec for g in cluster.groups.values()), self.parameters
        ):
            launches.threads.stopping.wait(pause_s)
            self._mark_cluster_launch_failed(cluster, nodes, nodes, BOTH_STYLES)
            return
        waiting = list(nodes)
        for role in ("controller", "login", "compute"):
            members = [n for n in waiting if n.group.role == role]
            if role == "login" and cluster.continuous:
                self._launch_login_and_worker_groups(cluster, waiting, pause_s)
                return
            failed = launches.launch_nodes(cluster, members, pause_s)
            pause_s = 0.0 if members else pause_s
            waiting = [n for n in waiting if n not in members]
            if launches.threads.stopping.is_set():
                return
            if failed:
                self._mark_cluster_launch_failed(
                    cluster, nodes, waiting, format_failure_message(failed[0]), failed[0].trouble
                )
                return
        self.scaling.settle(cluster, "InService")

    def _launch_login_and_worker_groups(
        self, cluster: EmulatedCluster, nodes: list[EmulatedNode], pause_s: float
    ) -> None:
        """Login nodes and workers in parallel; InService as soon as one login node is up, where
        there is a login group (sagemaker-hyperpod-scaling-slurm, "Priority-based provisioning").
        """
        launches, world = self.walks.launches, self.world
        logins = [n for n in nodes if n.group.role == "login"]

        def is_group_launch_finished() -> bool:
            return launches.threads.stopping.is_set() or cluster.status != "Creating"

        def is_node_up(node: EmulatedNode) -> bool:
            return not node.doomed and node.state.status is InstanceStatus.RUNNING

        launches.threads.spawn(
            lambda: launches.launch_nodes(cluster, nodes, pause_s), f"open-{cluster.name}"
        )
        with world.changed:
            world.changed.wait_for(
                lambda: is_group_launch_finished() or not logins or any(map(is_node_up, logins))
            )
            if not is_group_launch_finished():
                self.scaling.settle(cluster, "InService")

    def _mark_cluster_launch_failed(
        self,
        cluster: EmulatedCluster,
        nodes: list[EmulatedNode],
        waiting: list[EmulatedNode],
        failure: str,
        trouble: str = "",
    ) -> None:
        """The cluster is Failed; without Continuous its instances are taken back first."""
        for node in waiting:
            self.walks.launches.release(cluster, node)
        if not cluster.continuous:
            self.scaling.settle(cluster, "RollingBack", failure, trouble)
            with self.world.lock:
                self.walks.mark_for_deletion(cluster, nodes)
            self.walks.destroy_nodes(cluster, nodes)
        for node in nodes:
            node.wanting = False
        self.scaling.settle(cluster, "Failed", failure, trouble)


MAX_TAGS = 50


class TagOperations(Struct):
    """The tags of clusters, kept in the order in which they were first given."""

    world: EmulatedAwsRegion

    def add(self, request: Body) -> Body:
        """AddTags: a key that is there gets the new value."""
        cluster = self.world.cluster(request["ResourceArn"])
        tags = {t["Key"]: t["Value"] for t in cluster.spec.get("Tags", ())}
        tags.update({t["Key"]: t["Value"] for t in request["Tags"]})
        if len(tags) > MAX_TAGS:
            raise make_validation_error(f"A resource has at most {MAX_TAGS} tags.")
        cluster.spec["Tags"] = [{"Key": k, "Value": v} for k, v in tags.items()]
        return {"Tags": cluster.spec["Tags"]}

    def list(self, request: Body) -> Body:
        """ListTags. There is never a second page: a page has at least 50 entries."""
        return {"Tags": self.world.cluster(request["ResourceArn"]).spec.get("Tags", [])}

    def delete(self, request: Body) -> Body:
        """DeleteTags: keys that are not there are no error."""
        cluster = self.world.cluster(request["ResourceArn"])
        tags = cluster.spec.get("Tags", [])
        cluster.spec["Tags"] = [t for t in tags if t["Key"] not in request["TagKeys"]]
        return {}

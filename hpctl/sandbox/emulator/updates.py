"""UpdateCluster and UpdateClusterSoftware."""

import math
import random
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from hpctl.sandbox.emulator.faults import (
    make_conflict_error,
    make_not_found_error,
    make_validation_error,
)
from hpctl.sandbox.emulator.launch import GroupScaler, NodeTransitions, format_failure_message
from hpctl.sandbox.emulator.nodes import check_no_health_check_running
from hpctl.sandbox.emulator.shapes import (
    BOTH_STYLES,
    Body,
    Parameters,
    check_group_specs,
    check_slurm_orchestrator_settings,
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


class ClusterSoftwareUpdateOperation(Struct):
    """UpdateClusterSoftware. Jobs are not asked: root volumes are rewritten under them."""

    world: EmulatedAwsRegion
    walks: NodeTransitions
    scaling: GroupScaler

    def update_cluster_software(self, request: Body) -> Body:
        """UpdateClusterSoftware: all groups where none is named."""
        cluster = self.world.cluster(request["ClusterName"])
        if cluster.status != "InService":
            raise make_conflict_error(
                f"Cluster {cluster.name} is {cluster.status}; wait until it is InService."
            )
        wanted = {
            g["InstanceGroupName"]: g.get("ImageReleaseVersion", self.world.releases[-1])
            for g in request.get("InstanceGroups", [])
        } or dict.fromkeys(cluster.groups, self.world.releases[-1])
        for name, release in wanted.items():
            if name not in cluster.groups:
                raise make_not_found_error(
                    f"Instance group {name} not found in cluster {cluster.name}."
                )
            if release not in self.world.releases:
                raise make_validation_error(f"There is no HyperPod AMI release {release}.")
        deployment = dict(request.get("DeploymentConfig", {}))
        groups = [cluster.groups[name] for name in wanted]
        for group in groups:
            group.software.desired = wanted[group.name]
            group.software.image = _find_requested_image_id(request, group)
            group.software.status = "Pending"
            group.phase = "SystemUpdating"
        if not cluster.continuous:
            self.scaling.settle(cluster, "SystemUpdating")
        self.walks.launches.threads.spawn(
            lambda: self._update_group_images(cluster, groups, deployment),
            f"software-{cluster.name}",
        )
        return {"ClusterArn": cluster.arn}

    def _update_group_images(
        self, cluster: EmulatedCluster, groups: list[EmulatedInstanceGroup], deployment: Body
    ) -> None:
        for group in groups:
            policy = deployment.get("RollingUpdatePolicy", {})
            done: list[EmulatedNode] = []
            group.software.status = "InProgress"
            good = self._update_group_node_images(
                cluster, group, deployment, policy.get("MaximumBatchSize"), done
            )
            if self.walks.launches.threads.stopping.is_set():
                return
            if good:
                group.software.current = group.software.desired
                self._finish_group_update(group, "Succeeded")
            else:
                self._roll_back_group(cluster, group, policy.get("RollbackMaximumBatchSize"), done)
        self.scaling.settle(cluster, "InService")

    def _update_group_node_images(
        self,
        cluster: EmulatedCluster,
        group: EmulatedInstanceGroup,
        deployment: Body,
        size: Body | None,
        done: list[EmulatedNode],
    ) -> bool:
        """Update the group's nodes; those that were touched are in `done`. False: one failed."""
        pause_s = float(deployment.get("WaitIntervalInSeconds", 0))
        while batch := self._claim_next_update_batch(cluster, group, size, done):
            done += batch
            if not self.walks.update_software_of_nodes(cluster, batch, group.software.desired):
                return False
            if self.walks.launches.threads.stopping.wait(pause_s):
                return True
        return True

    def _claim_next_update_batch(
        self,
        cluster: EmulatedCluster,
        group: EmulatedInstanceGroup,
        size: Body | None,
        done: list[EmulatedNode],
    ) -> list[EmulatedNode]:
        """Return the next nodes to update, claimed; waits until they are free of other
        operations."""
        with self.world.changed:
            left = [
                n
                for n in cluster.nodes.values()
                if n.group is group and n not in done and n.state.instance_id and not n.doomed
            ]
            batch = left[: _compute_update_batch_size(size, group.target)]
            self.world.changed.wait_for(
                lambda: (
                    self.walks.launches.threads.stopping.is_set()
                    or not any(n.operation for n in batch)
                )
            )
            for node in batch:
                self.walks.launches.claim(node, "SoftwareUpdate")
            return batch

    def _roll_back_group(
        self,
        cluster: EmulatedCluster,
        group: EmulatedInstanceGroup,
        size: Body | None,
        done: list[EmulatedNode],
    ) -> None:
        """Give the nodes that were touched their old image; what fails then stays a Failure."""
        software = group.software
        software.status = "RollbackInProgress"
        software.current, software.desired = software.desired, software.current
        good = True
        for start in range(0, len(done), _compute_update_batch_size(size, group.target)):
            batch = done[start : start + _compute_update_batch_size(size, group.target)]
            for node in batch:
                self.walks.launches.claim(node, "SoftwareUpdate")
            good &= self.walks.update_software_of_nodes(cluster, batch, software.desired)
        software.current = software.desired
        self._finish_group_update(group, "RollbackComplete" if good else "Failed")
        self.walks.launches.events.record(
            cluster,
            f"Software update of instance group {group.name} was rolled back.",
            group=group,
            failure="An instance did not come up with the new image.",
        )

    def _finish_group_update(self, group: EmulatedInstanceGroup, status: str) -> None:
        with self.world.changed:
            group.software.status, group.phase = status, ""
            self.world.changed.notify_all()


def _find_requested_image_id(request: Body, group: EmulatedInstanceGroup) -> str:
    image = request.get("ImageId", group.software.image)
    return "" if image == "default" else str(image)


def _compute_update_batch_size(size: Body | None, target: int) -> int:
    """Return how many nodes at once: all where no policy is given."""
    if not size:
        return max(1, target)
    if size["Type"] == "INSTANCE_COUNT":
        return int(size["Value"])
    return max(1, math.floor(target * int(size["Value"]) / 100))


_CHANGED_AT_ONCE = (
    "NodeRecovery", "ClusterRole", "TieredStorageConfig", "Orchestrator", "NodeProvisioningMode",
)  # fmt: skip
_FIXED = ("InstanceType", "ThreadsPerCore", "OverrideVpcConfig", "NetworkInterface")
"""Of a group. InstanceType must match what was given before (the developer guide's page on
update-cluster); the network interfaces of instances that are there cannot change either."""
_KEPT = ("SlurmConfig", "ThreadsPerCore")
"""Of a group, where a request omits them: "Omitting SlurmConfig from a later UpdateCluster
request does not revert the cluster" (the guide's page on the migration, whose own request names
no ThreadsPerCore)."""
DRIFT = "Partition configuration drift detected."


class ClusterUpdateOperation(Struct):
    """UpdateCluster."""

    world: EmulatedAwsRegion
    walks: NodeTransitions
    scaling: GroupScaler
    parameters: Parameters
    chance: random.Random = field(
        default_factory=lambda: random.Random(0)  # noqa: S311 -- which instance a scale-down takes
    )

    def update_cluster(self, request: Body) -> Body:
        """UpdateCluster: refused whole, or begun whole. A shrink takes instances at random."""
        cluster = self.world.cluster(request["ClusterName"])
        self._check_cluster_in_service(cluster)
        restated = {
            g["InstanceGroupName"]: _merge_omitted_group_values(
                cluster.groups.get(g["InstanceGroupName"]), g
            )
            for g in request.get("InstanceGroups", [])
        }
        leaving = list(request.get("InstanceGroupsToDelete", []))
        self._check_cluster_update_request(cluster, request, restated, leaving)
        why = self._find_update_rollback_cause(cluster, request, restated)
        if why:
            self._start_update_that_rolls_back(cluster, why)
            return {"ClusterArn": cluster.arn}
        migrates = any("SlurmConfig" in g for g in restated.values()) and not cluster.by_api
        for key in _CHANGED_AT_ONCE:
            if key in request:
                cluster.spec[key] = request[key]
        before = cluster.targets
        new: list[EmulatedNode] = []
        going: list[EmulatedNode] = []
        for name, spec in restated.items():
            made, lost = self._apply_group_spec(cluster, name, spec)
            new += made
            going += lost
        for name in leaving:
            cluster.groups[name].phase = "Deleting"
            cluster.groups[name].target = 0
            going += [n for n in cluster.nodes.values() if n.group.name == name and not n.doomed]
        self.scaling.begun(cluster, before)
        if new or going or leaving or migrates:
            self._start_cluster_update(cluster, new, going, leaving, before)
        return {"ClusterArn": cluster.arn}

    def _check_cluster_in_service(self, cluster: EmulatedCluster) -> None:
        if cluster.status != "InService":
            raise make_conflict_error(
                f"Cluster {cluster.name} is {cluster.status}; wait until it is InService."
            )
        check_no_health_check_running(cluster)

    def _check_cluster_update_request(
        self,
        cluster: EmulatedCluster,
        request: Body,
        restated: Mapping[str, Any],
        leaving: list[str],
    ) -> None:
        if "Eks" in request.get("Orchestrator", {}):
            raise make_validation_error(
                "The orchestrator of an existing cluster cannot be changed."
            )
        after = {**cluster.spec, **request}
        # A strategy from before a cluster became Continuous is no wish of this request.
        check_slurm_orchestrator_settings(
            {**after, "Orchestrator": request.get("Orchestrator", {})}
        )
        for name in leaving:
            if name not in cluster.groups:
                raise make_not_found_error(
                    f"Instance group {name} not found in cluster {cluster.name}."
                )
            if name in restated:
                raise make_validation_error(f"Instance group {name} is both updated and deleted.")
            if cluster.groups[name].role == "controller":
                raise make_validation_error("The controller instance group cannot be deleted.")
        if len(restated) != len(request.get("InstanceGroups", [])):
            raise make_validation_error("Instance group names must be unique.")
        stays = {n: g.spec for n, g in cluster.groups.items() if n not in leaving}
        groups = {**stays, **restated}
        check_group_specs(groups.values(), self.world.releases, after, there=True)
        self._check_provisioning_mode_change(cluster, request, groups)
        for name, spec in restated.items():
            group = cluster.groups.get(name)
            if group:
                _check_group_spec_change(group, spec)
                if "SlurmConfig" in spec and group.software.current in self.world.outdated:
                    raise make_validation_error(
                        "Update required to use SlurmConfig in InstanceGroups"
                    )
        self.walks.launches.capacity.check_training_plans(restated)
        self.walks.launches.capacity.check_quota(cluster, restated)

    def _check_provisioning_mode_change(
        self, cluster: EmulatedCluster, request: Body, groups: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """A cluster may become Continuous where Slurm is configured through the API, by Merge."""
        mode = request.get("NodeProvisioningMode")
        if not mode or mode == cluster.spec.get("NodeProvisioningMode"):
            return
        if not all("SlurmConfig" in spec for spec in groups.values()):
            raise make_validation_error(
                "NodeProvisioningMode Continuous needs SlurmConfig in all groups."
            )
        if self._choose_slurm_config_strategy(cluster, {}) != "Merge":
            raise make_validation_error(
                "NodeProvisioningMode Continuous needs SlurmConfigStrategy Merge."
            )

    def _choose_slurm_config_strategy(self, cluster: EmulatedCluster, request: Body) -> str:
        both = {**cluster.spec, **request}
        chosen = both.get("Orchestrator", {}).get("Slurm", {}).get("SlurmConfigStrategy")
        return str(chosen or ("Managed" if self.world.managed_by_default else "Merge"))

    def _find_update_rollback_cause(
        self, cluster: EmulatedCluster, request: Body, restated: Mapping[str, Any]
    ) -> str:
        """Return why the update is taken and then rolled back; "" where it goes through.

        Both from the migration guide: the file beside the scripts, and drift under Managed.
        """
        groups = {**{n: g.spec for n, g in cluster.groups.items()}, **restated}.values()
        if has_conflicting_slurm_config_sources(groups, self.parameters):
            return BOTH_STYLES
        if cluster.continuous or not any("SlurmConfig" in group for group in groups):
            return ""
        strategy = self._choose_slurm_config_strategy(cluster, request)
        drifted = (
            self.walks.launches.machines.has_partition_drift() if strategy != "Merge" else False
        )
        if drifted and strategy == "Managed":
            return DRIFT
        if drifted:
            self.walks.launches.machines.restore_slurm_conf_partitions()
        return ""

    def _start_update_that_rolls_back(self, cluster: EmulatedCluster, failure: str) -> None:
        """Updating, RollingBack, and InService as it was before."""
        pause_s = self.walks.launches.timings.boot_s

        def roll_back_cluster() -> None:
            for status in ("RollingBack", "InService"):
                if self.walks.launches.threads.stopping.wait(pause_s):
                    return
                self.scaling.settle(cluster, status, failure)

        self.scaling.settle(cluster, "Updating")
        self.walks.launches.threads.spawn(roll_back_cluster, f"refuse-{cluster.name}")

    def _apply_group_spec(
        self, cluster: EmulatedCluster, name: str, spec: Body
    ) -> tuple[list[EmulatedNode], list[EmulatedNode]]:
        """Take over a group's new specification; the nodes that are new, and those that go."""
        if name not in cluster.groups:
            cluster.groups[name] = make_emulated_instance_group(
                spec, self.parameters, self._choose_new_group_image_state(cluster)
            )
        group = cluster.groups[name]
        have = [n for n in cluster.nodes.values() if n.group is group and not n.doomed]
        group.spec, group.target = dict(spec), int(spec["InstanceCount"])
        new = self.scaling.new_nodes(cluster, group, max(0, group.target - len(have)))
        surplus = max(0, len(have) - group.target)
        return new, self.chance.sample(have, surplus)

    def _choose_new_group_image_state(self, cluster: EmulatedCluster) -> GroupImageState:
        """Return what a new group gets: of a Continuous cluster "new instance groups inherit the
        AMI from the earliest existing instance group" (the API model on ImageId).
        """
        if cluster.continuous:
            return next(iter(cluster.groups.values())).software
        return GroupImageState(self.world.releases[-1], self.world.releases[-1])

    def _start_cluster_update(
        self,
        cluster: EmulatedCluster,
        new: list[EmulatedNode],
        going: list[EmulatedNode],
        leaving: list[str],
        before: Mapping[str, int],
    ) -> None:
        if not cluster.continuous:
            self.scaling.settle(cluster, "Updating")
        self.walks.mark_for_deletion(cluster, going)
        launches = self.walks.launches

        def run_cluster_update() -> None:
            self.walks.destroy_nodes(cluster, going)
            with self.world.changed:
                for name in leaving:
                    cluster.groups.pop(name, None)
                self.world.changed.notify_all()
            if not new:
                launches.threads.stopping.wait(launches.timings.boot_s)
            failed = launches.launch_nodes(cluster, new, launches.timings.boot_s)
            if launches.threads.stopping.is_set() or cluster.continuous:
                return
            if failed:
                self._roll_back_update(cluster, new, failed[0], before)
            else:
                self.scaling.settle(cluster, "InService")

        launches.threads.spawn(run_cluster_update, f"update-{cluster.name}")

    def _roll_back_update(
        self,
        cluster: EmulatedCluster,
        new: list[EmulatedNode],
        culprit: EmulatedNode,
        before: Mapping[str, int],
    ) -> None:
        """What the update added goes again; what it took is not brought back."""
        failure, trouble = format_failure_message(culprit), culprit.trouble
        self.scaling.settle(cluster, "RollingBack", failure, trouble)
        with self.world.lock:
            self.walks.mark_for_deletion(cluster, new)
        self.walks.destroy_nodes(cluster, new)
        with self.world.changed:
            for node in new:
                node.group.target -= 1
                if node.group.name not in before and node.group.target == 0:
                    cluster.groups.pop(node.group.name, None)
        self.scaling.settle(cluster, "InService", failure, trouble)


def _merge_omitted_group_values(
    group: EmulatedInstanceGroup | None, spec: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a restated group, with what stays where a request omits it."""
    before = group.spec if group else {}
    return {**{k: before[k] for k in _KEPT if k in before}, **spec}


def _check_group_spec_change(group: EmulatedInstanceGroup, spec: Mapping[str, Any]) -> None:
    """Raise ApiError ValidationException for what cannot be changed of a group that is there.

    A NodeType may be given where there was none: the migration to API-driven configuration.
    """
    before = group.spec.get("SlurmConfig", {}).get("NodeType")
    if before and spec["SlurmConfig"]["NodeType"] != before:
        raise make_validation_error(f"Instance group {group.name}: NodeType cannot be changed.")
    for key in _FIXED:
        if spec.get(key) != group.spec.get(key):
            raise make_validation_error(
                f"Instance group {group.name}: {key} of an existing instance group cannot be "
                "changed."
            )
    if group.role == "controller" and spec["InstanceCount"] < group.target:
        raise make_validation_error("The controller instance group cannot be scaled down.")
    if group.phase:
        raise make_conflict_error(
            f"Instance group {group.name} is {group.phase}; wait until it is InService."
        )

"""UpdateCluster: groups added, changed, grown, shrunk and removed, and the cluster's own fields."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpctl.sandbox.emulator.errors import conflict, not_found, validation
from hpctl.sandbox.emulator.operations import counts_of
from hpctl.sandbox.emulator.scaling import Scaling, failure_of
from hpctl.sandbox.emulator.shapes import Body
from hpctl.sandbox.emulator.specs import RoleOf, check_groups, check_orchestrator, group_of
from hpctl.sandbox.emulator.state import Cluster, Group, Node, World
from hpctl.sandbox.emulator.walks import Walks

_CHANGED_AT_ONCE = ("NodeRecovery", "ClusterRole", "TieredStorageConfig", "Orchestrator")
_FIXED = ("InstanceType", "ThreadsPerCore", "OverrideVpcConfig", "NetworkInterface")
"""Of a group. InstanceType must match what was given before (the developer guide's page on
update-cluster); the network interfaces of instances that are there cannot change either."""


@dataclass(slots=True)
class UpdateOperation:
    """UpdateCluster. `roles` says what groups without SlurmConfig are."""

    world: World
    walks: Walks
    scaling: Scaling
    roles: RoleOf
    chance: random.Random = field(
        default_factory=lambda: random.Random(0)  # noqa: S311 -- which instance a scale-down takes
    )

    def update_cluster(self, request: Body) -> Body:
        """UpdateCluster: refused whole, or begun whole. A shrink takes instances at random."""
        cluster = self.world.cluster(request["ClusterName"])
        self._check_free(cluster)
        restated = {g["InstanceGroupName"]: g for g in request.get("InstanceGroups", [])}
        leaving = list(request.get("InstanceGroupsToDelete", []))
        self._check(cluster, request, restated, leaving)
        for key in _CHANGED_AT_ONCE:
            if key in request:
                cluster.spec[key] = request[key]
        before = counts_of(cluster)
        new: list[Node] = []
        going: list[Node] = []
        for name, spec in restated.items():
            made, lost = self._restate(cluster, name, spec)
            new += made
            going += lost
        for name in leaving:
            cluster.groups[name].phase = "Deleting"
            cluster.groups[name].target = 0
            going += [n for n in cluster.nodes.values() if n.group.name == name and not n.doomed]
        self.scaling.begun(cluster, before)
        if new or going or leaving:
            self._begin(cluster, new, going, leaving, before)
        return {"ClusterArn": cluster.arn}

    # --- checks -------------------------------------------------------------------------------

    def _check_free(self, cluster: Cluster) -> None:
        if cluster.status != "InService":
            raise conflict(
                f"Cluster {cluster.name} is {cluster.status}; wait until it is InService."
            )
        if self.walks.launches.operations.active(cluster, "DeepHealthCheck"):
            raise conflict(f"Deep health checks are in progress on cluster {cluster.name}.")

    def _check(
        self, cluster: Cluster, request: Body, restated: Mapping[str, Any], leaving: list[str]
    ) -> None:
        mode = request.get("NodeProvisioningMode")
        if mode and mode != cluster.spec.get("NodeProvisioningMode"):
            raise validation("NodeProvisioningMode of an existing cluster cannot be changed.")
        if "Eks" in request.get("Orchestrator", {}):
            raise validation("The orchestrator of an existing cluster cannot be changed.")
        check_orchestrator({**cluster.spec, **request})
        for name in leaving:
            if name not in cluster.groups:
                raise not_found(f"Instance group {name} not found in cluster {cluster.name}.")
            if name in restated:
                raise validation(f"Instance group {name} is both updated and deleted.")
            if cluster.groups[name].role == "controller":
                raise validation("The controller instance group cannot be deleted.")
        if len(restated) != len(request.get("InstanceGroups", [])):
            raise validation("Instance group names must be unique.")
        stays = {n: g.spec for n, g in cluster.groups.items() if n not in leaving}
        check_groups(
            {**stays, **restated}.values(), self.world.releases, continuous=cluster.continuous
        )
        for name, spec in restated.items():
            if group := cluster.groups.get(name):
                _check_change(group, spec)
        self.walks.launches.capacity.check_plans(restated)
        self.walks.launches.capacity.check_quota(cluster, restated)

    # --- inside -------------------------------------------------------------------------------

    def _restate(self, cluster: Cluster, name: str, spec: Body) -> tuple[list[Node], list[Node]]:
        """Take over a group's new specification; the nodes that are new, and those that go."""
        fresh = name not in cluster.groups
        release = self.world.releases[-1]
        if fresh:
            cluster.groups[name] = group_of(spec, self.roles, release)
        group = cluster.groups[name]
        have = [n for n in cluster.nodes.values() if n.group is group and not n.doomed]
        before = 0 if fresh else group.target
        group.spec, group.target = dict(spec), int(spec["InstanceCount"])
        new = self.scaling.new_nodes(cluster, group, max(0, group.target - len(have)))
        if new:
            self.scaling.await_minimum(
                cluster,
                group,
                "Creating" if fresh else "Updating",
                before,
                lambda: self.scaling.drop_new(cluster, new),
            )
        surplus = max(0, len(have) - group.target)
        return new, self.chance.sample(have, surplus)

    def _begin(
        self,
        cluster: Cluster,
        new: list[Node],
        going: list[Node],
        leaving: list[str],
        before: Mapping[str, Body],
    ) -> None:
        if not cluster.continuous:
            self.scaling.settle(cluster, "Updating")
        self.walks.doom(cluster, going)
        launches = self.walks.launches

        def work() -> None:
            self.walks.destroy_all(cluster, going)
            with self.world.changed:
                for name in leaving:
                    cluster.groups.pop(name, None)
                self.world.changed.notify_all()
            failed = launches.launch_all(cluster, new, launches.timings.boot_s)
            if launches.threads.stopping.is_set() or cluster.continuous:
                return
            if failed:
                self._roll_back(cluster, new, failed[0], before)
            else:
                self.scaling.settle(cluster, "InService")

        launches.threads.spawn(work, f"update-{cluster.name}")

    def _roll_back(
        self, cluster: Cluster, new: list[Node], culprit: Node, before: Mapping[str, Body]
    ) -> None:
        """What the update added goes again; what it took is not brought back."""
        failure, trouble = failure_of(culprit), culprit.trouble
        self.scaling.settle(cluster, "RollingBack", failure, trouble)
        with self.world.lock:
            self.walks.doom(cluster, new)
        self.walks.destroy_all(cluster, new)
        with self.world.changed:
            for node in new:
                node.group.target -= 1
                if node.group.name not in before and node.group.target == 0:
                    cluster.groups.pop(node.group.name, None)
        self.scaling.settle(cluster, "InService", failure, trouble)


def _check_change(group: Group, spec: Mapping[str, Any]) -> None:
    """Raise ApiError ValidationException for what cannot be changed of a group that is there."""
    kinds = [one.get("SlurmConfig", {}).get("NodeType") for one in (spec, group.spec)]
    if kinds[0] != kinds[1]:
        raise validation(f"Instance group {group.name}: NodeType cannot be changed.")
    for key in _FIXED:
        if spec.get(key) != group.spec.get(key):
            raise validation(
                f"Instance group {group.name}: {key} of an existing instance group cannot be "
                "changed."
            )
    if group.role == "controller" and spec["InstanceCount"] < group.target:
        raise validation("The controller instance group cannot be scaled down.")
    if group.phase:
        raise conflict(f"Instance group {group.name} is {group.phase}; wait until it is InService.")

"""UpdateClusterSoftware: another image for groups, batch by batch, back again where it fails."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpctl.sandbox.emulator.errors import conflict, not_found, validation
from hpctl.sandbox.emulator.scaling import Scaling
from hpctl.sandbox.emulator.shapes import Body
from hpctl.sandbox.emulator.state import Cluster, Group, Node, World
from hpctl.sandbox.emulator.walks import Walks


@dataclass(slots=True)
class SoftwareOperation:
    """UpdateClusterSoftware. Jobs are not asked: root volumes are rewritten under them."""

    world: World
    walks: Walks
    scaling: Scaling

    def update_software(self, request: Body) -> Body:
        """UpdateClusterSoftware: all groups where none is named."""
        cluster = self.world.cluster(request["ClusterName"])
        if cluster.status != "InService":
            raise conflict(
                f"Cluster {cluster.name} is {cluster.status}; wait until it is InService."
            )
        if not self.scaling.batches_allowed(cluster):
            raise conflict("An instance group has not reached its MinInstanceCount yet.")
        wanted = {
            g["InstanceGroupName"]: g.get("ImageReleaseVersion", self.world.releases[-1])
            for g in request.get("InstanceGroups", [])
        } or dict.fromkeys(cluster.groups, self.world.releases[-1])
        for name, release in wanted.items():
            if name not in cluster.groups:
                raise not_found(f"Instance group {name} not found in cluster {cluster.name}.")
            if release not in self.world.releases:
                raise validation(f"There is no HyperPod AMI release {release}.")
        deployment = dict(request.get("DeploymentConfig", {}))
        if not self.world.unknowns.rolling_batches:
            deployment.pop("RollingUpdatePolicy", None)
        groups = [cluster.groups[name] for name in wanted]
        for group in groups:
            group.software.desired = wanted[group.name]
            group.software.image = _image(request, group)
            group.software.status, group.software.rollout = "Pending", deployment
            group.phase = "SystemUpdating"
        if not cluster.continuous:
            self.scaling.settle(cluster, "SystemUpdating")
        self.walks.launches.threads.spawn(
            lambda: self._update(cluster, groups, deployment), f"software-{cluster.name}"
        )
        return {"ClusterArn": cluster.arn}

    # --- inside -------------------------------------------------------------------------------

    def _update(self, cluster: Cluster, groups: list[Group], deployment: Body) -> None:
        for group in groups:
            policy = deployment.get("RollingUpdatePolicy", {})
            done: list[Node] = []
            group.software.status = "InProgress"
            good = self._roll(cluster, group, deployment, policy.get("MaximumBatchSize"), done)
            if self.walks.launches.threads.stopping.is_set():
                return
            if good:
                group.software.current = group.software.desired
                self._finish(group, "Succeeded")
            else:
                self._roll_back(cluster, group, policy.get("RollbackMaximumBatchSize"), done)
        self.scaling.settle(cluster, "InService")

    def _roll(
        self,
        cluster: Cluster,
        group: Group,
        deployment: Body,
        size: Body | None,
        done: list[Node],
    ) -> bool:
        """Update the group's nodes; those that were touched are in `done`. False: one failed."""
        pause_s = float(deployment.get("WaitIntervalInSeconds", 0))
        while batch := self._claim(cluster, group, size, done):
            done += batch
            if not self.walks.update_all(cluster, batch, group.software.desired):
                return False
            if self.walks.launches.threads.stopping.wait(pause_s):
                return True
        return True

    def _claim(
        self, cluster: Cluster, group: Group, size: Body | None, done: list[Node]
    ) -> list[Node]:
        """The next nodes to update, claimed; waits until they are free of other operations."""
        with self.world.changed:
            left = [
                n
                for n in cluster.nodes.values()
                if n.group is group and n not in done and n.state.instance_id and not n.doomed
            ]
            batch = left[: _batch(size, group.target)]
            self.world.changed.wait_for(
                lambda: (
                    self.walks.launches.threads.stopping.is_set()
                    or not any(n.operation for n in batch)
                )
            )
            for node in batch:
                self.walks.launches.claim(node, "SoftwareUpdate")
            return batch

    def _roll_back(
        self, cluster: Cluster, group: Group, size: Body | None, done: list[Node]
    ) -> None:
        """Give the nodes that were touched their old image; what fails then stays a Failure."""
        software = group.software
        software.status = "RollbackInProgress"
        software.current, software.desired = software.desired, software.current
        good = True
        for start in range(0, len(done), _batch(size, group.target)):
            batch = done[start : start + _batch(size, group.target)]
            for node in batch:
                self.walks.launches.claim(node, "SoftwareUpdate")
            good &= self.walks.update_all(cluster, batch, software.desired)
        software.current = software.desired
        self._finish(group, "RollbackComplete" if good else "Failed")
        self.walks.launches.events.record(
            cluster,
            f"Software update of instance group {group.name} was rolled back.",
            group=group,
            failure="An instance did not come up with the new image.",
        )

    def _finish(self, group: Group, status: str) -> None:
        with self.world.changed:
            group.software.status, group.software.rollout, group.phase = status, {}, ""
            self.world.changed.notify_all()


def _image(request: Body, group: Group) -> str:
    image = request.get("ImageId", group.software.image)
    return "" if image == "default" else str(image)


def _batch(size: Body | None, target: int) -> int:
    """How many nodes at once: all where no policy is given."""
    if not size:
        return max(1, target)
    if size["Type"] == "INSTANCE_COUNT":
        return int(size["Value"])
    return max(1, math.floor(target * int(size["Value"]) / 100))

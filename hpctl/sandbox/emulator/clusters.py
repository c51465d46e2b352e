"""CreateCluster, ListClusters, DeleteCluster."""

from __future__ import annotations

from dataclasses import dataclass

from hpctl.core.model import InstanceStatus
from hpctl.sandbox.emulator.errors import conflict, in_use
from hpctl.sandbox.emulator.pages import page
from hpctl.sandbox.emulator.scaling import Scaling, failure_of
from hpctl.sandbox.emulator.shapes import Body
from hpctl.sandbox.emulator.specs import (
    BOTH_STYLES,
    Parameters,
    both_styles,
    check_cluster,
    group_of,
)
from hpctl.sandbox.emulator.state import Cluster, Node, Software, World
from hpctl.sandbox.emulator.walks import Walks


@dataclass(slots=True)
class ClusterOperations:
    """The operations on whole clusters."""

    world: World
    walks: Walks
    scaling: Scaling
    parameters: Parameters

    def create_cluster(self, request: Body) -> Body:
        """CreateCluster: Creating, then InService; without Continuous RollingBack and Failed."""
        if any(c.name == request["ClusterName"] for c in self.world.clusters.values()):
            raise in_use(f"Cluster {request['ClusterName']} already exists.")
        check_cluster(request, self.world.releases)
        specs = {g["InstanceGroupName"]: g for g in request["InstanceGroups"]}
        self.walks.launches.capacity.check_plans(specs)
        self.walks.launches.capacity.check_quota(None, specs)
        cluster = Cluster(self.world.new_arn(), dict(request), self.world.now())
        self.world.clusters[cluster.arn] = cluster
        nodes: list[Node] = []
        for spec in request["InstanceGroups"]:
            latest = self.world.releases[-1]
            group = group_of(spec, self.parameters, Software(latest, latest))
            cluster.groups[group.name] = group
            nodes += self.scaling.new_nodes(cluster, group, group.target)
            self.scaling.await_minimum(cluster, group, "Creating", (0, 0))
        self.scaling.begun(cluster, {})
        self.walks.launches.threads.spawn(
            lambda: self._create(cluster, nodes), f"create-{cluster.name}"
        )
        return {"ClusterArn": cluster.arn}

    def list_clusters(self, request: Body) -> Body:
        """ListClusters, with the filters and both sort orders."""
        after, before = request.get("CreationTimeAfter"), request.get("CreationTimeBefore")
        found = [
            c
            for c in self.world.clusters.values()
            if request.get("NameContains", "") in c.name
            and (after is None or c.created > after)
            and (before is None or c.created < before)
        ]
        by_name = request.get("SortBy") == "NAME"
        found.sort(
            key=lambda c: (c.name if by_name else "", c.created),
            reverse=request.get("SortOrder") == "Descending",
        )
        clusters, token = page(found, request)
        body: Body = {
            "ClusterSummaries": [
                {
                    "ClusterArn": c.arn,
                    "ClusterName": c.name,
                    "CreationTime": c.created,
                    "ClusterStatus": c.status,
                }
                for c in clusters
            ]
        }
        return {**body, "NextToken": token} if token else body

    def delete_cluster(self, request: Body) -> Body:
        """DeleteCluster: every instance goes, then the cluster."""
        cluster = self.world.cluster(request["ClusterName"])
        if cluster.status not in ("InService", "Failed"):
            raise conflict(f"Cluster {cluster.name} is {cluster.status} and cannot be deleted.")
        cluster.status = "Deleting"
        nodes = [n for n in cluster.nodes.values() if not n.doomed]

        def gone() -> None:
            with self.world.changed:
                self.world.clusters.pop(cluster.arn, None)
                self.world.changed.notify_all()

        self.walks.delete(cluster, nodes, gone)
        return {"ClusterArn": cluster.arn}

    # --- inside -------------------------------------------------------------------------------

    def _create(self, cluster: Cluster, nodes: list[Node]) -> None:
        """The controller first, then login nodes, then workers; Continuous does not wait for
        these.
        """
        launches = self.walks.launches
        pause_s = launches.timings.create_s
        if both_styles((g.spec for g in cluster.groups.values()), self.parameters):
            launches.threads.stopping.wait(pause_s)
            self._give_up(cluster, nodes, nodes, BOTH_STYLES)
            return
        waiting = list(nodes)
        for role in ("controller", "login", "compute"):
            members = [n for n in waiting if n.group.role == role]
            if role == "login" and cluster.continuous:
                self._open(cluster, waiting, pause_s)
                return
            failed = launches.launch_all(cluster, members, pause_s)
            pause_s = 0.0 if members else pause_s
            waiting = [n for n in waiting if n not in members]
            if launches.threads.stopping.is_set():
                return
            if failed:
                self._give_up(cluster, nodes, waiting, failure_of(failed[0]), failed[0].trouble)
                return
        self.scaling.settle(cluster, "InService")

    def _open(self, cluster: Cluster, nodes: list[Node], pause_s: float) -> None:
        """Login nodes and workers in parallel; InService as soon as one login node is up, where
        there is a login group (sagemaker-hyperpod-scaling-slurm, "Priority-based provisioning").
        """
        launches, world = self.walks.launches, self.world
        logins = [n for n in nodes if n.group.role == "login"]

        def ready() -> bool:
            stopped = launches.threads.stopping.is_set() or cluster.status != "Creating"
            up = [n for n in logins if not n.doomed and n.state.status is InstanceStatus.RUNNING]
            return stopped or not logins or bool(up)

        def serve() -> None:
            with world.changed:
                world.changed.wait_for(ready)
                if not launches.threads.stopping.is_set() and cluster.status == "Creating":
                    self.scaling.settle(cluster, "InService")

        if logins:
            launches.threads.spawn(serve, f"serve-{cluster.name}")
        else:
            serve()
        launches.launch_all(cluster, nodes, pause_s)

    def _give_up(
        self,
        cluster: Cluster,
        nodes: list[Node],
        waiting: list[Node],
        failure: str,
        trouble: str = "",
    ) -> None:
        """The cluster is Failed; without Continuous its instances are taken back first."""
        for node in waiting:
            self.walks.launches.release(cluster, node)
        if not cluster.continuous:
            self.scaling.settle(cluster, "RollingBack", failure, trouble)
            with self.world.lock:
                self.walks.doom(cluster, nodes)
            self.walks.destroy_all(cluster, nodes)
        for node in nodes:
            node.wanting = False
        self.scaling.settle(cluster, "Failed", failure, trouble)

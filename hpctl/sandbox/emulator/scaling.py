"""How clusters and their groups grow and shrink: what create, update and the batches share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpctl.core.model import InstanceStatus
from hpctl.sandbox.emulator.launch import Launches
from hpctl.sandbox.emulator.operations import counts_of, running
from hpctl.sandbox.emulator.shapes import Body
from hpctl.sandbox.emulator.state import Cluster, Group, Node
from hpctl.sandbox.emulator.walks import Walks


@dataclass(slots=True)
class Scaling:
    """Growth of groups, with the events and operations that tell of it."""

    launches: Launches
    walks: Walks

    def new_nodes(self, cluster: Cluster, group: Group, count: int) -> list[Node]:
        """Places more in a group, claimed; with an instance each where there is capacity.

        The caller holds the lock.
        """
        nodes = [self.launches.world.new_node(cluster, group, launched=False) for _ in range(count)]
        for node in nodes:
            self.launches.claim(node, "Create")
            self.launches.obtain(cluster, node)
        return nodes

    def begun(self, cluster: Cluster, before: Mapping[str, Body]) -> None:
        """Note the change of counts since `before` (see counts_of) as an operation."""
        self.launches.operations.scaling(cluster, before, counts_of(cluster))
        for name, now in counts_of(cluster).items():
            if now["TargetCount"] == before.get(name, {}).get("TargetCount", 0):
                continue
            self.launches.events.record(
                cluster,
                f"Instance group {name} is scaling to {now['TargetCount']}.",
                group=cluster.groups[name],
                InstanceCount=now["CurrentCount"],
                TargetCount=now["TargetCount"],
                MinCount=now.get("MinCount", 0),
            )

    def settle(self, cluster: Cluster, status: str, failure: str = "", trouble: str = "") -> None:
        """Give a cluster its status and what is told of its failure."""
        with self.launches.world.changed:
            if cluster.status == status and cluster.failure == failure:
                return
            cluster.status, cluster.failure, cluster.trouble = status, failure, trouble
            self.launches.events.record(cluster, f"Cluster is {status}.", failure=failure)
            self.launches.operations.settle(cluster)
            self.launches.world.changed.notify_all()

    def await_minimum(
        self, cluster: Cluster, group: Group, phase: str, before: tuple[int, int]
    ) -> None:
        """Keep a group Creating or Updating until it has its minimum, or roll it back.

        `before` are target and minimum that it had. Returns at once. Each call begins the time
        anew, and the group goes back to what it was when it was last InService (the guide's
        sagemaker-hyperpod-scaling-slurm, "Automatic rollback behavior").
        """
        group.awaited += 1
        if not group.minimum or not cluster.continuous:
            group.phase = ""
            return
        if not group.phase:
            group.phase, group.settled = phase, before
        launches, mine = self.launches, group.awaited

        def over() -> bool:
            stopped = launches.threads.stopping.is_set() or group.awaited != mine
            return stopped or cluster.status in ("Failed", "Deleting")

        def reached() -> bool:
            return running(cluster, group) >= min(group.minimum, group.target)

        def work() -> None:
            with launches.world.changed:
                launches.world.changed.wait_for(
                    lambda: over() or reached(), launches.timings.minimum_s
                )
                if group.awaited != mine:
                    return
                if over():
                    group.phase = ""
                    return
                if not reached():
                    self._tell_minimum_missed(cluster, group)
                    self._take_back(cluster, group)
                group.phase = ""
                launches.world.changed.notify_all()

        launches.threads.spawn(work, f"minimum-{group.name}")

    def _take_back(self, cluster: Cluster, group: Group) -> None:
        """Back to the last settled counts: unhealthy instances go first, then the newest."""
        group.target, minimum = group.settled
        group.spec["InstanceCount"], group.spec["MinInstanceCount"] = group.target, minimum
        there = [n for n in cluster.nodes.values() if n.group is group and not n.doomed]
        there.sort(key=lambda n: n.state.launched, reverse=True)
        there.sort(key=lambda n: n.state.status is InstanceStatus.RUNNING)
        self.walks.delete(cluster, there[: max(0, len(there) - group.target)], lambda: None)

    def batches_allowed(self, cluster: Cluster) -> bool:
        """False while a group with a minimum is Creating or Updating."""
        return not any(g.phase in ("Creating", "Updating") for g in cluster.groups.values())

    def _tell_minimum_missed(self, cluster: Cluster, group: Group) -> None:
        self.launches.events.record(
            cluster,
            f"Instance group {group.name} is rolled back.",
            group=group,
            failure=f"Instance group {group.name} did not reach its MinInstanceCount of "
            f"{group.minimum} in time.",
            InstanceCount=running(cluster, group),
            TargetCount=group.target,
            MinCount=group.minimum,
        )


def failure_of(node: Node) -> str:
    """FailureMessage of a cluster for one of its instances (awsome-distributed-ai, issue 188)."""
    return (
        f"Instance {node.state.instance_id or node.logical_id} failed to provision with the "
        f'following error: "{node.state.message}" Note that multiple instances may be impacted.'
    )

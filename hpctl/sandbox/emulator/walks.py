"""What the service does to instances that are there, in threads: replace, reboot, check, delete.

One walk at a time has a node: `claim` gives it out, and while it lasts the API answers
InstanceIdInUse. The API's lock is never held while `Machines` is called.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from hpctl.core.model import InstanceStatus
from hpctl.sandbox.emulator.faults import FaultKind
from hpctl.sandbox.emulator.history import counts_of, running
from hpctl.sandbox.emulator.launch import NO_CAPACITY, Launches
from hpctl.sandbox.emulator.shapes import Body
from hpctl.sandbox.emulator.state import Cluster, Group, Node

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Walks:
    """The walks, over `launches` for whatever has to boot."""

    launches: Launches

    def replace(self, cluster: Cluster, node: Node, *, by: str = "customer") -> None:
        """Begin to replace a claimed node: Running → ShuttingDown → Pending → Running.

        The old instance id is listed while it shuts down, and is gone for good after that.
        """
        self.launches.change(
            cluster, node, InstanceStatus.SHUTTING_DOWN, f"Replacement began ({by})."
        )
        node.wanting = False
        self.launches.threads.spawn(lambda: self._replace(cluster, node), f"replace-{node.name}")

    def reboot(self, cluster: Cluster, node: Node) -> None:
        """Begin to reboot a claimed node. Its status stays Running, as an EC2 reboot's does:
        whoever waits for it must look at the boot id.
        """
        self.launches.events.record(cluster, "Reboot began.", node=node)
        self.launches.threads.spawn(lambda: self._reboot(cluster, node), f"reboot-{node.name}")

    def delete(self, cluster: Cluster, nodes: list[Node], done: Callable[[], None]) -> None:
        """Begin to shut down nodes for good, then call `done`."""
        self.doom(cluster, nodes)

        def work() -> None:
            self.destroy_all(cluster, nodes)
            done()

        self.launches.threads.spawn(work, f"delete-{cluster.name}")

    def doom(self, cluster: Cluster, nodes: Iterable[Node]) -> None:
        """Say of nodes that they are going, which also ends what is being done to them."""
        for node in nodes:
            node.doomed = True
            if not node.operation:
                self.launches.claim(node, "Delete")
            self.launches.change(cluster, node, InstanceStatus.SHUTTING_DOWN, "Deletion began.")

    def destroy_all(self, cluster: Cluster, nodes: list[Node]) -> None:
        """Take doomed nodes out of the cluster once nothing else has them. Blocks."""
        launches, world = self.launches, self.launches.world
        launches.threads.stopping.wait(launches.timings.shutdown_s)
        with world.changed:
            others = [n for n in nodes if n.operation != "Delete"]
            world.changed.wait_for(
                lambda: launches.threads.stopping.is_set() or not any(n.operation for n in others)
            )
            if any(n.operation for n in others):
                return  # everything ends where it stands
        for node in nodes:
            if node.state.instance_id:
                launches.machines.retire(node.machine())
            launches.events.record(cluster, "Instance deleted.", node=node)
            world.drop(cluster, node)
        with world.changed:
            launches.operations.settle(cluster)
            world.changed.notify_all()

    def reclaim(self, cluster: Cluster, node: Node) -> None:
        """Begin to take a claimed node's spot instance back: under continuous provisioning the
        node waits for another, else it is a Failure.
        """
        launches = self.launches
        launches.change(cluster, node, InstanceStatus.SHUTTING_DOWN, "Spot instance interrupted.")

        def work() -> None:
            launches.machines.destroy(node.machine())
            node.instance_type = ""
            if not self._given_up(node, launches.timings.shutdown_s):
                launches.starve(cluster, node)
            launches.release(cluster, node)

        launches.threads.spawn(work, f"reclaim-{node.name}")

    def update_all(self, cluster: Cluster, nodes: list[Node], release: str) -> bool:
        """Give claimed nodes another image: root volume rewritten, lifecycle script run again.

        Their instance ids stay. False where one did not come up. Blocks.
        """
        with ThreadPoolExecutor(self.launches.parallel_boots, "emulator-update") as pool:
            return all(list(pool.map(lambda n: self._update(cluster, n, release), nodes)))

    # --- inside -------------------------------------------------------------------------------

    def _update(self, cluster: Cluster, node: Node, release: str) -> bool:
        launches = self.launches
        launches.change(
            cluster, node, InstanceStatus.SYSTEM_UPDATING, f"Software update to {release} began."
        )
        launches.machines.destroy(node.machine())
        node.release = release
        good = launches.boot(cluster, node)
        if good:
            node.updated = launches.world.now()
        launches.release(cluster, node)
        return good

    def _replace(self, cluster: Cluster, node: Node) -> None:
        launches = self.launches
        try:
            launches.machines.destroy(node.machine())
            if self._given_up(node, launches.timings.shutdown_s):
                return
            with launches.world.lock:
                taken = launches.capacity.take(cluster, node)
                if (lingers_s := launches.world.unknowns.lingers_s) > 0:
                    cluster.leaving.append((time.monotonic() + lingers_s, node, node.state))
                launches.change(
                    cluster, node, InstanceStatus.PENDING, "Instance launched.", fresh=True
                )
            if self._given_up(node, launches.timings.boot_s):
                return
            if not taken:
                launches.fail(cluster, node, NO_CAPACITY)
                return
            if fault := launches.faults.take(FaultKind.NO_CAPACITY, names=node.names):
                launches.threads.stopping.wait(fault.seconds)
                launches.fail(cluster, node, NO_CAPACITY)
                return
            if launches.faults.take(FaultKind.STUCK, names=node.names):
                self._wait_unstuck(node)
            if not self._given_up(node, 0.0):
                launches.boot(cluster, node)
        except Exception as error:
            # Whatever breaks in a machine is, to the service, a node that fails.
            log.exception("replacement of %s failed", node.name)
            launches.fail(cluster, node, f"The replacement failed: {error}")
        finally:
            launches.release(cluster, node)

    def _given_up(self, node: Node, pause_s: float) -> bool:
        """Pause; whether the walk is to end here."""
        return self.launches.threads.stopping.wait(pause_s) or node.doomed

    def _wait_unstuck(self, node: Node) -> None:
        gate = self.launches.faults.stuck_gate()
        while not gate.wait(0.1) and not self._given_up(node, 0.0):
            continue

    def _reboot(self, cluster: Cluster, node: Node) -> None:
        launches = self.launches
        try:
            launches.reboot(node)
            launches.events.record(cluster, "Reboot ended.", node=node)
        except Exception as error:  # noqa: BLE001 -- any failure of the machine is a node's Failure
            log.warning("reboot of %s failed: %s", node.name, error)
            launches.fail(cluster, node, f"The instance did not come back after a reboot: {error}")
        finally:
            launches.release(cluster, node)


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

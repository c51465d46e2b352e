"""How instances come to be: capacity, lifecycle script, deep health checks, and another try.

Under continuous provisioning what failed is tried again every `retry_s`, as the service does;
without it the caller rolls back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from hpctl.core.model import InstanceStatus
from hpctl.sandbox.emulator.capacity import Capacity
from hpctl.sandbox.emulator.faults import FaultKind, Faults
from hpctl.sandbox.emulator.history import Events, Operations, running
from hpctl.sandbox.emulator.state import (
    Cluster,
    Group,
    Node,
    NodeState,
    Threads,
    World,
    new_instance_id,
    new_operation_id,
)
from hpctl.sandbox.machines import LifecycleFailed, Machines

log = logging.getLogger(__name__)

NO_CAPACITY = (
    "We currently do not have sufficient capacity to launch new ml instances. Please try again. "
    "(Service: Ec2, Status Code: 400, Error Code: InsufficientInstanceCapacity)"
)
LIFECYCLE = (
    "Lifecycle scripts did not run successfully. Ensure the scripts exist in provided S3 path, "
    "are accessible, and run without errors. Please see CloudWatch logs for lifecycle script "
    "execution details."
)
"""All that the service tells (awsome-distributed-ai, issue 188): why, is in the log stream."""


@dataclass(frozen=True, slots=True)
class Timings:
    """How long the service takes, in seconds; a real replacement takes 20-30 minutes.

    `retry_s` None: what failed under continuous provisioning is not tried again. `minimum_s` is
    the time a group has to reach its MinInstanceCount.
    """

    create_s: float = 0.0
    shutdown_s: float = 0.0
    boot_s: float = 1.0
    retry_s: float | None = None
    minimum_s: float = 3 * 3600.0
    health_check_s: float = 0.0


@dataclass(slots=True)
class Launches:
    """Makes instances run. `parallel_boots` bounds how many boot at the same time."""

    world: World
    machines: Machines
    faults: Faults
    events: Events
    operations: Operations
    capacity: Capacity
    threads: Threads
    timings: Timings
    parallel_boots: int = 4
    _booting: threading.Semaphore = field(init=False)
    _retrying: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._booting = threading.Semaphore(self.parallel_boots)

    # --- who has a node -----------------------------------------------------------------------

    def claim(self, node: Node, operation: str) -> None:
        """Mark a node as being worked on. The caller holds the lock and looked that it is free."""
        node.operation = operation
        node.operation_id = new_operation_id()

    def release(self, cluster: Cluster, node: Node) -> None:
        """The walk has ended: the node may be worked on again."""
        with self.world.changed:
            node.operation = ""
            self.operations.settle(cluster)
            self.world.changed.notify_all()

    # --- launching ----------------------------------------------------------------------------

    def obtain(self, cluster: Cluster, node: Node) -> bool:
        """Take capacity for a node and give it an instance id; False where there is none.

        The caller holds the lock, and answers for what the refusal means.
        """
        if not self.capacity.take(cluster, node):
            return False
        self.change(cluster, node, InstanceStatus.PENDING, "Instance launched.", fresh=True)
        return True

    def launch_all(self, cluster: Cluster, nodes: Iterable[Node], pause_s: float) -> list[Node]:
        """Boot new, claimed nodes, a few at a time; those that failed. Blocks."""
        wanted = list(nodes)
        if not wanted or self.threads.stopping.wait(pause_s):
            return []
        with ThreadPoolExecutor(self.parallel_boots, "emulator-launch") as pool:
            fine = list(pool.map(lambda node: self._launch(cluster, node), wanted))
        return [node for node, good in zip(wanted, fine, strict=True) if not good]

    def boot(self, cluster: Cluster, node: Node) -> bool:
        """Boot a node that has an instance: lifecycle script, slurmd, checks. Blocks."""
        node.trouble = ""
        scripted = bool(node.machine().on_create or node.machine().on_init_complete)
        if scripted:
            self._lifecycle(cluster, node, "Started")
        try:
            with self._booting:
                if self.threads.stopping.is_set():
                    return False
                self.machines.boot(node.machine())
        except LifecycleFailed as error:
            node.trouble = str(error)
            if scripted:
                self._lifecycle(cluster, node, "Failed", LIFECYCLE)
            self.fail(cluster, node, LIFECYCLE)
            return False
        except Exception as error:
            # Whatever breaks in a machine is, to the service, a node that fails.
            log.exception("boot of %s failed", node.name)
            self.fail(cluster, node, f"The instance did not start: {error}")
            return False
        if scripted:
            self._lifecycle(cluster, node, "Succeeded")
        if node.group.spec.get("OnStartDeepHealthChecks") and not node.doomed:
            self.change(
                cluster, node, InstanceStatus.DEEP_HEALTH_CHECK, "Deep health checks began."
            )
            self.threads.stopping.wait(self.timings.health_check_s)
        if not node.doomed:
            node.wanting = False
            self.change(cluster, node, InstanceStatus.RUNNING, "Instance is running.")
        return True

    def reboot(self, node: Node) -> None:
        """Reboot a node's machine, as one of the few boots at a time. Blocks."""
        with self._booting:
            self.machines.reboot(node.machine())

    def change(
        self,
        cluster: Cluster,
        node: Node,
        status: InstanceStatus,
        description: str,
        *,
        fresh: bool = False,
    ) -> None:
        """Give a node a new status, with `fresh` a new instance as well, and tell it."""
        state = replace(node.state, status=status)
        if fresh:
            state = replace(state, instance_id=new_instance_id(), launched=self.world.now())
            if node.state.instance_id and node.group.role == "compute":
                node.address = self.world.moved(node.address)
        with self.world.lock:
            self.world.set(node, state)
            self.events.record(cluster, description, node=node)

    def fail(self, cluster: Cluster, node: Node, message: str) -> None:
        """A node is a Failure from now on, for the reason that the API gives."""
        with self.world.lock:
            state = node.state
            self.world.set(
                node,
                NodeState(state.instance_id, InstanceStatus.FAILURE, message, state.launched),
            )
            self.events.record(cluster, "Instance failed.", node=node, failure=message)

    # --- inside -------------------------------------------------------------------------------

    def _launch(self, cluster: Cluster, node: Node) -> bool:
        try:
            if node.wanting and node.state.instance_id:
                self.machines.destroy(node.machine())
            with self.world.lock:
                there = node.state.instance_id is not None and not node.wanting
                if node.doomed or not (there or self.obtain(cluster, node)):
                    return self.starve(cluster, node)
            if self.faults.take(FaultKind.NO_CAPACITY, operation="Create", names=node.names):
                node.instance_type = ""
                return self.starve(cluster, node)
            good = self.boot(cluster, node)
            if not good:
                self._again(cluster, node)
            return good
        finally:
            self.release(cluster, node)

    def starve(self, cluster: Cluster, node: Node) -> bool:
        """There is no capacity: a node of a Continuous cluster waits Pending without an instance,
        others fail. Always false.
        """
        if node.doomed:
            return False
        if not cluster.continuous:
            self.fail(cluster, node, NO_CAPACITY)
            return False
        with self.world.lock:
            if node.state.message != NO_CAPACITY:
                self._tell_shortage(cluster, node.group)
            waiting = replace(
                node.state, instance_id=None, status=InstanceStatus.PENDING, message=NO_CAPACITY
            )
            self.world.set(node, waiting)
            self.events.record(
                cluster, "Instance could not be launched.", node=node, failure=NO_CAPACITY
            )
        self._again(cluster, node)
        return False

    def _tell_shortage(self, cluster: Cluster, group: Group) -> None:
        self.events.record(
            cluster,
            f"Instance group {group.name} could not be scaled to {group.target}.",
            group=group,
            failure=NO_CAPACITY,
            InstanceCount=running(cluster, group),
            TargetCount=group.target,
        )

    def _again(self, cluster: Cluster, node: Node) -> None:
        """Have a launch tried again later, where the cluster provisions continuously."""
        if not cluster.continuous or self.timings.retry_s is None:
            return
        with self.world.lock:
            node.wanting = True
            if cluster.arn not in self._retrying:
                self._retrying.add(cluster.arn)
                every = self.timings.retry_s
                self.threads.spawn(lambda: self._keep_trying(cluster, every), "retry")

    def _keep_trying(self, cluster: Cluster, every_s: float) -> None:
        while not self.threads.stopping.wait(every_s):
            with self.world.lock:
                if cluster.arn not in self.world.clusters or cluster.status == "Failed":
                    return
                wanting = [n for n in cluster.nodes.values() if n.wanting]
                ready = [n for n in wanting if not n.operation and not n.doomed]
                if not wanting:
                    self._retrying.discard(cluster.arn)
                    return
                for node in ready:
                    self.claim(node, "Create")
            self.launch_all(cluster, ready, 0.0)

    def _lifecycle(self, cluster: Cluster, node: Node, state: str, failure: str = "") -> None:
        with self.world.lock:
            self.events.record(
                cluster,
                f"Instance lifecycle script execution for EC2InstanceId "
                f"{node.state.instance_id} has {state}",
                node=node,
                failure=failure,
                LcsExecutionState=state,
            )

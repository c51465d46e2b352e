"""How instances come to be: capacity, lifecycle script, deep health checks, and another try.

Under continuous provisioning what failed is tried again every `retry_s`, as the service does;
without it the caller rolls back.

What the service does to instances that are there, in threads: replace, reboot, check, delete.

One walk at a time has a node: `claim` gives it out, and while it lasts the API answers
InstanceIdInUse. The API's lock is never held while `Machines` is called.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.sandbox.emulator.capacity import EmulatedCapacity
from hpctl.sandbox.emulator.faults import FaultInjector, FaultKind
from hpctl.sandbox.emulator.history import EventHistory, count_running_instances
from hpctl.sandbox.emulator.state import (
    EmulatedAwsRegion,
    EmulatedCluster,
    EmulatedInstanceGroup,
    EmulatedNode,
    EmulatedNodeState,
    StoppableThreads,
    make_instance_id,
    make_operation_id,
)
from hpctl.sandbox.machines import LifecycleScriptError, MachineBackend
from hpctl.vocabulary.cloud_facts import InstanceStatus

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
"""All that the service reports (awsome-distributed-ai, issue 188): why, is in the log stream."""


class ServiceTimings(Struct, frozen=True):
    """How long the service takes, in seconds; a real replacement takes 20-30 minutes.

    `retry_s` None: what failed under continuous provisioning is not tried again.
    """

    create_s: float = 0.0
    shutdown_s: float = 0.0
    boot_s: float = 1.0
    retry_s: float | None = None
    health_check_s: float = 0.0


class InstanceLauncher(Struct):
    """Makes instances run. `parallel_boots` bounds how many boot at the same time."""

    world: EmulatedAwsRegion
    machines: MachineBackend
    faults: FaultInjector
    events: EventHistory
    capacity: EmulatedCapacity
    threads: StoppableThreads
    timings: ServiceTimings
    parallel_boots: int = 4
    _booting: threading.Semaphore = field(default_factory=threading.Semaphore)
    _retrying: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._booting = threading.Semaphore(self.parallel_boots)

    def claim(self, node: EmulatedNode, operation: str) -> None:
        """Mark a node as being worked on. The caller holds the lock and looked that it is free."""
        node.operation = operation
        node.operation_id = make_operation_id()

    def release(self, cluster: EmulatedCluster, node: EmulatedNode) -> None:
        """The walk has ended: the node may be worked on again."""
        with self.world.changed:
            node.operation = ""
            self.world.changed.notify_all()

    def obtain_instance(self, cluster: EmulatedCluster, node: EmulatedNode) -> bool:
        """Take capacity for a node and give it an instance id; False where there is none.

        The caller holds the lock, and answers for what the refusal means.
        """
        if not self.capacity.take(cluster, node):
            return False
        self.change(cluster, node, InstanceStatus.PENDING, "Instance launched.", fresh=True)
        return True

    def launch_nodes(
        self, cluster: EmulatedCluster, nodes: Iterable[EmulatedNode], pause_s: float
    ) -> list[EmulatedNode]:
        """Boot new, claimed nodes, a few at a time; those that failed. Blocks."""
        wanted = list(nodes)
        if not wanted or self.threads.stopping.wait(pause_s):
            return []
        with ThreadPoolExecutor(self.parallel_boots, "emulator-launch") as pool:
            fine = list(pool.map(lambda node: self._launch_node(cluster, node), wanted))
        return [node for node, good in zip(wanted, fine, strict=True) if not good]

    def boot(self, cluster: EmulatedCluster, node: EmulatedNode) -> bool:
        """Boot a node that has an instance: lifecycle script, slurmd, checks. Blocks."""
        node.trouble = ""
        scripted = bool(node.machine().on_create or node.machine().on_init_complete)
        if scripted:
            self._record_lifecycle_event(cluster, node, "Started")
        try:
            with self._booting:
                if self.threads.stopping.is_set():
                    return False
                self.machines.boot(node.machine())
        except LifecycleScriptError as error:
            node.trouble = str(error)
            if scripted:
                self._record_lifecycle_event(cluster, node, "Failed", LIFECYCLE)
            self.fail(cluster, node, LIFECYCLE)
            return False
        except Exception as error:
            # Whatever breaks in a machine is, to the service, a node that fails.
            log.exception("boot of %s failed", node.name)
            self.fail(cluster, node, f"The instance did not start: {error}")
            return False
        if scripted:
            self._record_lifecycle_event(cluster, node, "Succeeded")
        if node.group.spec.get("OnStartDeepHealthChecks") and not node.doomed:
            self.change(
                cluster, node, InstanceStatus.DEEP_HEALTH_CHECK, "Deep health checks began."
            )
            self.threads.stopping.wait(self.timings.health_check_s)
        if not node.doomed:
            node.wanting = False
            self.change(cluster, node, InstanceStatus.RUNNING, "Instance is running.")
        return True

    def reboot(self, node: EmulatedNode) -> None:
        """Reboot a node's machine, as one of the few boots at a time. Blocks."""
        self.threads.stopping.wait(self.timings.boot_s)
        with self._booting:
            self.machines.reboot(node.machine())

    def change(
        self,
        cluster: EmulatedCluster,
        node: EmulatedNode,
        status: InstanceStatus,
        description: str,
        *,
        fresh: bool = False,
    ) -> None:
        """Give a node a new status, with `fresh` a new instance as well, and record it."""
        state = replace(node.state, status=status)
        if fresh:
            state = replace(state, instance_id=make_instance_id(), launched=self.world.now())
            if node.state.instance_id and node.group.role == "compute":
                node.address = self.world.moved(node.address)
        with self.world.lock:
            self.world.set(node, state)
            self.events.record(cluster, description, node=node)

    def fail(self, cluster: EmulatedCluster, node: EmulatedNode, message: str) -> None:
        """A node is a Failure from now on, for the reason that the API gives."""
        with self.world.lock:
            state = node.state
            self.world.set(
                node,
                EmulatedNodeState(
                    state.instance_id, InstanceStatus.FAILURE, message, state.launched
                ),
            )
            self.events.record(cluster, "Instance failed.", node=node, failure=message)

    def _launch_node(self, cluster: EmulatedCluster, node: EmulatedNode) -> bool:
        try:
            if node.wanting and node.state.instance_id:
                self.machines.destroy(node.machine())
            with self.world.lock:
                there = node.state.instance_id is not None and not node.wanting
                if node.doomed or not (there or self.obtain_instance(cluster, node)):
                    return self.mark_node_without_capacity(cluster, node)
            if self.faults.take(FaultKind.NO_CAPACITY, operation="Create", names=node.names):
                node.instance_type = ""
                return self.mark_node_without_capacity(cluster, node)
            good = self.boot(cluster, node)
            if not good:
                self._schedule_retry(cluster, node)
            return good
        finally:
            self.release(cluster, node)

    def mark_node_without_capacity(self, cluster: EmulatedCluster, node: EmulatedNode) -> bool:
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
                self._record_capacity_shortage_event(cluster, node.group)
            waiting = replace(
                node.state, instance_id=None, status=InstanceStatus.PENDING, message=NO_CAPACITY
            )
            self.world.set(node, waiting)
            self.events.record(
                cluster, "Instance could not be launched.", node=node, failure=NO_CAPACITY
            )
        self._schedule_retry(cluster, node)
        return False

    def _record_capacity_shortage_event(
        self, cluster: EmulatedCluster, group: EmulatedInstanceGroup
    ) -> None:
        self.events.record(
            cluster,
            f"Instance group {group.name} could not be scaled to {group.target}.",
            group=group,
            failure=NO_CAPACITY,
            InstanceCount=count_running_instances(cluster, group),
            TargetCount=group.target,
        )

    def _schedule_retry(self, cluster: EmulatedCluster, node: EmulatedNode) -> None:
        """Have a launch tried again later, where the cluster provisions continuously."""
        if not cluster.continuous or self.timings.retry_s is None:
            return
        with self.world.lock:
            node.wanting = True
            if cluster.arn not in self._retrying:
                self._retrying.add(cluster.arn)
                every = self.timings.retry_s
                self.threads.spawn(lambda: self._retry_pending_launches(cluster, every), "retry")

    def _retry_pending_launches(self, cluster: EmulatedCluster, every_s: float) -> None:
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
            self.launch_nodes(cluster, ready, 0.0)

    def _record_lifecycle_event(
        self, cluster: EmulatedCluster, node: EmulatedNode, state: str, failure: str = ""
    ) -> None:
        with self.world.lock:
            self.events.record(
                cluster,
                f"Instance lifecycle script execution for EC2InstanceId "
                f"{node.state.instance_id} has {state}",
                node=node,
                failure=failure,
                LcsExecutionState=state,
            )


class NodeTransitions(Struct):
    """The walks, over `launches` for whatever has to boot."""

    launches: InstanceLauncher

    def replace(
        self, cluster: EmulatedCluster, node: EmulatedNode, *, by: str = "customer"
    ) -> None:
        """Begin to replace a claimed node: Running → ShuttingDown → Pending → Running.

        The old instance id is listed while it shuts down, and is gone for good after that.
        """
        self.launches.change(
            cluster, node, InstanceStatus.SHUTTING_DOWN, f"Replacement began ({by})."
        )
        node.wanting = False
        self.launches.threads.spawn(
            lambda: self._replace_node(cluster, node), f"replace-{node.name}"
        )

    def reboot(self, cluster: EmulatedCluster, node: EmulatedNode) -> None:
        """Begin to reboot a claimed node. Its status stays Running, as an EC2 reboot's does:
        a waiting client must look at the boot id.
        """
        self.launches.events.record(cluster, "Reboot began.", node=node)
        self.launches.threads.spawn(lambda: self._reboot_node(cluster, node), f"reboot-{node.name}")

    def delete(
        self, cluster: EmulatedCluster, nodes: list[EmulatedNode], done: Callable[[], None]
    ) -> None:
        """Begin to shut down nodes for good, then call `done`."""
        self.mark_for_deletion(cluster, nodes)

        def delete_nodes() -> None:
            self.destroy_nodes(cluster, nodes)
            done()

        self.launches.threads.spawn(delete_nodes, f"delete-{cluster.name}")

    def mark_for_deletion(self, cluster: EmulatedCluster, nodes: Iterable[EmulatedNode]) -> None:
        """Say of nodes that they are going, which also ends what is being done to them."""
        for node in nodes:
            node.doomed = True
            if not node.operation:
                self.launches.claim(node, "Delete")
            self.launches.change(cluster, node, InstanceStatus.SHUTTING_DOWN, "Deletion began.")

    def destroy_nodes(self, cluster: EmulatedCluster, nodes: list[EmulatedNode]) -> None:
        """Take doomed nodes out of the cluster once nothing else has them. Blocks."""
        launches, world = self.launches, self.launches.world
        launches.threads.stopping.wait(launches.timings.shutdown_s)
        with world.changed:
            others = [n for n in nodes if n.operation != "Delete"]
            world.changed.wait_for(
                lambda: launches.threads.stopping.is_set() or not any(n.operation for n in others)
            )
            if any(n.operation for n in others):
                return  # everything ends where it is
        for node in nodes:
            if node.state.instance_id:
                launches.machines.retire(node.machine())
            launches.events.record(cluster, "Instance deleted.", node=node)
            world.drop(cluster, node)
        with world.changed:
            world.changed.notify_all()

    def start_spot_reclaim(self, cluster: EmulatedCluster, node: EmulatedNode) -> None:
        """Begin to take a claimed node's spot instance back: under continuous provisioning the
        node waits for another, else it is a Failure.
        """
        launches = self.launches
        launches.change(cluster, node, InstanceStatus.SHUTTING_DOWN, "Spot instance interrupted.")

        def reclaim_node() -> None:
            launches.machines.destroy(node.machine())
            node.instance_type = ""
            if not self._pause_and_check_transition_canceled(node, launches.timings.shutdown_s):
                launches.mark_node_without_capacity(cluster, node)
            launches.release(cluster, node)

        launches.threads.spawn(reclaim_node, f"reclaim-{node.name}")

    def update_software_of_nodes(
        self, cluster: EmulatedCluster, nodes: list[EmulatedNode], release: str
    ) -> bool:
        """Give claimed nodes another image: root volume rewritten, lifecycle script run again.

        Their instance ids stay. False where one did not come up. Blocks.
        """
        with ThreadPoolExecutor(self.launches.parallel_boots, "emulator-update") as pool:
            return all(
                list(pool.map(lambda n: self._update_node_software(cluster, n, release), nodes))
            )

    def _update_node_software(
        self, cluster: EmulatedCluster, node: EmulatedNode, release: str
    ) -> bool:
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

    def _replace_node(self, cluster: EmulatedCluster, node: EmulatedNode) -> None:
        launches = self.launches
        try:
            launches.machines.destroy(node.machine())
            if self._pause_and_check_transition_canceled(node, launches.timings.shutdown_s):
                return
            with launches.world.lock:
                taken = launches.capacity.take(cluster, node)
                launches.change(
                    cluster, node, InstanceStatus.PENDING, "Instance launched.", fresh=True
                )
            if self._pause_and_check_transition_canceled(node, launches.timings.boot_s):
                return
            if not taken:
                launches.fail(cluster, node, NO_CAPACITY)
                return
            fault = launches.faults.take(FaultKind.NO_CAPACITY, names=node.names)
            if fault:
                launches.threads.stopping.wait(fault.seconds)
                launches.fail(cluster, node, NO_CAPACITY)
                return
            if launches.faults.take(FaultKind.STUCK, names=node.names):
                self._wait_until_stuck_fault_cleared(node)
            if not self._pause_and_check_transition_canceled(node, 0.0):
                launches.boot(cluster, node)
        except Exception as error:
            # Whatever breaks in a machine is, to the service, a node that fails.
            log.exception("replacement of %s failed", node.name)
            launches.fail(cluster, node, f"The replacement failed: {error}")
        finally:
            launches.release(cluster, node)

    def _pause_and_check_transition_canceled(self, node: EmulatedNode, pause_s: float) -> bool:
        """Pause; whether the walk is to end here."""
        return self.launches.threads.stopping.wait(pause_s) or node.doomed

    def _wait_until_stuck_fault_cleared(self, node: EmulatedNode) -> None:
        gate = self.launches.faults.get_stuck_replacement_release_event()
        while not gate.wait(0.1) and not self._pause_and_check_transition_canceled(node, 0.0):
            continue

    def _reboot_node(self, cluster: EmulatedCluster, node: EmulatedNode) -> None:
        launches = self.launches
        try:
            launches.reboot(node)
            launches.events.record(cluster, "Reboot ended.", node=node)
        except Exception as error:  # noqa: BLE001 -- any failure of the machine is a node's Failure
            log.warning("reboot of %s failed: %s", node.name, error)
            launches.fail(cluster, node, f"The instance did not come back after a reboot: {error}")
        finally:
            launches.release(cluster, node)


class GroupScaler(Struct):
    """Growth of groups, with the events that report it."""

    launches: InstanceLauncher
    walks: NodeTransitions

    def new_nodes(
        self, cluster: EmulatedCluster, group: EmulatedInstanceGroup, count: int
    ) -> list[EmulatedNode]:
        """Places more in a group, claimed; with an instance each where there is capacity.

        The caller holds the lock.
        """
        nodes = [
            self.launches.world.add_pending_node(cluster, group, launched=False)
            for _ in range(count)
        ]
        for node in nodes:
            self.launches.claim(node, "Create")
            self.launches.obtain_instance(cluster, node)
        return nodes

    def begun(self, cluster: EmulatedCluster, before: Mapping[str, int]) -> None:
        """Record each change of a group's target since `before`, the targets by name."""
        for name, group in cluster.groups.items():
            if group.target != before.get(name, 0):
                self.launches.events.record(
                    cluster,
                    f"Instance group {name} is scaling to {group.target}.",
                    group=group,
                    InstanceCount=count_running_instances(cluster, group),
                    TargetCount=group.target,
                    MinCount=group.minimum,
                )

    def settle(
        self, cluster: EmulatedCluster, status: str, failure: str = "", trouble: str = ""
    ) -> None:
        """Give a cluster its status and the message of its failure."""
        with self.launches.world.changed:
            if cluster.status == status and cluster.failure == failure:
                return
            cluster.status, cluster.failure, cluster.trouble = status, failure, trouble
            self.launches.events.record(cluster, f"Cluster is {status}.", failure=failure)
            self.launches.world.changed.notify_all()


def format_failure_message(node: EmulatedNode) -> str:
    """FailureMessage of a cluster for one of its instances (awsome-distributed-ai, issue
    188)."""
    return (
        f"Instance {node.state.instance_id or node.logical_id} failed to provision with the "
        f'following error: "{node.state.message}" Note that multiple instances may be impacted.'
    )

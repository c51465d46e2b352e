"""The clusters, groups and nodes that the emulator keeps, and their identity rules.

A node is a place in a group: its name, Slurm node name and logical id stay for life, its address
too unless `World.moved` says otherwise.
The instance in it comes and goes, and with it the instance id. Every change of a node is kept
with its time, so that lists can be shown late, as the service's are."""

import secrets
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct, field

from hpctl.sandbox.emulator.faults import make_not_found_error
from hpctl.sandbox.machines import EmulatedMachine
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.cloud_facts import InstanceStatus
from hpctl.vocabulary.identity import InstanceId, LogicalId, NodeName
from hpctl.vocabulary.instance_join import guess_hyperpod_node_name

Role = Literal["controller", "login", "compute"]
Allocate = Callable[[str, Role], tuple[str, NodeName]]
"""Given an instance name (`<group>-<n>`) and its role, its IP address and Slurm node name."""

_GONE = 200
"""Deleted nodes kept a cluster, for lists that are late."""

FIRST_RELEASE = "1.0.0"
"""The HyperPod AMI release that clusters are created with while no later one is published."""

_HISTORY = 16
"""States kept a node: two whole replacements, more than any list is late."""


def make_instance_id() -> InstanceId:
    """`i-` and 17 hexadecimal digits, never the same twice."""
    return InstanceId(f"i-{secrets.token_hex(9)[:17]}")


def make_operation_id() -> str:
    """Return a UUID-shaped id, as SageMaker gives its operations and events."""
    text = secrets.token_hex(16)
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class EmulatedNodeState(Struct, frozen=True):
    """What the API says of a node at one time. No instance id: no instance was launched yet.

    `message` is sticky, as the service's is: the last failure stays there after it is fixed.
    """

    instance_id: InstanceId | None
    status: InstanceStatus
    message: str
    launched: datetime


class GroupImageState(Struct):
    """The image that a group has and is to have, by release version; how the last update ended."""

    current: str = FIRST_RELEASE
    desired: str = FIRST_RELEASE
    image: str = ""
    """A custom AMI, "" for HyperPod's own of that release."""
    status: str = ""


class EmulatedInstanceGroup(Struct):
    """An instance group: the specification as the customer gave it, and how many nodes it has."""

    spec: dict[str, Any]
    role: Role
    target: int = 0
    phase: str = ""
    """The status that an operation gives the group while it lasts, "" for none."""
    software: GroupImageState = field(default_factory=GroupImageState)
    legacy_partition: str = ""
    """What provisioning_parameters.json named when the group was made, "" with SlurmConfig."""

    @property
    def name(self) -> str:
        """InstanceGroupName."""
        return str(self.spec["InstanceGroupName"])

    @property
    def instance_types(self) -> tuple[str, ...]:
        """InstanceType, or the types of a flexible group in the order of its wishes."""
        plain = self.spec.get("InstanceType")
        return (plain,) if plain else tuple(self.spec["InstanceRequirements"]["InstanceTypes"])

    @property
    def instance_type(self) -> str:
        """InstanceType; of a flexible group the first."""
        return str(self.instance_types[0])

    @property
    def minimum(self) -> int:
        """MinInstanceCount, 0 where there is none."""
        return int(self.spec.get("MinInstanceCount", 0))

    @property
    def lifecycle(self) -> dict[str, Any]:
        """LifeCycleConfig, empty where the AMI does everything."""
        return dict(self.spec.get("LifeCycleConfig", {}))

    @property
    def partition(self) -> str:
        """Return the one partition of SlurmConfig, else of provisioning_parameters.json; "" for
        none."""
        names = self.spec.get("SlurmConfig", {}).get("PartitionNames") or [self.legacy_partition]
        return str(names[0])


class EmulatedNode(Struct, eq=False):
    """A place for an instance. `operation` names what is being done to it, "" for nothing.

    `doomed` is set when the cluster or group goes away under an operation, which then gives up.
    `wanting` is set while the service means to try a launch that failed again. `trouble` is what
    really went wrong last, which the API does not show.
    """

    group: EmulatedInstanceGroup
    number: int
    logical_id: LogicalId
    address: str
    node: NodeName
    operation: str = ""
    operation_id: str = ""
    doomed: bool = False
    wanting: bool = False
    trouble: str = ""
    instance_type: str = ""
    """What it was launched as; "" while it holds no capacity."""
    release: str = FIRST_RELEASE
    updated: datetime | None = None
    states: deque[tuple[float, EmulatedNodeState | None]] = field(
        default_factory=lambda: deque(maxlen=_HISTORY)
    )

    @property
    def name(self) -> str:
        """HyperPod's InstanceName, `<group>-<n>`."""
        return f"{self.group.name}-{self.number}"

    @property
    def spot(self) -> bool:
        """Return whether its group asks for spot capacity."""
        return "Spot" in self.group.spec.get("CapacityRequirements", {})

    @property
    def state(self) -> EmulatedNodeState:
        """Return the state now. A deleted node has none, and is no longer reached."""
        state = self.states[-1][1]
        if state is None:
            raise KeyError(self.name)
        return state

    @property
    def names(self) -> frozenset[str]:
        """Everything a fault may call this node by."""
        state = self.states[-1][1]
        instance = (str(state.instance_id),) if state and state.instance_id else ()
        return frozenset({*instance, self.logical_id, self.node, self.name})

    def get_state_at_time(self, moment: float) -> EmulatedNodeState | None:
        """Return the state at a moment of the monotonic clock; None before its birth, after its
        end."""
        found: EmulatedNodeState | None = None
        for when, state in self.states:
            if when > moment:
                break
            found = state
        return found

    def machine(self) -> EmulatedMachine:
        """Return the instance as the sandbox makes it real."""
        lifecycle = self.group.lifecycle
        return EmulatedMachine(
            instance_id=self.state.instance_id or InstanceId(""),
            logical_id=self.logical_id,
            name=self.name,
            group=self.group.name,
            instance_type=self.instance_type or self.group.instance_type,
            role=self.group.role,
            address=self.address,
            node=self.node,
            partition=self.group.partition,
            source_s3_uri=str(lifecycle.get("SourceS3Uri", "")),
            on_create=str(lifecycle.get("OnCreate", "")),
            on_init_complete=str(lifecycle.get("OnInitComplete", "")),
            spot=self.spot,
        )


class EmulatedCluster(Struct, eq=False):
    """A cluster. `spec` is CreateCluster's request as later updates have left it."""

    arn: str
    spec: dict[str, Any]
    created: datetime
    status: str = "Creating"
    failure: str = ""
    trouble: str = ""
    """What really went wrong, which the API does not show."""
    groups: dict[str, EmulatedInstanceGroup] = field(default_factory=dict)
    nodes: dict[LogicalId, EmulatedNode] = field(default_factory=dict)
    deleted: deque[EmulatedNode] = field(default_factory=lambda: deque(maxlen=_GONE))
    added: dict[str, tuple[float, dict[str, Any], list[LogicalId]]] = field(default_factory=dict)
    """BatchAddClusterNodes' client tokens: when, the request, the nodes it made."""
    checks: list[dict[str, Any]] = field(default_factory=list)
    """Its deep health checks, as ListClusterOperations has them, oldest first."""

    @property
    def name(self) -> str:
        """ClusterName."""
        return str(self.spec["ClusterName"])

    @property
    def continuous(self) -> bool:
        """NodeProvisioningMode=Continuous: logical ids, events, BatchAdd."""
        return bool(self.spec.get("NodeProvisioningMode") == "Continuous")

    @property
    def targets(self) -> dict[str, int]:
        """TargetCount by group."""
        return {name: group.target for name, group in self.groups.items()}

    @property
    def automatic(self) -> bool:
        """NodeRecovery=Automatic, which is the service's default."""
        return bool(self.spec.get("NodeRecovery", "Automatic") == "Automatic")

    @property
    def by_api(self) -> bool:
        """Return whether Slurm is configured through the API: its groups have SlurmConfig."""
        return any("SlurmConfig" in group.spec for group in self.groups.values())

    def find_node_of_instance(self, instance: str) -> EmulatedNode | None:
        """Return the node whose instance has that id now; ids of replaced instances find
        nothing."""
        for node in self.nodes.values():
            if node.state.instance_id == instance:
                return node
        return None


class EmulatedAwsRegion:
    """All clusters of one account in one region. Hold `lock` to read or change them."""

    def __init__(
        self,
        region: str,
        account: str,
        allocate: Allocate,
        *,
        moved: Callable[[str], str] = lambda address: address,
        zones: Mapping[str, str] | None = None,
    ) -> None:
        """`moved`: the address of an instance that replaces one at an address. `zones`:
        availability zones by subnet, where they are known."""
        self.region = region
        self.account = account
        self.allocate = allocate
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.clusters: dict[str, EmulatedCluster] = {}
        self.releases = [FIRST_RELEASE]
        self.moved = moved
        self.outdated: frozenset[str] = frozenset()
        """Releases from before January 2026: their agents know no SlurmConfig."""
        self.managed_by_default = False
        """Whether a cluster that names no SlurmConfigStrategy is Managed (the guide's
        sagemaker-hyperpod-ref), or Merge (its sagemaker-hyperpod-slurm-api-config-migration)."""
        self.zones = dict(zones or {})

    def now(self) -> datetime:
        """Return the wall clock, aware, UTC."""
        return datetime.now(UTC)

    def cluster(self, name_or_arn: str) -> EmulatedCluster:
        """Return the cluster of that name or ARN. Raises ApiError ResourceNotFound."""
        for cluster in self.clusters.values():
            if name_or_arn in (cluster.name, cluster.arn):
                return cluster
        raise make_not_found_error(f"Cluster with name or ARN {name_or_arn} not found.")

    def make_cluster_arn(self) -> str:
        """Return an ARN with a fresh cluster id of 12 characters."""
        return f"arn:aws:sagemaker:{self.region}:{self.account}:cluster/{secrets.token_hex(6)}"

    def dns_name(self, node: EmulatedNode) -> str:
        """PrivateDnsHostname: EC2's name by the address, and the region's domain."""
        host = guess_hyperpod_node_name(node.address, "")
        if self.region == "us-east-1":
            return f"{host}.ec2.internal"
        return f"{host}.{self.region}.compute.internal"

    def placement(self, cluster: EmulatedCluster, node: EmulatedNode) -> dict[str, str]:
        """Return the state of a node's instance."""
        zone = self.find_availability_zone(cluster, node.group)
        number = ord(zone[-1]) - ord("a") + 1
        parts = self.region.split("-")
        short = parts[0] + "".join(p[0] for p in parts[1:-1]) + parts[-1]
        return {"AvailabilityZone": zone, "AvailabilityZoneId": f"{short}-az{number}"}

    def find_availability_zone(self, cluster: EmulatedCluster, group: EmulatedInstanceGroup) -> str:
        """Return the availability zone of a group's first subnet."""
        vpc = group.spec.get("OverrideVpcConfig") or cluster.spec.get("VpcConfig") or {}
        subnet = next(iter(vpc.get("Subnets", ())), "")
        return self.zones.get(subnet, f"{self.region}a")

    def get_image_version_status(self, release: str) -> str:
        """ImageVersionStatus of what runs this release."""
        return "UpToDate" if release == self.releases[-1] else "UpdateAvailable"

    def find_image_id(self, release: str) -> str:
        """Return the id of HyperPod's own AMI of a release."""
        return f"ami-{zlib.crc32(f'{self.region}/{release}'.encode()):08x}"

    def add_pending_node(
        self, cluster: EmulatedCluster, group: EmulatedInstanceGroup, *, launched: bool
    ) -> EmulatedNode:
        """Return a node more in a group, Pending, with the lowest free number."""
        taken = {n.number for n in cluster.nodes.values() if n.group is group}
        number = next(n for n in range(1, len(taken) + 2) if n not in taken)
        address, slurm_name = self.allocate(f"{group.name}-{number}", group.role)
        logical = LogicalId(f"node-{secrets.token_hex(6)}")
        node = EmulatedNode(
            group, number, logical, address, slurm_name, release=group.software.desired
        )
        cluster.nodes[logical] = node
        instance = make_instance_id() if launched else None
        self.set(node, EmulatedNodeState(instance, InstanceStatus.PENDING, "", self.now()))
        return node

    def set(self, node: EmulatedNode, state: EmulatedNodeState | None) -> None:
        """Change a node and wake each thread that waits for it."""
        with self.changed:
            node.states.append((time.monotonic(), state))
            self.changed.notify_all()

    def drop(self, cluster: EmulatedCluster, node: EmulatedNode) -> None:
        """Take a node out of its cluster; late lists show it a while longer."""
        with self.changed:
            self.set(node, None)
            cluster.nodes.pop(node.logical_id, None)
            cluster.deleted.append(node)


def make_loopback_address_allocator() -> Allocate:
    """127.0.1.1, 127.0.1.2, ... with Slurm names `ip-127-0-1-1`, ...; an instance name that
    comes again gets its old address.
    """
    given: dict[str, tuple[str, NodeName]] = {}

    def allocate_address(name: str, _role: Role) -> tuple[str, NodeName]:
        if name not in given:
            high, low = divmod(len(given), 250)
            address = f"127.0.{high + 1}.{low + 1}"
            given[name] = (address, NodeName(guess_hyperpod_node_name(address, "")))
        return given[name]

    return allocate_address


class StoppableThreads(Struct):
    """A thread that waits looks at `stopping`, or is woken by the world's condition."""

    world: EmulatedAwsRegion
    stopping: threading.Event = field(default_factory=threading.Event)
    _running: list[threading.Thread] = field(default_factory=list)

    def spawn(self, work: Callable[[], object], name: str) -> None:
        """Run `work` in a separate thread, which `stop` waits for."""
        thread = threading.Thread(target=work, name=f"emulator-{name}", daemon=True)
        with self.world.lock:
            self._running = [t for t in self._running if t.is_alive()]
            self._running.append(thread)
        thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Have every thread end where it is, and wait for them."""
        self.stopping.set()
        with self.world.changed:
            threads = list(self._running)
            self.world.changed.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

"""The two Providers under the same suite: the fake, and boto3 against the emulator over HTTP."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from hpctl.engine.instance_resolver import InstanceToNodeMatcher
from hpctl.sagemaker.provider import InstanceAddressResolver, SageMakerProvider
from hpctl.sandbox.emulator import HyperPodEmulator, NullMachineBackend
from hpctl.sandbox.emulator.service import ApiCallLog
from hpctl.sandbox.emulator.state import Allocate, Role, make_loopback_address_allocator
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.cloud_facts import CloudProviderView, Instance
from hpctl.vocabulary.ports import CloudProvider
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmNode
from tests.fakes.provider import FakeProvider

ROLE = "arn:aws:iam::000000000000:role/hyperpod"
CLUSTER = "contract"
SANDBOX_KEYS = {
    "AWS_ACCESS_KEY_ID": "sandbox",
    "AWS_SECRET_ACCESS_KEY": "sandbox",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
}
MUTATIONS = ["BatchReplaceClusterNodes", "BatchRebootClusterNodes"]


def group(name: str, node_type: str, count: int, **more) -> dict[str, Any]:
    """An instance group as CreateCluster takes it."""
    partition = {"PartitionNames": ["dev"]} if node_type == "Compute" else {}
    return {
        "InstanceGroupName": name,
        "InstanceType": "ml.p5.48xlarge" if node_type == "Compute" else "ml.m5.xlarge",
        "InstanceCount": count,
        "ExecutionRole": ROLE,
        "SlurmConfig": {"NodeType": node_type, **partition},
        **more,
    }


def add(emulator: HyperPodEmulator, name: str, count: int = 1) -> None:
    """Order so many more workers."""
    more = [{"InstanceGroupName": "workers", "IncrementTargetCountBy": count}]
    answer = emulator.handle("BatchAddClusterNodes", {"ClusterName": name, "NodesToAdd": more})
    assert answer.status == 200


def cluster(name: str = CLUSTER, workers: int = 4, **more) -> dict[str, Any]:
    """A cluster as CreateCluster takes it: one controller and some workers."""
    groups = [group("controller", "Controller", 1), group("workers", "Compute", workers)]
    spec = {"ClusterName": name, "InstanceGroups": groups, "NodeRecovery": "None"}
    return {**spec, "NodeProvisioningMode": "Continuous", **more}


class _Nodes:
    provider: CloudProvider
    prefix = "ip-127-0-1-"
    """What the workers' names in Slurm begin with."""

    def worker(self, at: int = 0) -> Instance:
        found = [i for i in self.provider.view().instances.values() if i.group == "workers"]
        return sorted(found, key=lambda i: str(i.node))[at]

    def controller(self) -> Instance:
        return next(i for i in self.provider.view().instances.values() if i.protected)


class FakeBed(_Nodes):
    def __init__(self, workers: int = 4) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)
        names = [f"ip-127-0-1-{n}" for n in range(1, workers + 2)]
        self.head_ahead = timedelta()
        self.fake = FakeProvider(
            names,
            now=lambda: self.time,
            protected=names[:1],
            wall=lambda: self.time + self.head_ahead,
        )
        self.provider = self.fake

    def truly_replaced(self) -> list[str]:
        return [o.instance for o in self.fake.orders if o.kind == "replace"]

    def truly_rebooted(self) -> list[str]:
        return [o.instance for o in self.fake.orders if o.kind == "reboot"]

    def calls(self) -> list[tuple[str, ...]]:
        return [tuple(c.instances) for c in self.fake.calls]

    def settle(self) -> None:
        self.until(lambda: not self.fake.busy())

    def until(self, done: Callable[[], bool]) -> None:
        for _ in range(600):
            if done():
                return
            self.time += timedelta(seconds=1)
        raise AssertionError("it never came to pass")

    def __getattr__(self, name: str):
        """The other faults are the fake's own."""
        return getattr(self.fake, name)

    def unreadable(self, on: bool) -> None:
        self.fake.unreadable(1000 if on else 0)

    def vanish(self, node: str, on: bool) -> None:
        self.fake.vanish(node, 3600.0 if on else 0.0)


class EmulatorBed(_Nodes):
    provider: SageMakerProvider

    def __init__(self, workers: int = 4, allocate: Allocate | None = None, **more) -> None:
        self.head_ahead = timedelta()
        self.machines = NullMachineBackend()
        self.emulator = HyperPodEmulator(self.machines, boot_time_s=0.05, allocate=allocate)
        self.emulator.start()
        self.emulator.create(cluster(workers=workers, **more))
        self.emulator.wait_until_cluster_in_service(CLUSTER, 20)
        self.provider = SageMakerProvider(
            CLUSTER, region="us-west-2", endpoint_url=self.emulator.endpoint_url, read_attempts=3,
            sleep=lambda _seconds: None, now=lambda: datetime.now(UTC) + self.head_ahead,
        )  # fmt: skip

    def reset(self) -> None:
        """A fresh cluster on the same emulator: making a boto3 client costs far more."""
        emulator = self.emulator
        assert emulator.response_errors == []
        emulator.faults.clear()
        self.head_ahead = timedelta()
        world = emulator.world
        assert emulator.wait_until(
            lambda: not any(n.operation for c in world.clusters.values() for n in c.nodes.values()),
            10,
        )
        world.clusters.clear()
        self.machines.done.clear()
        emulator.calls = ApiCallLog()
        emulator.create(cluster())
        emulator.wait_until_cluster_in_service(CLUSTER, 20)

    def close(self) -> None:
        self.emulator.stop()
        assert self.emulator.response_errors == []

    def _did(self, verb: str) -> list[str]:
        return [instance for done, instance in self.machines.done if done == verb]

    def truly_replaced(self) -> list[str]:
        return self._did("destroy")

    def truly_rebooted(self) -> list[str]:
        return self._did("reboot")

    def calls(self) -> list[tuple[str, ...]]:
        return [c.node_ids for c in self.emulator.calls.all() if c.operation in MUTATIONS]

    def add(self, count: int) -> None:
        add(self.emulator, CLUSTER, count)

    def settle(self) -> None:
        self.emulator.wait_until_cluster_in_service(CLUSTER, 60)

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline, "it never came to pass"
            time.sleep(0.01)

    def lose_reply(self) -> None:
        self._next("drop_reply")

    def throttle(self) -> None:
        self._next("throttle")

    def deny(self) -> None:
        self._next("access_denied")

    def _next(self, fault: str) -> None:
        self.emulator.faults.add(fault, calls=1, operations=MUTATIONS)

    def fail(self, instance: str, code: str, *, accepted: bool = False) -> None:
        self.emulator.faults.add(
            "fail_nodes", calls=1, nodes=[instance], code=code, accepted=accepted
        )

    def unreadable(self, on: bool) -> None:
        if on:
            self.emulator.faults.add("throttle", operations=["DescribeCluster"])
        else:
            self.emulator.faults.clear("throttle")

    def no_capacity(self) -> None:
        self.emulator.faults.add("no_capacity", calls=1)

    def stick(self) -> None:
        self.emulator.faults.add("stuck", calls=1)

    def unstick(self) -> None:
        self.emulator.faults.clear("stuck")

    def vanish(self, node: str, on: bool) -> None:
        if on:
            self.emulator.faults.add("vanish", nodes=[node])
        else:
            self.emulator.faults.clear("vanish")

    def start_unrequested_recovery(self, instance: str) -> bool:
        return self.emulator.start_unrequested_recovery(instance)


Bed = FakeBed | EmulatorBed
"""A Provider, its fault switches, and the truth behind it."""


class JoinedProvider:
    """The adapter, and its view joined to the Slurm that the emulator's nodes would make."""

    def __init__(self, real: SageMakerProvider, emulator: HyperPodEmulator) -> None:
        self._real, self._world, self._joiner = real, emulator.world, InstanceToNodeMatcher()

    def __getattr__(self, name: str):
        return getattr(self._real, name)

    def forget_addresses(self) -> None:
        """And how many calls were spent on them: tests make clusters faster than anybody."""
        self._real._details = InstanceAddressResolver(
            CLUSTER, self._real._read.describe_cluster_node
        )

    def view(self) -> CloudProviderView:
        """Both as of one moment: an instance that moves between two reads is joined to nothing."""
        nodes = self._nodes()
        while True:
            view, before, nodes = self._real.view(), nodes, self._nodes()
            if nodes == before:
                return self._joiner.join(view, SchedulerView(view.as_of, nodes))[0]

    def _nodes(self) -> dict[str, SlurmNode]:
        with self._world.lock:
            return {
                node.node: SlurmNode(node.node, "IDLE", address=node.address)
                for found in self._world.clusters.values()
                for node in found.nodes.values()
                if node.group.role == "compute"
            }


class GroupBed(EmulatorBed):
    """Names by instance group, no DNS names, and a new address with each replacement."""

    prefix = "gpu-compute-"

    def __init__(self, workers: int = 4) -> None:
        addresses = make_loopback_address_allocator()

        def allocate(name: str, role: Role) -> tuple[str, str]:
            address, host = addresses(name, role)
            number = address.rpartition(".")[2]
            return address, f"{self.prefix}{number}" if role == "compute" else host

        super().__init__(workers, allocate)
        world = self.emulator.world
        world.moved = lambda address: address.replace("127.0.", "127.1.")
        self.emulator.faults.add("no_dns")
        self.provider = JoinedProvider(self.provider, self.emulator)

    def reset(self) -> None:
        super().reset()
        self.emulator.faults.add("no_dns")
        self.provider.forget_addresses()


class Client:
    """The API in-process: the same path as over HTTP, without the socket."""

    def __init__(self, emulator: HyperPodEmulator) -> None:
        self.emulator = emulator

    def __call__(self, operation: str, **request) -> dict[str, Any]:
        answer = self.emulator.handle(operation, request)
        assert answer.body is not None
        return answer.body


def counts(api: Client) -> dict[str, tuple[int, int]]:
    groups = api("DescribeCluster", ClusterName="demo")["InstanceGroups"]
    return {g["InstanceGroupName"]: (g["CurrentCount"], g["TargetCount"]) for g in groups}

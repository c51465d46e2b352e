"""The seam to the emulated service: it owns the instances, and boots them through Machines."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctl.clusters.failures import locate_lifecycle_log
from hpctl.clusters.request import FILE
from hpctl.sandbox.bootplan import make_hyperpod_resource_config
from hpctl.sandbox.emulator.faults import ServiceFault
from hpctl.sandbox.emulator.service import EmulatorSandboxOptions, HyperPodEmulator
from hpctl.sandbox.emulator.state import Role
from hpctl.sandbox.instances import HyperPodServiceCallbacks, LocalMachineBackend
from hpctl.sandbox.machines import (
    CONTROLLER_TYPE,
    LIFECYCLE_S3,
    ON_CREATE,
    WORKER_TYPE,
    EmulatedMachine,
    make_head_node_name,
)
from hpctl.sandbox.spec import SandboxSpec
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.cloud_facts import InstanceStatus
from hpctl.vocabulary.identity import NodeName

if TYPE_CHECKING:
    from hpctl.sandbox.other_aws import MotoServer

CREATE_TIMEOUT_S = 180.0
WATCH_INTERVAL_S = 1.0

# What a fault is called on the command line -> the emulator's kind and its defaults.
_MUTATIONS = ("BatchReplaceClusterNodes", "BatchRebootClusterNodes")
API_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "throttle": ("throttle", {"for_s": 30.0}),
    "latency": ("latency", {"seconds": 5.0}),
    "drop-reply": ("drop_reply", {"operations": _MUTATIONS, "calls": 1}),
    "partial": ("fail_nodes", {"calls": 1}),
    "no-capacity": ("no_capacity", {"seconds": 5.0, "calls": 1}),
    "stuck-replace": ("stuck", {}),
    "internal-error": ("internal_error", {"calls": 1}),
    "access-denied": ("access_denied", {}),
    "vanish": ("vanish", {}),
    "no-dns": ("no_dns", {}),
    "unpatched": ("unpatched", {"operations": ("BatchReplaceClusterNodes",)}),
    "list-lag": ("list_lag", {"seconds": 10.0}),
}


def _parse_capacity_counts(counts: Mapping[str, Any]) -> dict[str, int | None]:
    """Return counts as integers, None for `any`. Raises ValueError."""
    return {name: None if count == "any" else int(count) for name, count in counts.items()}


class SandboxHyperPodEmulator:
    """The emulator of one sandbox, with the one cluster that it starts with, or none."""

    def __init__(
        self, spec: SandboxSpec, machines: LocalMachineBackend, aws: MotoServer | None = None
    ) -> None:
        self._spec = spec
        self._machines = machines
        self._aws = aws
        self.emulator = HyperPodEmulator(
            machines,
            region="us-east-1",
            account="123456789012" if aws else "000000000000",
            boot_time_s=spec.boot_time,
            allocate=self._allocate_address,
            parameters=self._read_provisioning_parameters,
            port=spec.ports.emulator,
            watch_interval_s=WATCH_INTERVAL_S if spec.node_recovery == "Automatic" else None,
            retry_time_s=spec.retry_time if spec.empty else None,
            health_check_time_s=spec.health_check_time,
            site=EmulatorSandboxOptions(
                access_key=spec.access_key,
                places=spec.places + 1,
                zones=aws.filled["subnets"] if aws else {},
                moved=spec.make_replacement_address,
                give_notice=machines.give_notice,
            ),
        )
        if aws:
            machines.connect(
                HyperPodServiceCallbacks(
                    self._make_resource_config, aws.fetch, self._upload_lifecycle_log
                )
            )
        else:
            machines.connect(HyperPodServiceCallbacks(self._make_resource_config))

    def start(self) -> None:
        """Serve, and create the cluster; returns when all its instances run."""
        self.emulator.start()
        if self._spec.empty:
            return
        self.emulator.create(make_create_cluster_request(self._spec))
        self.emulator.wait_until_cluster_in_service(self._spec.cluster, CREATE_TIMEOUT_S)
        failed = [n for n in self._spec.names if self._machines.find_machine_of_node(n) is None]
        if failed:
            raise HpctlError(
                f"these nodes of the sandbox did not boot: {', '.join(failed)}",
                "Read their logs: hpctl sandbox logs",
            )

    def _allocate_address(self, name: str, role: Role) -> tuple[str, NodeName]:
        """Return the address of a free slot; the head's for the first controller.

        The instances that a sandbox starts with have the slots of their place in it.
        """
        spec = self._spec
        clusters = self.emulator.world.clusters.values()
        nodes = chain.from_iterable(cluster.nodes.values() for cluster in clusters)
        taken = {node.node for node in nodes}
        if role == "controller" and make_head_node_name(spec) not in taken:
            return spec.head_address, make_head_node_name(spec)
        free = [n for n in range(1, spec.places + 1) if spec.node(n) not in taken]
        mine = () if spec.empty else spec.find_initial_slot(name)
        newer = [n for n in free if n > spec.nodes]
        number = next((n for n in (*mine, *newer, *free) if n in free), None)
        if number is None:
            raise HpctlError(
                f"cannot add node {name}: the sandbox's slurm.conf has no free entry for it",
                "Start the sandbox with a larger --slots.",
            )
        return spec.address(number), NodeName(spec.node(number))

    def _read_provisioning_parameters(self, group: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the provisioning_parameters.json in a group's S3 prefix, if there is one to be
        read."""
        uri = group.get("LifeCycleConfig", {}).get("SourceS3Uri", "")
        if not self._aws or not uri:
            return None
        with tempfile.TemporaryDirectory() as directory:
            try:
                self._aws.fetch(uri, Path(directory))
                found = json.loads((Path(directory) / FILE).read_text())
            except (HpctlError, OSError, ValueError):
                return None
        return found if isinstance(found, dict) else None

    def _make_resource_config(self, machine: EmulatedMachine) -> dict[str, Any]:
        """resource_config.json: all groups and instances of the machine's cluster as of now."""
        with self.emulator.world.lock:
            cluster = self.emulator.find_cluster_of_node(machine.logical_id)
            if cluster is None:
                return {}
            instances = [n.machine() for n in cluster.nodes.values() if n.state.instance_id]
            groups = {g.name: g.instance_type for g in cluster.groups.values()}
            return make_hyperpod_resource_config(cluster.name, cluster.arn, groups, instances)

    def _upload_lifecycle_log(self, machine: EmulatedMachine, lines: list[str]) -> None:
        """Ship an instance's lifecycle log to where HyperPod puts it."""
        with self.emulator.world.lock:
            cluster = self.emulator.find_cluster_of_node(machine.logical_id)
        if cluster is None or self._aws is None:
            return
        where = locate_lifecycle_log(cluster.arn, cluster.name, machine.group, machine.instance_id)
        self._aws.log(where.group, where.stream, lines)

    def inject(self, kind: str, how: dict[str, Any]) -> str:
        """Put a fault of the API in force, or `clear` them. A line that says what was done."""
        if kind == "clear":
            which = API_KINDS[how["kind"]][0] if how.get("kind") in API_KINDS else None
            self.emulator.faults.clear(which)
            return f"api: {which or 'all faults'} cleared"
        if kind == "capacity":
            return self._inject_instance_capacity_limit(how)
        if kind == "spot-interruption":
            return self._interrupt_node(str(how.get("node", "")), float(how.get("seconds", 120)))
        if kind == "second-actor":
            return self._start_unrequested_node_replacement(str(how.get("node", "")))
        if kind not in API_KINDS:
            kinds = ", ".join(
                [*API_KINDS, "capacity", "spot-interruption", "second-actor", "clear"]
            )
            raise HpctlError(
                f"the sandbox has no fault {kind!r} for the emulated HyperPod API",
                f"Choose one of: {kinds}.",
            )
        name, defaults = API_KINDS[kind]
        given = {
            k: v.split(",") if k in ("operations", "nodes") and isinstance(v, str) else v
            for k, v in how.items()
        }
        return _describe_api_fault(kind, self.emulator.faults.add(name, **{**defaults, **given}))

    def _inject_instance_capacity_limit(self, how: dict[str, Any]) -> str:
        """`capacity ml.p5.48xlarge=3`: only so many are to be had; `quota=...` refuses instead."""
        # `quota=1 ml.p5.48xlarge=3`: the types, without the word that says what they are.
        counts = {name: count for name, count in how.items() if name != "quota"}
        bounds = {"quotas" if "quota" in how else "types": counts}
        try:
            given = {kind: _parse_capacity_counts(names) for kind, names in bounds.items()}
        except ValueError as error:
            raise HpctlError(
                f"the value of the fault `api capacity` is not valid: {error}",
                "Write an instance type and a number, such as ml.p5.48xlarge=3 or "
                "ml.p5.48xlarge=any.",
            ) from None
        self.emulator.capacity.set(given)
        return f"api: {json.dumps(self.emulator.capacity.list_capacity_limits())}"

    def _interrupt_node(self, node: str, notice_s: float) -> str:
        machine = self._machines.find_machine_of_node(node)
        if machine is None or not self.emulator.interrupt(machine.instance_id, notice_s):
            raise HpctlError(
                f"{node or 'nothing'} is not a Spot instance, so it cannot be interrupted",
                "Name a worker node in a group with CapacityRequirements Spot: node=NODE",
            )
        return f"api: {machine.instance_id} ({node}) is interrupted in {notice_s:g} s"

    def start_automatic_node_recovery(self, node: str, how: str) -> bool:
        """Let the service's recovery act on a node; return False where it is off, or cannot now."""
        machine = self._machines.find_machine_of_node(node)
        if machine is None:
            return False
        with self.emulator.world.lock:
            cluster = self.emulator.find_cluster_of_node(machine.logical_id)
        automatic = cluster is not None and cluster.automatic
        return automatic and self.emulator.start_unrequested_recovery(machine.instance_id, how)

    def is_settled(self, node: str) -> bool:
        """Return whether a node's instance runs and nothing is being done to it."""
        machine = self._machines.find_machine_of_node(node)
        with self.emulator.world.lock:
            cluster = self.emulator.find_cluster_of_node(machine.logical_id) if machine else None
            known = (
                cluster.find_node_of_instance(machine.instance_id) if cluster and machine else None
            )
            running = known is not None and known.state.status is InstanceStatus.RUNNING
            return running and known is not None and not known.operation

    def _start_unrequested_node_replacement(self, node: str) -> str:
        machine = self._machines.find_machine_of_node(node)
        if machine is None or not self.emulator.start_unrequested_recovery(machine.instance_id):
            raise HpctlError(
                f"cannot play a replacement of {node or 'no node'} by another user: it is no "
                "worker node that is free for it",
                "Name a worker node that is not being replaced or rebooted: hpctl sandbox inject "
                "api second-actor node=NODE",
            )
        return f"api: the service replaces {machine.instance_id} ({node}) without an order"


def _describe_api_fault(kind: str, fault: ServiceFault) -> str:
    parts = [
        f"{name}={value}"
        for name in ("operations", "nodes", "calls", "seconds", "for_s", "probability")
        if (value := getattr(fault, name)) not in ((), None, 0.0, 1.0)
    ]
    return " ".join([f"api: {kind}", *parts])


def make_create_cluster_request(spec: SandboxSpec) -> dict[str, Any]:
    """CreateCluster's request for this sandbox: a controller and the worker groups."""
    groups = [
        _make_instance_group_spec("controller", CONTROLLER_TYPE, 1, {"NodeType": "Controller"})
    ]
    for number in range(1, spec.groups + 1):
        name = f"worker-{number}"
        slurm = {"NodeType": "Compute", "PartitionNames": [name]}
        groups.append(
            _make_instance_group_spec(name, WORKER_TYPE, len(spec.members(number)), slurm)
        )
    return {
        "ClusterName": spec.cluster,
        "InstanceGroups": groups,
        "Orchestrator": {"Slurm": {}},
        "NodeProvisioningMode": "Continuous",
        "NodeRecovery": spec.node_recovery,
    }


def _make_instance_group_spec(
    name: str, kind: str, count: int, slurm: dict[str, Any]
) -> dict[str, Any]:
    return {
        "InstanceGroupName": name,
        "InstanceType": kind,
        "InstanceCount": count,
        "LifeCycleConfig": {"SourceS3Uri": LIFECYCLE_S3, "OnCreate": ON_CREATE},
        "ExecutionRole": "arn:aws:iam::000000000000:role/hpctl-sandbox",
        "ThreadsPerCore": 1,
        "SlurmConfig": slurm,
    }

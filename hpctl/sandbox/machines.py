"""What the HyperPod emulator needs from the code that runs its instances.

The emulator owns ids, states and the API; it knows an instance only as a `Machine` and reaches
its processes only through `Machines`. So the same emulator drives real slurmds in the sandbox
and a recording double in the emulator's own tests.
"""

import secrets
import threading
from typing import Any, Protocol

from msgspec import Struct

from hpctl.sandbox.spec import SandboxSpec
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import InstanceId, LogicalId, NodeName
from hpctl.vocabulary.instance_join import guess_hyperpod_node_name


class EmulatedMachine(Struct, frozen=True):
    """One instance of a cluster, from its creation to its end.

    `name` is HyperPod's `<group>-<n>` (n from 1), as in resource_config.json. `role` is
    `controller`, `login` or `compute`. `node` is the Slurm node name, which stays when the
    instance is replaced; `address` may be another then. The three lifecycle fields are those of
    the group's LifeCycleConfig, "" where it has none. `spot`: EC2 may take it back.
    """

    instance_id: InstanceId
    logical_id: LogicalId
    name: str
    group: str
    instance_type: str
    role: str
    address: str
    node: NodeName
    partition: str
    source_s3_uri: str
    on_create: str
    on_init_complete: str
    spot: bool = False


class LifecycleScriptError(HpctlError):
    """A lifecycle script failed; the message names script, exit code and last log line."""


class MachineBackend(Protocol):
    """What makes instances real. Calls may block for seconds; none is made twice at once
    for the same machine.
    """

    def boot(self, machine: EmulatedMachine) -> None:
        """Run the lifecycle entry script with HyperPod's environment, then slurmd and agent.

        Returns when slurmd runs. Raises LifecycleScriptError(message naming script, exit code, last
        log line).
        """

    def destroy(self, machine: EmulatedMachine) -> None:
        """Kill every process of the instance at once. Idempotent."""

    def retire(self, machine: EmulatedMachine) -> None:
        """Destroy, and let the node leave Slurm: its place in the cluster is gone."""

    def reboot(self, machine: EmulatedMachine) -> None:
        """Destroy, new boot id, slurmd and agent again; the lifecycle script is not re-run."""

    def alive(self, machine: EmulatedMachine) -> bool:
        """Return whether the instance's slurmd runs."""

    def has_partition_drift(self) -> bool:
        """Return whether slurm.conf has other partitions than the instances that are there make."""

    def restore_slurm_conf_partitions(self) -> None:
        """Write slurm.conf again, over any edit in it."""


class NullMachineBackend:
    """Boots nothing and remembers what it was asked, in order: `done` holds (verb, instance id).

    `fail_boot` holds instance names whose next boots fail as a lifecycle script would; `edited`
    says that a user has edited the partitions in slurm.conf.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._up: set[InstanceId] = set()
        self.done: list[tuple[str, InstanceId]] = []
        self.fail_boot: set[str] = set()
        self.edited = False

    def boot(self, machine: EmulatedMachine) -> None:
        """Remember it as up. Raises LifecycleScriptError for names in `fail_boot`."""
        with self._lock:
            self.done.append(("boot", machine.instance_id))
            if machine.name in self.fail_boot:
                raise LifecycleScriptError(
                    f"the lifecycle script on_create.sh on node {machine.name} exited with 1: no "
                    "such file"
                )
            self._up.add(machine.instance_id)

    def destroy(self, machine: EmulatedMachine) -> None:
        """Remember it as gone."""
        with self._lock:
            self.done.append(("destroy", machine.instance_id))
            self._up.discard(machine.instance_id)

    def retire(self, machine: EmulatedMachine) -> None:
        """Remember it as gone."""
        self.destroy(machine)

    def reboot(self, machine: EmulatedMachine) -> None:
        """Remember the reboot."""
        with self._lock:
            self.done.append(("reboot", machine.instance_id))

    def alive(self, machine: EmulatedMachine) -> bool:
        """Return whether it was booted and not destroyed since."""
        with self._lock:
            return machine.instance_id in self._up

    def has_partition_drift(self) -> bool:
        """Return whether a test says so."""
        return self.edited

    def restore_slurm_conf_partitions(self) -> None:
        """Forget the edits."""
        self.edited = False


CONTROLLER_TYPE = "ml.m5.xlarge"
WORKER_TYPE = "ml.p5.48xlarge"
LIFECYCLE_S3 = "s3://sagemaker-sandbox/lifecycle/"
ON_CREATE = "on_create.sh"


def make_initial_machines(spec: SandboxSpec) -> list[EmulatedMachine]:
    """Return one controller and the workers, with fresh ids, for a sandbox without the emulator."""
    names = {"name": "controller-1", "group": "controller", "instance_type": CONTROLLER_TYPE}
    at = {"address": spec.head_address, "node": make_head_node_name(spec), "partition": ""}
    controller = _make_emulated_machine(role="controller", **names, **at)
    return [controller, *(_make_worker(spec, number) for number in range(1, spec.nodes + 1))]


def _make_emulated_machine(**own: Any) -> EmulatedMachine:
    return EmulatedMachine(
        instance_id=InstanceId(f"i-{secrets.token_hex(9)[:17]}"),
        logical_id=LogicalId(secrets.token_hex(8)),
        source_s3_uri=LIFECYCLE_S3,
        on_create=ON_CREATE,
        on_init_complete="",
        **own,
    )


def make_head_node_name(spec: SandboxSpec) -> NodeName:
    """Return the head node's name, which is no Slurm node's."""
    return NodeName(guess_hyperpod_node_name(spec.head_address, ""))


def _make_worker(spec: SandboxSpec, number: int) -> EmulatedMachine:
    group = spec.group(number)
    index = spec.members(int(group.rsplit("-")[-1])).index(number) + 1
    at = {"address": spec.address(number), "node": NodeName(spec.node(number)), "partition": group}
    names = {"name": f"{group}-{index}", "group": group, "instance_type": WORKER_TYPE}
    return _make_emulated_machine(role="compute", **names, **at)

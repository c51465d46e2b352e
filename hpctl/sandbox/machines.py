"""What the HyperPod emulator asks of whoever runs its instances.

The emulator owns ids, states and the API; it knows an instance only as a `Machine` and reaches
its processes only through `Machines`. So the same emulator drives real slurmds in the sandbox
and a recording double in the emulator's own tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hpctl.core.model import InstanceId, LogicalId, NodeName
from hpctl.errors import HpctlError


@dataclass(frozen=True, slots=True)
class Machine:
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


class LifecycleFailed(HpctlError):
    """A lifecycle script failed; the message names script, exit code and last log line."""


class Machines(Protocol):
    """Whoever makes instances real. Calls may block for seconds; none is made twice at once
    for the same machine.
    """

    def boot(self, machine: Machine) -> None:
        """Run the lifecycle entry script with HyperPod's environment, then slurmd and agent.

        Returns when slurmd runs. Raises LifecycleFailed(message naming script, exit code, last
        log line).
        """
        ...

    def destroy(self, machine: Machine) -> None:
        """Kill every process of the instance at once. Idempotent."""
        ...

    def retire(self, machine: Machine) -> None:
        """Destroy, and let the node leave Slurm: its place in the cluster is no more."""
        ...

    def reboot(self, machine: Machine) -> None:
        """Destroy, new boot id, slurmd and agent again; the lifecycle script is not re-run."""
        ...

    def alive(self, machine: Machine) -> bool:
        """Whether the instance's slurmd runs."""
        ...

    def drifted(self) -> bool:
        """Whether slurm.conf has other partitions than the instances that are there make."""
        ...

    def write_partitions(self) -> None:
        """Write slurm.conf anew, whatever was edited in it."""
        ...

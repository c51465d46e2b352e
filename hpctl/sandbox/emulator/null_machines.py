"""Machines that are only remembered: for tests of the API alone."""

from __future__ import annotations

import threading

from hpctl.core.model import InstanceId
from hpctl.sandbox.machines import LifecycleFailed, Machine


class NullMachines:
    """Boots nothing and remembers what it was asked, in order: `done` holds (verb, instance id).

    `fail_boot` holds instance names whose next boots fail as a lifecycle script would; `edited`
    says that somebody has edited the partitions in slurm.conf.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._up: set[InstanceId] = set()
        self.done: list[tuple[str, InstanceId]] = []
        self.fail_boot: set[str] = set()
        self.edited = False

    def boot(self, machine: Machine) -> None:
        """Remember it as up. Raises LifecycleFailed for names in `fail_boot`."""
        with self._lock:
            self.done.append(("boot", machine.instance_id))
            if machine.name in self.fail_boot:
                raise LifecycleFailed(f"on_create.sh on {machine.name} exited with 1: no such file")
            self._up.add(machine.instance_id)

    def destroy(self, machine: Machine) -> None:
        """Remember it as gone."""
        with self._lock:
            self.done.append(("destroy", machine.instance_id))
            self._up.discard(machine.instance_id)

    def retire(self, machine: Machine) -> None:
        """Remember it as gone."""
        self.destroy(machine)

    def reboot(self, machine: Machine) -> None:
        """Remember the reboot."""
        with self._lock:
            self.done.append(("reboot", machine.instance_id))

    def alive(self, machine: Machine) -> bool:
        """Whether it was booted and not destroyed since."""
        with self._lock:
            return machine.instance_id in self._up

    def drifted(self) -> bool:
        """Whether a test says so."""
        return self.edited

    def write_partitions(self) -> None:
        """Forget the edits."""
        self.edited = False

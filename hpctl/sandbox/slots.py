"""The nodes in slurm.conf, as HyperPod's cluster agent keeps them while instances come and go.

A sandbox has so many slots, each with an address. A slot that nobody has is a FUTURE node, which
slurmctld does not show; one that an instance has is in `dev` and in its group's partition.
slurm.conf is rewritten and `scontrol reconfigure` makes slurmctld read it: so a slurmctld that is
started again knows the same nodes. Jobs that run go on, and drained nodes stay drained (seen on
22.05, 24.11 and 26.05).
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from pathlib import Path

from hpctl.sandbox import slurmconf
from hpctl.sandbox.bootplan import child_env
from hpctl.sandbox.machines import Machine
from hpctl.sandbox.packages import Programs
from hpctl.sandbox.spec import Spec

log = logging.getLogger(__name__)

TIMEOUT_S = 30
PAUSES_S = (0.1, 0.3, 0.0)
"""After each try of scontrol."""


class Slots:
    """Which nodes are in the cluster. Its methods may be called from any thread."""

    def __init__(self, spec: Spec, programs: Programs) -> None:
        self._spec = spec
        self._programs = programs
        self._lock = threading.Lock()
        self._members = slurmconf.initial_members(spec)
        places = range(1, spec.places + 1)
        self._addresses = {spec.node(n): spec.address(n) for n in places}
        self._partitions = list(dict.fromkeys(self._members.values()))

    def text(self) -> str:
        """The head node's slurm.conf as it should be now."""
        return slurmconf.render(
            self._spec,
            self._programs,
            self._spec.layout.munge_socket,
            self._members,
            self._partitions,
            self._addresses,
        )

    def join(self, machine: Machine) -> bool:
        """Let a machine's node be a node of its partition; whether it was none before.

        A partition stays when its last node leaves: jobs may be waiting in it.
        """
        with self._lock:
            node, partition = str(machine.node), machine.partition
            moved = self._addresses[node] != machine.address
            if self._members.get(node) == partition and not moved:
                return False
            self._members[node], self._addresses[node] = partition, machine.address
            if partition and partition not in self._partitions:
                self._partitions.append(partition)
            self._apply()
            return True

    def leave(self, machine: Machine) -> None:
        """Take a machine's node out of Slurm; its jobs end, or are requeued, as on a dead node."""
        with self._lock:
            if self._members.pop(str(machine.node), None) is None:
                return
            name = f"NodeName={machine.node}"
            self._scontrol("update", name, "State=DOWN", "Reason=instance deleted")
            self._scontrol("update", name, "State=FUTURE")
            self._apply()

    def drifted(self) -> bool:
        """Whether somebody has edited the partitions in slurm.conf since it was written."""
        with self._lock:
            found = self._spec.layout.slurm_conf.read_text()
            return _partitions(found) != _partitions(self.text())

    def rewrite(self) -> None:
        """Write slurm.conf anew, and make slurmctld read it."""
        with self._lock:
            self._apply()

    def _apply(self) -> None:
        conf = self._spec.layout.slurm_conf
        part = conf.with_suffix(".part")
        part.write_text(self.text())
        part.replace(conf)
        self._scontrol("reconfigure")

    def _scontrol(self, *words: str) -> None:
        """A slurmctld that just reads its configuration may hang up (22.05): ask it again.

        Without one nothing is lost: it reads slurm.conf when it is started again.
        """
        said = ""
        for pause_s in PAUSES_S:
            done = subprocess.run(
                [self._programs["scontrol"], *words],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
                env=child_env(self._spec),
                cwd=Path("/"),
            )
            if done.returncode == 0:
                return
            said = (done.stderr or done.stdout).strip()
            time.sleep(pause_s)
        log.warning("scontrol %s: %s", " ".join(words), said)


def _partitions(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("PartitionName="))

"""HyperPod's two actors in Slurm: the health agent that marks nodes, and the service behind it.

The health agent (HMA) reads a node's kernel log, and some seconds after a fault sets the node FAIL
with a Reason to the letter. With NodeRecovery=Automatic the service reads such Reasons, waits until
no job is left on the node, reboots or replaces the instance and gives the node back; with None
nobody does. Source: awslabs/awsome-distributed-ai, hyperpod-mental-model.md.
"""

from __future__ import annotations

import json
import logging
import random
import re
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hpctl.core.marks import MARKS
from hpctl.core.model import NodeName, SlurmNode
from hpctl.errors import HpctlError
from hpctl.sandbox.bootplan import child_env
from hpctl.sandbox.instances import LocalMachines
from hpctl.sandbox.packages import Programs
from hpctl.sandbox.spec import Spec
from hpctl.slurm import parse

log = logging.getLogger(__name__)

REPLACE_XIDS: Final = frozenset({64, 74, 79})
REBOOT_XIDS: Final = frozenset({46, 48, 62, 95, 109, 136, 140, 143, 154, 158})
"""What HMA asks for, as field notes have it; AWS calls the mapping internal. It leaves the rest."""
LOOK_S: Final = 0.2
SERVICE_LOOK_S: Final = 1.0
_XID = re.compile(rb";NVRM: Xid \([^)]*\): (\d+)")
_FATAL_SXID = re.compile(rb";nvidia-nvswitch\d+: SXid \([^)]*\): (\d+), Fatal")


class Slurm:
    """scontrol, as HyperPod's own programs on the head node use it."""

    def __init__(self, spec: Spec, programs: Programs) -> None:
        self._scontrol = programs["scontrol"]
        self._env = child_env(spec) | {"TZ": "UTC"}

    def scontrol(self, *words: str) -> str:
        """What it printed. Raises HpctlError with its words where it failed."""
        done = subprocess.run(
            [self._scontrol, *words],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env=self._env,
        )
        if done.returncode != 0:
            raise HpctlError(f"scontrol {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def nodes(self) -> dict[NodeName, SlurmNode]:
        """Every node. Raises HpctlError."""
        found, _ = parse.nodes(parse.node_lines(self.scontrol("show", "node", "-o")))
        return {node.name: node for node in found}


@dataclass(slots=True)
class _Watched:
    """What HMA knows of one boot of a node: how far it has read, and what it is about to ask."""

    boot: str
    read: int = 0
    ask: str = ""
    due: float = 0.0
    marked: bool = False


class Hma:
    """The health agents of all nodes. Each marks its node once in a boot."""

    def __init__(self, spec: Spec, programs: Programs, machines: LocalMachines) -> None:
        self._spec = spec
        self._slurm = Slurm(spec, programs)
        self._machines = machines
        self._seen: dict[str, _Watched] = {}
        self._chance = random.Random(spec.id)  # noqa: S311 -- when it wakes up, no secret

    def look(self) -> None:
        """Read what the kernels logged, and mark whom it is time to mark."""
        now = time.monotonic()
        for machine in self._machines.machines():
            if machine.role == "compute" and self._machines.alive(machine):
                self._look_at(str(machine.node), now)
        rate = self._spec.hma_false_marks * LOOK_S / 3600
        healthy = [n for n, seen in self._seen.items() if not (seen.ask or seen.marked)]
        if healthy and self._chance.random() < rate:
            self._ask(self._seen[self._chance.choice(healthy)], "Action:Reboot", now)

    def _look_at(self, node: str, now: float) -> None:
        directory = self._spec.layout.of_node(node)
        try:
            boot, kernel = (directory / "boot_id").read_text(), (directory / "kmsg").read_bytes()
        except FileNotFoundError:
            return
        seen = self._seen.get(node)
        if seen is None or seen.boot != boot:
            seen = self._seen[node] = _Watched(boot)
        wanted = wish(kernel[seen.read :])
        seen.read = len(kernel)
        if wanted and not seen.marked:
            self._ask(seen, wanted, now)
        if seen.ask and not seen.marked and now >= seen.due:
            mark(self._spec, self._slurm, node, seen.ask)
            seen.marked = True

    def _ask(self, seen: _Watched, wanted: str, now: float) -> None:
        if not seen.ask:
            seen.due = now + self._chance.uniform(*self._spec.hma_latency)
        seen.ask = max(seen.ask, wanted)  # Action:Replace outdoes Action:Reboot


def wish(kernel: bytes) -> str:
    """What HMA asks for on seeing these lines of a kernel log; "" for what it leaves alone."""
    codes = {int(code) for code in _XID.findall(kernel)}
    if codes & REPLACE_XIDS or _FATAL_SXID.search(kernel):
        return "Action:Replace"
    return "Action:Reboot" if codes & REBOOT_XIDS else ""


def mark(spec: Spec, slurm: Slurm, node: str, reason: str) -> str:
    """Mark a node as HMA does, in Slurm and in its own log. Raises HpctlError."""
    slurm.scontrol("update", f"NodeName={node}", "State=FAIL", f"Reason={reason}")
    action = MARKS[reason]
    record = {
        "level": "info",
        "ts": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "msg": "Event detail",
        "HealthMonitoringAgentDetectionEvent": "HealthEvent",
        "Event detail": {
            "Action": action,
            "Type": "NvidiaGPUUnhealthy",
            "Reason": f"NvidiaGpuXidErrorPending{action.capitalize()}",
            "Message": f"Slurm node {node} was set FAIL",
        },
    }
    with (spec.layout.of_node(node) / "hma.log").open("a") as own:
        own.write(json.dumps(record) + "\n")
    return f"{node}: State=FAIL Reason={reason}"


class Recovery:
    """What the service does about marked nodes while NodeRecovery is Automatic.

    `act` has it reboot or replace an instance, and says whether it could; `settled` says whether
    nothing is being done to it. Slurm's Reason is compared to the letter: one to which slurmctld
    has appended is not read.
    """

    def __init__(
        self,
        spec: Spec,
        programs: Programs,
        act: Callable[[str, str], bool],
        settled: Callable[[str], bool],
    ) -> None:
        self._slurm = Slurm(spec, programs)
        self._act = act
        self._settled = settled
        self._treated: dict[NodeName, float] = {}

    def look(self) -> None:
        """Act on whom no job holds any more, and give back whom it has treated."""
        for name, node in self._slurm.nodes().items():
            marked = node.reason in MARKS and not node.in_service
            began = self._treated.get(name)
            if began is not None:
                if self._is_back(node, began):
                    if marked:
                        self._slurm.scontrol("update", f"NodeName={name}", "State=RESUME")
                    del self._treated[name]
            elif marked and node.state in ("IDLE", "DOWN") and "COMPLETING" not in node.flags:
                began = time.time()
                if self._act(str(name), MARKS[node.reason]):
                    log.info("%s is marked %s; the service acts", name, node.reason)
                    self._treated[name] = began

    def _is_back(self, node: SlurmNode, began: float) -> bool:
        booted = node.boot_time is not None and node.boot_time.timestamp() >= int(began)
        return booted and node.responding and not node.down and self._settled(str(node.name))


def repeat(look: Callable[[], None], every_s: float, stopped: threading.Event) -> None:
    """Look again and again: a slurmctld that is away is asked later."""
    while not stopped.wait(every_s):
        try:
            look()
        except (HpctlError, OSError, subprocess.TimeoutExpired) as error:
            log.warning("%s", error)

"""Faults on nodes: what the kernel would log, and what a dying machine does.

HyperPod has two actors in Slurm. The health agent (HMA) reads a node's kernel log, and
some seconds after a fault sets the node FAIL with a Reason to the letter. With
NodeRecovery=Automatic the service reads such Reasons, waits until no job is left on the node,
reboots or replaces the instance and gives the node back; with None nothing does. Source:
awslabs/awsome-distributed-ai, hyperpod-mental-model.md.
"""

import json
import logging
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct

from hpctl.faults.hma_marks import MARKS
from hpctl.sandbox import hardware, instances
from hpctl.sandbox.bootplan import HARDWARE, LASTING, NVML_SCRIPT, make_sandbox_process_environment
from hpctl.sandbox.instances import LocalMachineBackend
from hpctl.sandbox.packages import SandboxPrograms
from hpctl.sandbox.proctree import send_signal_to_processes
from hpctl.sandbox.spec import SandboxPaths, SandboxSpec
from hpctl.slurm import parse
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.slurm_facts import SlurmNode

log = logging.getLogger(__name__)

REPLACE_XIDS: Final = frozenset({64, 74, 79})
REBOOT_XIDS: Final = frozenset({46, 48, 62, 95, 109, 136, 140, 143, 154, 158})
"""What HMA asks for, as field notes have it; AWS calls the mapping internal. It leaves the rest."""
LOOK_S: Final = 0.2
SERVICE_LOOK_S: Final = 1.0
_XID = re.compile(rb";NVRM: Xid \([^)]*\): (\d+)")
_FATAL_SXID = re.compile(rb";nvidia-nvswitch\d+: SXid \([^)]*\): (\d+), Fatal")


class HyperPodSlurmCommands:
    """scontrol, as HyperPod's own programs on the head node use it."""

    def __init__(self, spec: SandboxSpec, programs: SandboxPrograms) -> None:
        self._scontrol = programs["scontrol"]
        self._env = make_sandbox_process_environment(spec) | {"TZ": "UTC"}

    def scontrol(self, *arguments: str) -> str:
        """Return what it printed. Raises HpctlError with its message where it failed."""
        done = subprocess.run(
            [self._scontrol, *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env=self._env,
        )
        if done.returncode != 0:
            raise HpctlError(
                f"the command `scontrol {' '.join(arguments)}` in the sandbox failed: "
                f"{done.stderr.strip()}"
            )
        return done.stdout

    def nodes(self) -> dict[NodeName, SlurmNode]:
        """Return every node. Raises HpctlError."""
        found, _ = parse.parse_scontrol_nodes(
            parse.split_scontrol_node_lines(self.scontrol("show", "node", "-o"))
        )
        return {node.name: node for node in found}


class _NodeBootLogState(Struct):
    """What HMA knows of one boot of a node: how far it has read, and what it is about to ask."""

    boot: str
    read: int = 0
    ask: str = ""
    due: float = 0.0
    marked: bool = False


class HealthMonitoringAgent:
    """The health agents of all nodes. Each marks its node once in a boot."""

    def __init__(
        self, spec: SandboxSpec, programs: SandboxPrograms, machines: LocalMachineBackend
    ) -> None:
        self._spec = spec
        self._slurm = HyperPodSlurmCommands(spec, programs)
        self._machines = machines
        self._seen: dict[str, _NodeBootLogState] = {}
        self._chance = random.Random(spec.id)  # noqa: S311 -- when it wakes up, no secret

    def look(self) -> None:
        """Read what the kernels logged, and mark whom it is time to mark."""
        now = time.monotonic()
        for machine in self._machines.machines():
            if machine.role == "compute" and self._machines.alive(machine):
                self._process_node_kernel_log(str(machine.node), now)
        rate = self._spec.hma_false_marks * LOOK_S / 3600
        healthy = [n for n, seen in self._seen.items() if not (seen.ask or seen.marked)]
        if healthy and self._chance.random() < rate:
            self._schedule_recovery_action(
                self._seen[self._chance.choice(healthy)], "Action:Reboot", now
            )

    def _process_node_kernel_log(self, node: str, now: float) -> None:
        directory = self._spec.layout.of_node(node)
        try:
            boot, kernel = (directory / "boot_id").read_text(), (directory / "kmsg").read_bytes()
        except FileNotFoundError:
            return
        seen = self._seen.get(node)
        if seen is None or seen.boot != boot:
            seen = self._seen[node] = _NodeBootLogState(boot)
        wanted = choose_action_for_kernel_log(kernel[seen.read :])
        seen.read = len(kernel)
        if wanted and not seen.marked:
            self._schedule_recovery_action(seen, wanted, now)
        if seen.ask and not seen.marked and now >= seen.due:
            mark_node_for_recovery(self._spec, self._slurm, node, seen.ask)
            seen.marked = True

    def _schedule_recovery_action(self, seen: _NodeBootLogState, wanted: str, now: float) -> None:
        if not seen.ask:
            seen.due = now + self._chance.uniform(*self._spec.hma_latency)
        seen.ask = max(seen.ask, wanted)  # Action:Replace outdoes Action:Reboot


def choose_action_for_kernel_log(kernel: bytes) -> str:
    """Return what HMA asks for on seeing these lines of a kernel log; "" for what it leaves
    alone."""
    codes = {int(code) for code in _XID.findall(kernel)}
    if codes & REPLACE_XIDS or _FATAL_SXID.search(kernel):
        return "Action:Replace"
    return "Action:Reboot" if codes & REBOOT_XIDS else ""


def mark_node_for_recovery(
    spec: SandboxSpec, slurm: HyperPodSlurmCommands, node: str, reason: str
) -> str:
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


class EmulatedAutomaticNodeRecovery:
    """What the service does about marked nodes while NodeRecovery is Automatic.

    `act` has it reboot or replace an instance, and says whether it could; `settled` says whether
    nothing is being done to it. Slurm's Reason is compared to the letter: one to which slurmctld
    has appended is not read.
    """

    def __init__(
        self,
        spec: SandboxSpec,
        programs: SandboxPrograms,
        act: Callable[[str, str], bool],
        settled: Callable[[str], bool],
    ) -> None:
        self._slurm = HyperPodSlurmCommands(spec, programs)
        self._act = act
        self._settled = settled
        self._treated: dict[NodeName, float] = {}

    def look(self) -> None:
        """Act on each node that no job holds any longer, and give back each that was treated."""
        for name, node in self._slurm.nodes().items():
            marked = node.reason in MARKS and not node.in_service
            began = self._treated.get(name)
            if began is not None:
                if self._is_recovered_node_in_service(node, began):
                    if marked:
                        self._slurm.scontrol("update", f"NodeName={name}", "State=RESUME")
                    del self._treated[name]
            elif marked and node.state in ("IDLE", "DOWN") and "COMPLETING" not in node.flags:
                began = time.time()
                if self._act(str(name), MARKS[node.reason]):
                    log.info("%s is marked %s; the service acts", name, node.reason)
                    self._treated[name] = began

    def _is_recovered_node_in_service(self, node: SlurmNode, began: float) -> bool:
        booted = node.boot_time is not None and node.boot_time.timestamp() >= int(began)
        return booted and node.responding and not node.down and self._settled(str(node.name))


def run_callback_periodically(
    look: Callable[[], None], every_s: float, stopped: threading.Event
) -> None:
    """Look again and again: a slurmctld that is away is asked later."""
    while not stopped.wait(every_s):
        try:
            look()
        except (HpctlError, OSError, subprocess.TimeoutExpired) as error:
            log.warning("%s", error)


NODE_KINDS = (
    "xid", "sxid", "kmsg", "hang-agent", "kill-agent", "kill-slurmd", "kill-node", "boot-node",
    "freeze-node", "thaw-node", "partition", "heal", "file", "hardware", "gpu", "hma-reboot",
    "hma-replace",
)  # fmt: skip

_KERNEL_ERROR = 3
"""Facility kernel (0), level error: the PRI of NVIDIA's driver lines in /dev/kmsg."""

_PROCESS = "pid=4242, name=python3"
_TEXTS: dict[str, dict[int, str]] = yaml.safe_load(
    Path(__file__).with_name("driver_lines.yaml").read_text()
)
_DEFAULT_XID = f"{_PROCESS}, reported by the driver"
_DEFAULT_SXID = "Non-fatal, Link 0 reported by the switch"


def format_xid_line(code: int, pci: str = "", text: str = "") -> str:
    """Return the driver's line for an Xid on the GPU at `pci` (`0000:53:00`)."""
    tail = text or _TEXTS["xid"].get(code, _DEFAULT_XID)
    return f"NVRM: Xid (PCI:{pci or '0000:53:00'}): {code}, {tail}"


def format_sxid_line(code: int, pci: str = "", text: str = "") -> str:
    """Return the NVSwitch driver's line for an SXid on the switch at `pci` (`0000:c5:00.0`)."""
    tail = text or _TEXTS["sxid"].get(code, _DEFAULT_SXID)
    return f"nvidia-nvswitch0: SXid (PCI:{pci or '0000:c5:00.0'}): {code}, {tail}"


class NodeFaultInjector:
    """Breaks nodes of one sandbox."""

    def __init__(
        self, spec: SandboxSpec, programs: SandboxPrograms, machines: LocalMachineBackend
    ) -> None:
        self._spec = spec
        self._programs = programs
        self._machines = machines

    def inject(self, node: str, kind: str, **how: Any) -> str:
        """Do it; a line that says what was done. Raises HpctlError."""
        machine = self._machines.find_machine_of_node(node)
        if machine is None or machine.role != "compute":
            names = ", ".join(m.node for m in self._machines.machines() if m.role == "compute")
            raise HpctlError(f"the sandbox has no node {node}", f"Choose one of: {names}.")
        if kind in ("xid", "sxid", "kmsg"):
            return self._kernel(node, kind, **how)
        if kind in ("file", "hardware", "gpu"):
            return self._inject_device_fault(node, kind, **how)
        if kind in ("partition", "heal"):
            return self._set_node_network_cable_state(machine.address, node, up=kind == "heal")
        if kind.startswith("hma-"):
            slurm = HyperPodSlurmCommands(self._spec, self._programs)
            return mark_node_for_recovery(
                self._spec, slurm, node, f"Action:{kind[4:].capitalize()}"
            )
        if kind == "kill-node":
            self._machines.crash(node)
            return f"{node}: every process killed"
        if kind == "boot-node":
            self._machines.reboot(machine)
            return f"{node}: booted"
        if kind in ("freeze-node", "thaw-node"):
            return self._freeze_or_thaw_node(node, stop=kind == "freeze-node")
        if kind in ("hang-agent", "kill-agent", "kill-slurmd"):
            verb, _, what = kind.partition("-")
            return self._one(node, what, signal.SIGSTOP if verb == "hang" else signal.SIGKILL)
        raise HpctlError(
            f"the sandbox has no fault {kind!r} for nodes",
            f"Choose one of: {', '.join(NODE_KINDS)}.",
        )

    def _kernel(  # noqa: PLR0913 -- the options of one fault, by keyword with defaults
        self,
        node: str,
        kind: str,
        code: int = 0,
        pci: str = "",
        text: str = "",
        real_kmsg: bool = False,
    ) -> str:
        lines = {"xid": format_xid_line, "sxid": format_sxid_line}
        line = lines[kind](code, pci, text) if kind in lines else text
        if real_kmsg:
            write_host_kmsg_line(line)
            return f"/dev/kmsg: {line}"
        append_node_kmsg_record(self._spec.layout, node, line)
        return f"{node}: {line}"

    def _inject_device_fault(
        self, node: str, kind: str, *, lasting: bool = False, **how: Any
    ) -> str:
        """Return what the node's checks find; a reboot fixes it, unless it is `lasting`."""
        directory = self._spec.layout.of_node(node)
        if kind == "gpu":
            done = self._inject_gpu_fault(directory, **how)
        elif kind == "file":
            done = write_or_remove_hardware_file(directory / HARDWARE, **how)
        else:
            hardware.set_sysfs_device_count(directory / HARDWARE, how["device"], how["count"])
            done = f"{how['count']} {how['device']} devices"
        if lasting:
            (directory / LASTING).touch()
        return f"{node}: {done}{', whatever is rebooted' if lasting else ''}"

    def _inject_gpu_fault(
        self, directory: Path, answers: Mapping[str, str], index: int | None = None
    ) -> str:
        if not self._spec.nvml_library:
            raise HpctlError(
                "this sandbox emulates no GPUs",
                "Pass a directory with an emulated libnvidia-ml.so.1: Sandbox(nvml_library=...).",
            )
        place = "" if index is None else f"gpu{index}."
        update_simulated_nvml_script(
            directory / NVML_SCRIPT, {f"{place}{k}": v for k, v in answers.items()}
        )
        return ", ".join(f"{place}{k}={v}" for k, v in answers.items())

    def _set_node_network_cable_state(self, address: str, node: str, *, up: bool) -> str:
        if not self._spec.netns:
            raise HpctlError(
                "this sandbox has no network namespaces: its nodes share one network",
                "Start it as root with --netns.",
            )
        instances.set_node_network_link_state(self._programs, address, up=up)
        return f"{node}: cable {'plugged in' if up else 'pulled'}"

    def _freeze_or_thaw_node(self, node: str, *, stop: bool) -> str:
        number = signal.SIGSTOP if stop else signal.SIGCONT
        done: set[int] = set()
        # What was forked between the listing and the signal is in the next listing.
        while new := set(self._machines.processes(node)) - done:
            send_signal_to_processes(new, number)
            done |= new
        if not done:
            raise HpctlError(
                f"cannot freeze or thaw node {node}: it is stopped and has no processes",
                "Boot the node first.",
            )
        return f"{node}: {len(done)} processes {'stopped' if stop else 'continued'}"

    def _one(self, node: str, what: str, number: signal.Signals) -> str:
        pid = self._machines.find_node_daemon_pid(node, what)
        if pid not in self._machines.processes(node):
            raise HpctlError(
                f"node {node} of the sandbox runs no {what}",
                f"Read the logs in {self._spec.layout.logs}",
            )
        send_signal_to_processes([pid], number)
        return f"{node}: {number.name} to its {what} (pid {pid})"


def write_or_remove_hardware_file(
    root: Path, path: str, text: str = "", *, remove: bool = False
) -> str:
    """Write or remove a file of the node's hardware. Raises HpctlError."""
    hardware.write_or_remove_sysfs_file(root, path, None if remove else text)
    return f"{path} removed" if remove else f"{path}: {text}"


def update_simulated_nvml_script(script: Path, answers: Mapping[str, str]) -> None:
    """Put answers over those that the simulated GPUs give, in one piece: a reader may be at it."""
    kept = [
        line for line in script.read_text().splitlines() if line.partition("=")[0] not in answers
    ]
    part = script.with_suffix(".part")
    part.write_text("\n".join([*kept, *(f"{k}={v}" for k, v in answers.items())]) + "\n")
    part.replace(script)


def append_node_kmsg_record(layout: SandboxPaths, node: str, line: str) -> None:
    """Append a record to the node's kernel-log stand-in, as /dev/kmsg formats it."""
    path = layout.of_node(node) / "kmsg"
    booted = float((layout.of_node(node) / "boot_time").read_text())
    with path.open("r+b") as log:
        sequence = log.read().count(b"\n")
        usec = int((time.time() - booted) * 1_000_000)
        log.write(f"{_KERNEL_ERROR},{sequence},{usec},-;{line}\n".encode())


def write_host_kmsg_line(line: str) -> None:
    """Write to the real kernel log. The kernel files it under facility user, never its own."""
    try:
        with Path("/dev/kmsg").open("wb", buffering=0) as log:
            log.write(f"<{_KERNEL_ERROR}>{line}\n".encode())
    except OSError as error:
        raise HpctlError(
            f"cannot write the fault to the kernel log /dev/kmsg: {error.strerror}",
            "Run the sandbox as root: only root may write to it.",
        ) from error

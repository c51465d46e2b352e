"""A GPU reset on the node: the programs that are run, in order, and what they answer.

    list the GPUs -> refuse, or -> stop services and persistence -> end what holds a GPU ->
    nvidia-smi --gpu-reset, with the NVLink peers that the driver names -> start again -> list

Sources: nvidia-smi(1), --gpu-reset (NVIDIA driver R580): no process may use a GPU that is reset;
persistence mode counts as a user of it; before Ampere, and on Ampere's NVSwitch systems without
Fabric Manager, "any GPUs with NVLink connections to a GPU being reset must also be reset in the
same command", and the error names them; not with MIG. A GPU that cannot be reset is a finding with
the driver's words: the head node reboots the instance then.
"""

import contextlib
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from pathlib import Path
from typing import Final

from msgspec import Struct

from hpctl.detection.check import CheckResultUnknownError, DeviceAbsentError
from hpctl.detection.driver_files import SMI, find_nvidia_smi
from hpctl.detection.kernel.xid import normalize_pci_address
from hpctl.detection.probe import ProbeResult, ProbeRunner
from hpctl.detection.settings import AgentSettings
from hpctl.detection.slurm_jobs import ProcessJobFinder
from hpctl.faults.health import RESET_CHECK, RESET_DONE, RESET_FAILED, RESET_REFUSED
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.model import DeviceVerdict, Finding
from hpctl.vocabulary.reset_order import GpuResetOrder

log = logging.getLogger(__name__)

SYSTEMCTL = "/usr/bin/systemctl"
LIST: Final = (
    "--query-gpu=uuid,pci.bus_id,compute_cap,persistence_mode,mig.mode.current",
    "--format=csv,noheader",
)
PERSISTENCE: Final = ("--persistence-mode={mode}", "--id={uuid}")
RESET: Final = ("--gpu-reset", "--id={uuids}")
ACTIVE: Final = (SYSTEMCTL, "is-active")
UNITS: Final = (
    *("nvidia-dcgm.service", "dcgm.service", "nvidia-dcgm-exporter.service"),
    *("dcgm-exporter.service", "nvidia_gpu_exporter.service", "nvidia-persistenced.service"),
)
"""What holds GPUs on a node without a job. Those that run are stopped, and started again."""
FABRIC_MANAGER: Final = "nvidia-fabricmanager.service"
_KEPT: Final = frozenset({"nv-fabricmanage", "nvlsm"})
"""Processes that a reset needs, by the kernel's fifteen letters of their names."""
LIMIT_S, RESET_S = 30.0, 100.0
"""How long a program may take, and a reset."""
_END_S: Final = (10.0, 5.0)
"""How long a process may take to end after SIGTERM, and after SIGKILL."""
_AMPERE, _HOPPER = 8.0, 9.0
_BUS_ID = re.compile(r"\b[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.0\b")


class ResettableGpu(Struct, frozen=True):
    """One GPU as nvidia-smi lists it; `pci` as sysfs spells it."""

    uuid: str
    pci: str
    capability: float
    persistent: bool
    mig: bool


class GpuResetRefusedError(Exception):
    """Nothing was reset; the text says why. `code` is the finding's."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


class GpuReset:
    """One reset on the machine below `root`. `hold` keeps the agent itself off the GPUs."""

    def __init__(self, root: Path, hold: Callable[[], AbstractContextManager[None]]) -> None:
        self._root, self._hold = root, hold

    def carry_out(self, devices: Sequence[str]) -> tuple[ResettableGpu, ...]:
        """Reset the GPUs at these PCI addresses, all where none is named; return those that were
        reset. Raises GpuResetRefusedError."""
        found = self.list_gpus()
        missing = set(devices) - {gpu.pci for gpu in found}
        if missing or not found:
            raise GpuResetRefusedError(
                RESET_FAILED, f"nvidia-smi lists no GPU at {', '.join(sorted(missing))}"
            )
        chosen = tuple(gpu for gpu in found if not devices or gpu.pci in devices)
        self._check_reset_allowed(chosen)
        with ExitStack() as again:
            again.enter_context(self._hold())
            self._stop_gpu_services(again)
            self._disable_persistence_mode(found, again)
            self._end_gpu_processes()
            done = self._reset(chosen, found)
        lost = {gpu.uuid for gpu in done} - {gpu.uuid for gpu in self.list_gpus()}
        if lost:
            raise GpuResetRefusedError(
                RESET_FAILED, f"gone after the reset: {', '.join(sorted(lost))}"
            )
        return done

    def _check_reset_allowed(self, chosen: Sequence[ResettableGpu]) -> None:
        mig = [gpu.pci for gpu in chosen if gpu.mig]
        if mig:
            raise GpuResetRefusedError(RESET_REFUSED, f"MIG is enabled on {', '.join(mig)}")
        switched = any(self._root.glob("dev/nvidia-nvswitch[0-9]*"))
        for gpu in chosen if switched else ():
            if gpu.capability < _AMPERE:
                raise GpuResetRefusedError(
                    RESET_REFUSED, f"{gpu.pci} is older than Ampere, on an NVSwitch system"
                )
            if gpu.capability < _HOPPER and not self._list_active_systemd_units([FABRIC_MANAGER]):
                raise GpuResetRefusedError(
                    RESET_REFUSED, f"an NVSwitch system, and {FABRIC_MANAGER} does not run"
                )
        for pid, name, job in self._find_gpu_processes():
            if job:
                raise GpuResetRefusedError(
                    RESET_REFUSED, f"job {job} runs on the node's GPUs: {name}[{pid}]"
                )

    def _stop_gpu_services(self, again: ExitStack) -> None:
        for unit in self._list_active_systemd_units(UNITS):
            again.callback(self._try_command, (SYSTEMCTL, "start", unit))
            self._try_command((SYSTEMCTL, "stop", unit))

    def _disable_persistence_mode(self, found: Sequence[ResettableGpu], again: ExitStack) -> None:
        for uuid in (gpu.uuid for gpu in found if gpu.persistent):
            again.callback(self._try_nvidia_smi, _make_persistence_arguments(uuid, "1"))
            self._try_nvidia_smi(_make_persistence_arguments(uuid, "0"))

    def _end_gpu_processes(self) -> None:
        """End the processes that hold a GPU. Raises GpuResetRefusedError where one does not end."""
        for number, within_s in zip((signal.SIGTERM, signal.SIGKILL), _END_S, strict=True):
            for pid, name, _ in self._find_gpu_processes():
                log.warning("%s[%d] holds a GPU that is to be reset: %s", name, pid, number.name)
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
            until = time.monotonic() + within_s
            while (left := list(self._find_gpu_processes())) and time.monotonic() < until:
                time.sleep(0.05)
            if not left:
                return
        raise GpuResetRefusedError(
            RESET_FAILED, f"{left[0][1]}[{left[0][0]}] holds a GPU and does not end"
        )

    def _reset(
        self, chosen: tuple[ResettableGpu, ...], found: Sequence[ResettableGpu]
    ) -> tuple[ResettableGpu, ...]:
        answer = self._reset_all_gpus(chosen)
        named = {normalize_pci_address(bus) for bus in _BUS_ID.findall(answer.out + answer.err)}
        peers = tuple(gpu for gpu in found if gpu.pci in named and gpu not in chosen)
        if answer.exit_code and peers:
            self._check_reset_allowed(peers)
            chosen += peers
            answer = self._reset_all_gpus(chosen)
        if answer.exit_code:
            raise GpuResetRefusedError(RESET_FAILED, _extract_driver_message(answer))
        return chosen

    def list_gpus(self) -> tuple[ResettableGpu, ...]:
        """Return the GPUs that nvidia-smi lists. Raises GpuResetRefusedError."""
        answer = self._run_nvidia_smi(LIST)
        if answer.exit_code:
            raise GpuResetRefusedError(RESET_FAILED, _extract_driver_message(answer))
        found = []
        for line in answer.out.splitlines():
            try:
                uuid, pci, capability, persistence, mig = (word.strip() for word in line.split(","))
                gpu = ResettableGpu(
                    uuid=uuid,
                    pci=normalize_pci_address(pci),
                    capability=float(capability),
                    persistent=persistence == "Enabled",
                    mig=mig == "Enabled",
                )
                found.append(gpu)
            except ValueError as error:
                raise GpuResetRefusedError(
                    RESET_FAILED, f"nvidia-smi lists {line[:80]!r}"
                ) from error
        return tuple(found)

    def _find_gpu_processes(self) -> Iterator[tuple[int, str, str]]:
        """Yield who has a GPU's device file open: process id, name, and Slurm job if it is of one.

        The job is found by its slurmstepd where the control group names none: in a container, and
        on a cluster that tracks processes without control groups. Its process must not be ended.
        """
        jobs = ProcessJobFinder(self._root / "proc")
        for process in self._root.glob("proc/[0-9]*"):
            with contextlib.suppress(OSError):
                names = (os.readlink(fd) for fd in (process / "fd").iterdir())
                if not any(re.fullmatch(r"/dev/nvidia\d+", name) for name in names):
                    continue
                comm = (process / "comm").read_text(errors="replace").strip()
                if comm not in _KEPT:
                    pid = int(process.name)
                    yield pid, comm, _find_process_job(jobs, pid)

    def _list_active_systemd_units(self, units: Sequence[str]) -> list[str]:
        answer = self._try_command((*ACTIVE, *units))
        states = answer.out.splitlines() if answer else []
        return [unit for unit, state in zip(units, states, strict=False) if state == "active"]

    def _reset_all_gpus(self, gpus: Sequence[ResettableGpu]) -> ProbeResult:
        uuids = ",".join(gpu.uuid for gpu in gpus)
        return self._run_nvidia_smi([word.format(uuids=uuids) for word in RESET], RESET_S)

    def _run_nvidia_smi(self, arguments: Sequence[str], within_s: float = LIMIT_S) -> ProbeResult:
        answer = self._try_nvidia_smi(arguments, within_s)
        if answer is None:
            raise GpuResetRefusedError(RESET_FAILED, f"{SMI} {arguments[0]} does not answer")
        return answer

    def _try_nvidia_smi(
        self, arguments: Sequence[str], within_s: float = LIMIT_S
    ) -> ProbeResult | None:
        program = find_nvidia_smi(self._root)
        if program is None:
            log.warning("there is no %s that only root can write", SMI)
            return None
        return self._run_command((str(program.path), *arguments), within_s, program.environment)

    def _try_command(self, command: Sequence[str]) -> ProbeResult | None:
        """Return what a program of the machine answers; None where it is not there, or hangs."""
        program = str(self._root / command[0].lstrip("/"))
        return self._run_command((program, *command[1:]), LIMIT_S, {})

    def _run_command(
        self, command: Sequence[str], within_s: float, environment: Mapping[str, str]
    ) -> ProbeResult | None:
        program = command[0]
        try:
            probes = ProbeRunner(within_s, environment=environment)
            answer = probes.ask({program: command}, within_s)[program]
        except (DeviceAbsentError, CheckResultUnknownError) as error:
            log.warning("%s", error)
            return None
        log.info("ran %s: %s", " ".join(command), answer)
        return answer if isinstance(answer, ProbeResult) else None


def _make_persistence_arguments(uuid: str, mode: str) -> list[str]:
    """Return nvidia-smi's arguments that set a GPU's persistence mode: "0" off, "1" on."""
    return [argument.format(mode=mode, uuid=uuid) for argument in PERSISTENCE]


def _find_process_job(jobs: ProcessJobFinder, pid: int) -> str:
    """Return the Slurm job of a process; empty for none, and for a process that has gone."""
    try:
        return jobs.holder(pid)
    except (OSError, ValueError, IndexError):
        return ""


def _extract_driver_message(answer: ProbeResult) -> str:
    """Return the driver's own words, on one line."""
    text = " ".join((answer.out + " " + answer.err).split())
    return text[:240] or f"nvidia-smi ended with {answer.exit_code}"


class GpuResetRunner:
    """What carries out the daemon's orders to reset GPUs, and answers each with one finding. For
    the sender's thread."""

    def __init__(
        self,
        settings: AgentSettings,
        hold: Callable[[], AbstractContextManager[None]],
        report: Callable[[list[Finding]], None],
        earlier: Iterable[Finding],
    ) -> None:
        """`earlier`: what this boot's former agents found; what they answered is not done again."""
        self._report = report
        self._reset = GpuReset(settings.root, hold)
        self._taken = {f.device for f in earlier if f.check == RESET_CHECK}
        self._one = threading.Lock()

    def begin(self, order: GpuResetOrder) -> None:
        """Begin a reset on a thread; nothing for a recovery whose order was taken before."""
        if order.recovery not in self._taken:
            self._taken.add(order.recovery)
            threading.Thread(
                target=self._run_gpu_reset_order, args=(order,), name="reset", daemon=True
            ).start()

    def _run_gpu_reset_order(self, order: GpuResetOrder) -> None:
        code, verdict, evidence = RESET_DONE, DeviceVerdict.OK, ""
        with self._one:
            try:
                gpus = self._reset.carry_out(order.devices)
                evidence = " ".join(gpu.pci for gpu in gpus)
                detail = f"reset {evidence}"[:256]
            except GpuResetRefusedError as error:
                code, verdict, detail = error.code, DeviceVerdict.WARN, str(error)[:256]
        log.warning("GPU reset for %s: %s, %s", order.recovery, code, detail)
        now = datetime.now(UTC)
        answer = Finding(RESET_CHECK, verdict, now, now, order.recovery, code, detail, evidence)
        self._report([answer])

"""What a check is: `gather` touches the machine, `judge` is pure, and a HealthCheckSpec holds the
rest.

A module of `hpctl.detection.checks` holds one check, two functions for each:

    def gather(machine: Machine) -> Sample: ...
    def judge(seen: Sample, before: Sample | None, limits: Limits) -> Judged: ...

`Sample` is the module's own frozen dataclass, with its own time (`machine.monotonic()`) where rates
are needed. `before` is the sample of the last gather in this run of the agent. A judge states the
present condition. Its HealthCheckSpec (`hpctl.faults.table`, `hpctl.detection.findings`) decides
how often it must be seen, for how long it stays known and when it is too early to judge. The head
node's catalogue decides how bad it is, by `<check with dashes>-<code>`.

The GPU checks use the NVML child's sweeps from here: whole, in pairs, and as growth of counters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from hpctl.detection.nvml.snapshot import GpuState, NvmlError, NvmlSnapshot
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict

METADATA_URL = "http://169.254.169.254"
"""EC2's instance metadata service."""
_Count = Annotated[int, Meta(ge=0, le=1024)]

Limits = Mapping[str, float]
"""The limits in force, by name, in the units of the check's Spec."""


class CheckResultUnknownError(Exception):
    """The error of a gather that cannot tell: the check is UNKNOWN, with this message as its
    detail."""


class DriverHungError(CheckResultUnknownError):
    """The error of a call into the driver that has not returned: `CheckedMachine.nvml` raises it in
    place of a sweep.

    `overdue_s` is the time since the newest answer was due, in seconds, over all children that were
    started since. `call` is what the child was doing, where known.
    """

    def __init__(self, overdue_s: float, call: str = "") -> None:
        super().__init__(f"the driver has not answered {call or 'NVML'} for {overdue_s:.0f} s")
        self.overdue_s = overdue_s
        self.call = call


class DeviceAbsentError(Exception):
    """The error of a machine without such a device (no GPU, no EFA): the check reports nothing."""


class CheckObservation(Struct, frozen=True):
    """A present condition, by one judge: the finding without its times.

    `clears` and `gone_s` are for an observation that ends otherwise than its HealthCheckSpec
    defines.
    """

    code: str
    device: str = ""
    verdict: DeviceVerdict = DeviceVerdict.FAIL
    detail: str = ""
    evidence: str = ""
    job: str = ""
    clears: ClearCondition | None = None
    gone_s: float | None = None


Judged = Iterable[CheckObservation]
"""The result of a judge."""


def make_fail_observation(
    code: str, device: str = "", detail: str = "", evidence: str = ""
) -> CheckObservation:
    """Return an observation that is evidence against the node."""
    return CheckObservation(code, device, DeviceVerdict.FAIL, detail, evidence)


def make_warn_observation(
    code: str, device: str = "", detail: str = "", evidence: str = ""
) -> CheckObservation:
    """Return an observation that is only watched."""
    return CheckObservation(code, device, DeviceVerdict.WARN, detail, evidence)


class ExpectedHardware(Struct, frozen=True, forbid_unknown_fields=True):
    """What this machine should have, by `expected` of agent.yaml; None: by its instance type.

    `spot`: EC2 may reclaim it, and announces it at `metadata_url`.
    """

    instance_type: str = ""
    gpus: _Count | None = None
    efa_devices: _Count | None = None
    neuron_devices: _Count | None = None
    spot: bool = False
    metadata_url: Annotated[str, Meta(pattern=r"^http://[^\s/]+$")] = METADATA_URL


class CheckFunctions(Struct, frozen=True):
    """The functions of a check that the runner calls.

    `gauges(seen, before)` are numbers that the head node compares with those of a job's other
    nodes. A number is left out where it is unknown (the first gather, a counter that was reset, too
    little traffic).
    """

    gather: Callable[[CheckedMachine], Any]
    judge: Callable[[Any, Any, Limits], Judged]
    gauges: Callable[[Any, Any], Mapping[str, float]] | None = None


class CheckedMachine(Struct, frozen=True):
    """The machine as a gather sees it. `root` is put before every path: `/` but for tests.

    `nvml` gives the newest sweep of the NVML child; it raises CheckResultUnknownError, or
    DeviceAbsentError where there is no driver.
    """

    root: Path = Path("/")
    expected: ExpectedHardware = field(default_factory=ExpectedHardware)
    nvml: Callable[[], NvmlSnapshot] | None = None
    monotonic: Callable[[], float] = time.monotonic

    def path(self, path: str) -> Path:
        """Return an absolute path of the machine, under `root`."""
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str:
        """Return the content of a small file, stripped. Raises CheckResultUnknownError, and
        DeviceAbsentError where there is no such file."""
        try:
            return self.path(path).read_text(errors="replace").strip()
        except FileNotFoundError as error:
            raise DeviceAbsentError(f"no {path}") from error
        except OSError as error:
            raise CheckResultUnknownError(f"{path}: {error.strerror}") from error


DRIVER_NOT_LOADED = 9
LIBRARY_NOT_FOUND = 12
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18


def get_latest_nvml_snapshot(machine: CheckedMachine) -> NvmlSnapshot:
    """Return the newest sweep, its error included. Raises DeviceAbsentError,
    CheckResultUnknownError, DriverHungError."""
    if machine.nvml is None:
        raise DeviceAbsentError("no NVML on this machine")
    return machine.nvml()


def get_nvml_snapshot_with_gpus(machine: CheckedMachine) -> NvmlSnapshot:
    """Return the newest sweep of a machine with GPUs.

    Raises DeviceAbsentError where there is no driver or no GPU, CheckResultUnknownError where NVML
    failed.
    """
    snapshot = _raise_on_nvml_snapshot_error(get_latest_nvml_snapshot(machine))
    if not snapshot.gpus:
        raise DeviceAbsentError("NVML lists no GPU")
    return snapshot


def list_nvml_gpu_states(machine: CheckedMachine) -> tuple[GpuState, ...]:
    """Return the GPUs that NVML lists, perhaps none. Raises DeviceAbsentError without a driver,
    CheckResultUnknownError."""
    return _raise_on_nvml_snapshot_error(get_latest_nvml_snapshot(machine)).gpus


def _raise_on_nvml_snapshot_error(snapshot: NvmlSnapshot) -> NvmlSnapshot:
    error = snapshot.error
    if error is None:
        return snapshot
    if error.code in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND):
        raise DeviceAbsentError(format_nvml_error(error))
    raise CheckResultUnknownError(format_nvml_error(error))


def format_nvml_error(error: NvmlError) -> str:
    """Return the text of an NVML error."""
    return f"{error.call}: {error.text or 'error'} ({error.code})"


def pair_gpu_states_across_snapshots(
    seen: NvmlSnapshot, before: NvmlSnapshot | None
) -> Iterator[tuple[GpuState, GpuState]]:
    """Yield each GPU of this sweep with itself in the earlier one; only those that are in both.

    By UUID, else by PCI address: an index may change when a GPU drops out.
    """
    if before is None:
        return
    earlier = {gpu.uuid or gpu.pci: gpu for gpu in before.gpus if gpu.uuid or gpu.pci}
    for gpu in seen.gpus:
        was = earlier.get(gpu.uuid or gpu.pci)
        if was is not None:
            yield gpu, was


def compute_counter_growth(now: int | None, then: int | None) -> int:
    """Return by how much a counter grew; 0 where one is not known or it went back (a driver
    reset)."""
    if now is None or then is None:
        return 0
    return max(0, now - then)


def is_gpu_busy(gpu: GpuState, percent: float) -> bool:
    """Return whether kernels run on it for at least so much of the time; an unknown load is not
    busy."""
    return gpu.utilization is not None and gpu.utilization >= percent

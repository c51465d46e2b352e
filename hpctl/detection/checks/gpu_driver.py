"""Check `gpu.driver`: the NVIDIA driver: missing, or of another version than its library."""

import re

from msgspec import Struct

from hpctl.detection.check import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    RESET_REQUIRED,
    CannotTell,
    CheckedMachine,
    DriverHung,
    Functions,
    Judged,
    Limits,
    NotHere,
    describe_error,
    latest_sweep,
    make_failure,
    make_warning,
    sweep_with_gpus,
)
from hpctl.detection.checks.gpu_count import gather_count, judge_count
from hpctl.detection.checks.gpu_hung import gather_hung, judge_hung
from hpctl.detection.checks.gpu_lost import gather_lost, judge_lost
from hpctl.detection.checks.gpu_recovery import judge_recovery_action
from hpctl.detection.checks.gpu_xid import judge_xid
from hpctl.detection.driver_files import library_version
from hpctl.detection.machine import pci_gpus
from hpctl.detection.nvml.snapshot import NvmlError

# The NVIDIA driver itself: missing, of another version than its library, or not answering right.
#
# A mismatch that NVML reports (error 18) is certain: no new process can use a GPU. A library on
# disk that is newer than the loaded kernel module shows the same for the next process, before one
# is started.

_MODULE = "/proc/driver/nvidia/version"


# `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 ...`
_VERSION = re.compile(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")


_OTHERS_CHECKS = (GPU_IS_LOST, RESET_REQUIRED)


class DriverSample(Struct, frozen=True):
    """`error` is NVML's own; `module` and `library` are versions, empty where unknown."""

    gpus: int
    error: NvmlError | None
    no_driver: str
    module: str
    library: str


def gather_driver(machine: CheckedMachine) -> DriverSample:
    """Ask NVML, the kernel module and the library's file. Raises NotHere without a GPU or a
    driver."""
    gpus, no_driver = len(pci_gpus(machine.root)), ""
    error: NvmlError | None = None
    try:
        swept = latest_sweep(machine)
        error, gpus = swept.error, max(gpus, len(swept.gpus))
    except NotHere as absent:
        no_driver = str(absent)
    except DriverHung:
        raise
    except CannotTell:
        # NVML's child is not ready: the files may still show it.
        pass
    if error is not None and error.code in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND):
        no_driver, error = describe_error(error), None
    module = _read_module_version(machine)
    if not gpus and error is None and (no_driver or not module):
        raise NotHere(no_driver or "no NVIDIA GPU")
    return DriverSample(gpus, error, no_driver, module, library_version(machine.root))


def judge_driver(seen: DriverSample, before: DriverSample | None, limits: Limits) -> Judged:
    """Return the driver's trouble, the most certain first; one observation at most."""
    error = seen.error
    if error is not None and error.code == LIB_RM_VERSION_MISMATCH:
        versions = f"module {seen.module or 'unknown'}, library {seen.library or 'unknown'}"
        yield make_failure("mismatch", "", f"{describe_error(error)}: {versions}")
    elif error is not None and error.code not in _OTHERS_CHECKS:
        yield make_warning("error", "", describe_error(error))
    elif seen.no_driver and seen.gpus:
        detail = f"{seen.gpus} GPUs on the PCI bus and no driver: {seen.no_driver}"
        yield make_warning("missing", "", detail)
    elif seen.module and seen.library and seen.module != seen.library:
        detail = f"module {seen.module} is loaded, the library on disk is {seen.library}"
        yield make_warning("upgraded", "", detail)


def _read_module_version(machine: CheckedMachine) -> str:
    try:
        match = _VERSION.search(machine.text(_MODULE) + " ")
    except (NotHere, CannotTell):
        return ""
    return match[1] if match else ""


CHECKS = {
    "gpu.hung": Functions(gather_hung, judge_hung),
    "gpu.count": Functions(gather_count, judge_count),
    "gpu.driver": Functions(gather_driver, judge_driver),
    "gpu.recovery": Functions(sweep_with_gpus, judge_recovery_action),
    "gpu.lost": Functions(gather_lost, judge_lost),
    "gpu.xid": Functions(sweep_with_gpus, judge_xid),
}
"""What the runner calls, by the check's name."""

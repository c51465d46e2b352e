"""Check `gpu.driver`: the NVIDIA driver: missing, or of another version than its library."""

import re

from msgspec import Struct

from hpctl.detection.check import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    RESET_REQUIRED,
    CheckedMachine,
    CheckFunctions,
    CheckResultUnknownError,
    DeviceAbsentError,
    DriverHungError,
    Judged,
    Limits,
    format_nvml_error,
    get_latest_nvml_snapshot,
    get_nvml_snapshot_with_gpus,
    make_fail_observation,
    make_warn_observation,
)
from hpctl.detection.checks.gpu_count import collect_gpu_counts, judge_gpu_count
from hpctl.detection.checks.gpu_hung import judge_nvml_response_delay, measure_nvml_response_delay
from hpctl.detection.checks.gpu_lost import get_nvml_snapshot_with_errors, judge_lost_gpus
from hpctl.detection.checks.gpu_recovery import judge_gpu_recovery_actions
from hpctl.detection.checks.gpu_xid import judge_xid_events
from hpctl.detection.driver_files import read_nvml_library_version
from hpctl.detection.machine import list_gpu_pci_addresses
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


class GpuDriverSample(Struct, frozen=True):
    """`error` is NVML's own; `module` and `library` are versions, empty where unknown."""

    gpus: int
    error: NvmlError | None
    no_driver: str
    module: str
    library: str


def read_gpu_driver_versions(machine: CheckedMachine) -> GpuDriverSample:
    """Ask NVML, the kernel module and the library's file. Raises DeviceAbsentError without a GPU or
    a driver."""
    gpus, no_driver = len(list_gpu_pci_addresses(machine.root)), ""
    error: NvmlError | None = None
    try:
        swept = get_latest_nvml_snapshot(machine)
        error, gpus = swept.error, max(gpus, len(swept.gpus))
    except DeviceAbsentError as absent:
        no_driver = str(absent)
    except DriverHungError:
        raise
    except CheckResultUnknownError:
        # NVML's child is not ready: the files may still show it.
        pass
    if error is not None and error.code in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND):
        no_driver, error = format_nvml_error(error), None
    module = _read_nvidia_module_version(machine)
    if not gpus and error is None and (no_driver or not module):
        raise DeviceAbsentError(no_driver or "no NVIDIA GPU")
    return GpuDriverSample(gpus, error, no_driver, module, read_nvml_library_version(machine.root))


def judge_gpu_driver_state(
    seen: GpuDriverSample, before: GpuDriverSample | None, limits: Limits
) -> Judged:
    """Return the driver's trouble, the most certain first; one observation at most."""
    error = seen.error
    if error is not None and error.code == LIB_RM_VERSION_MISMATCH:
        versions = f"module {seen.module or 'unknown'}, library {seen.library or 'unknown'}"
        yield make_fail_observation("mismatch", "", f"{format_nvml_error(error)}: {versions}")
    elif error is not None and error.code not in _OTHERS_CHECKS:
        yield make_warn_observation("error", "", format_nvml_error(error))
    elif seen.no_driver and seen.gpus:
        detail = f"{seen.gpus} GPUs on the PCI bus and no driver: {seen.no_driver}"
        yield make_warn_observation("missing", "", detail)
    elif seen.module and seen.library and seen.module != seen.library:
        detail = f"module {seen.module} is loaded, the library on disk is {seen.library}"
        yield make_warn_observation("upgraded", "", detail)


def _read_nvidia_module_version(machine: CheckedMachine) -> str:
    try:
        match = _VERSION.search(machine.text(_MODULE) + " ")
    except (DeviceAbsentError, CheckResultUnknownError):
        return ""
    return match[1] if match else ""


CHECKS = {
    "gpu.hung": CheckFunctions(measure_nvml_response_delay, judge_nvml_response_delay),
    "gpu.count": CheckFunctions(collect_gpu_counts, judge_gpu_count),
    "gpu.driver": CheckFunctions(read_gpu_driver_versions, judge_gpu_driver_state),
    "gpu.recovery": CheckFunctions(get_nvml_snapshot_with_gpus, judge_gpu_recovery_actions),
    "gpu.lost": CheckFunctions(get_nvml_snapshot_with_errors, judge_lost_gpus),
    "gpu.xid": CheckFunctions(get_nvml_snapshot_with_gpus, judge_xid_events),
}
"""What the runner calls, by the check's name."""

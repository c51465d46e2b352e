"""Check `gpu.lost`: GPUs that NVML calls lost, in need of a reset, or unavailable."""

from hpctl.detection.check import (
    GPU_IS_LOST,
    RESET_REQUIRED,
    CheckedMachine,
    CheckObservation,
    DeviceAbsentError,
    Judged,
    Limits,
    format_nvml_error,
    get_latest_nvml_snapshot,
    make_fail_observation,
    make_warn_observation,
)
from hpctl.detection.nvml.snapshot import NvmlError, NvmlSnapshot

# GPUs that NVML reports as lost, wait for a reset, or have become unavailable.

_UNAVAILABLE = 0x4000


_LOST_CODES = {GPU_IS_LOST: "lost", RESET_REQUIRED: "reset-required"}


def get_nvml_snapshot_with_errors(machine: CheckedMachine) -> NvmlSnapshot:
    """Return the newest sweep, also one that failed as a whole. Raises DeviceAbsentError where
    there are no GPUs."""
    seen = get_latest_nvml_snapshot(machine)
    if not seen.gpus and (seen.error is None or seen.error.code not in _LOST_CODES):
        raise DeviceAbsentError(
            format_nvml_error(seen.error) if seen.error else "NVML lists no GPU"
        )
    return seen


def judge_lost_gpus(seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits) -> Judged:
    """Return one observation for each GPU (or NVML itself) that answers with an error."""
    if seen.error is not None and seen.error.code in _LOST_CODES:
        yield _make_nvml_error_observation(seen.error, "")
    for gpu in seen.gpus:
        if gpu.error is not None:
            yield _make_nvml_error_observation(gpu.error, gpu.device)
    newest_at: dict[str, float] = {}
    for event in seen.events:
        if event.kind == _UNAVAILABLE:
            newest_at[event.pci] = event.at
    for pci, at in newest_at.items():
        if seen.at - at <= limits["event_s"]:
            yield make_fail_observation("unavailable", pci, "NVML event: GPU unavailable")


def _make_nvml_error_observation(error: NvmlError, device: str) -> CheckObservation:
    code = _LOST_CODES.get(error.code)
    if code is None:
        return make_warn_observation("error", device, format_nvml_error(error))
    return make_fail_observation(code, device, format_nvml_error(error))

"""Check `gpu.temperature`: no margin left to the temperature at which a GPU slows down."""

from hpctl.detection.check import Judged, Limits, make_warn_observation
from hpctl.detection.nvml.snapshot import GpuState, NvmlSnapshot

# How far a GPU and its memory are from the temperature at which they slow themselves down.
#
# The margin is the device's own: one limit in degrees for all models would be wrong for most.


def judge_gpu_temperature_margins(
    seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits
) -> Judged:
    """Return the GPUs with no margin left."""
    for gpu in seen.gpus:
        for code, margin in (
            ("core", _compute_core_temperature_margin(gpu)),
            ("memory", _compute_memory_temperature_margin(gpu)),
        ):
            if margin is not None and margin <= limits["margin_c"]:
                yield make_warn_observation(
                    code, gpu.device, f"{margin} °C left before it slows itself down"
                )


def _compute_core_temperature_margin(gpu: GpuState) -> int | None:
    """Return NVML's own margin, else (before Hopper) the slowdown threshold less the
    temperature."""
    if gpu.temperature_margin_c is not None:
        return gpu.temperature_margin_c
    return _compute_margin_if_known(gpu.temperature_slowdown_c, gpu.temperature_c)


def _compute_memory_temperature_margin(gpu: GpuState) -> int | None:
    return _compute_margin_if_known(gpu.memory_temperature_max_c, gpu.memory_temperature_c)


def _compute_margin_if_known(limit: int | None, now: int | None) -> int | None:
    # 0 is what drivers give for a threshold or a sensor that is not there.
    return limit - now if limit and now else None

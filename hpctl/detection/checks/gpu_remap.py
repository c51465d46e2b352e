"""Check `gpu.remap`: row remapping: failed, pending, spare rows used up."""

from hpctl.detection.check import Judged, Limits, make_fail_observation, make_warn_observation
from hpctl.detection.nvml.snapshot import GpuState, NvmlSnapshot

# Row remapping (Ampere and later): failed, pending, and how many spare rows are left.


def judge_gpu_row_remapper(
    seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits
) -> Judged:
    """Return the state of the row remapper; values that a GPU or driver does not report are left
    out."""
    for gpu in seen.gpus:
        yield from _judge_single_gpu_row_remapping(gpu, limits)


def _judge_single_gpu_row_remapping(gpu: GpuState, limits: Limits) -> Judged:
    remap = gpu.remap
    rows = f"{_format_count_or_unknown(remap.uncorrectable)} rows remapped for uncorrectable errors"
    if remap.failed:
        yield make_fail_observation("failure", gpu.device, f"row remapping failed; {rows}")
    if remap.pending:
        yield make_warn_observation("pending", gpu.device, f"a remapping waits for a reset; {rows}")
    if remap.uncorrectable is not None and remap.uncorrectable >= limits["uncorrectable_rows"]:
        yield make_fail_observation("uncorrectable", gpu.device, rows)
    if remap.banks_none:
        yield make_warn_observation(
            "bank-none", gpu.device, f"{remap.banks_none} banks without a spare row"
        )
    if remap.banks_low:
        yield make_warn_observation(
            "bank-low", gpu.device, f"{remap.banks_low} banks with few spare rows"
        )


def _format_count_or_unknown(count: int | None) -> str:
    return "unknown" if count is None else str(count)

"""Check `gpu.remap`: row remapping: failed, pending, spare rows used up."""

from hpctl.detection.check import Judged, Limits, fail, warn
from hpctl.detection.nvml.snapshot import Gpu, Snapshot

# Row remapping (Ampere and later): failed, pending, and how many spare rows are left.


def judge_remap(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """What the row remapper says now; what a GPU or driver does not say is left out."""
    for gpu in seen.gpus:
        yield from _one(gpu, limits)


def _one(gpu: Gpu, limits: Limits) -> Judged:
    remap = gpu.remap
    rows = f"{_shown(remap.uncorrectable)} rows remapped for uncorrectable errors"
    if remap.failed:
        yield fail("failure", gpu.device, f"row remapping failed; {rows}")
    if remap.pending:
        yield warn("pending", gpu.device, f"a remapping waits for a reset; {rows}")
    if remap.uncorrectable is not None and remap.uncorrectable >= limits["uncorrectable_rows"]:
        yield fail("uncorrectable", gpu.device, rows)
    if remap.banks_none:
        yield warn("bank-none", gpu.device, f"{remap.banks_none} banks without a spare row")
    if remap.banks_low:
        yield warn("bank-low", gpu.device, f"{remap.banks_low} banks with few spare rows")


def _shown(count: int | None) -> str:
    return "unknown" if count is None else str(count)

"""Row remapping (Ampere and later): failed, pending, and how many spare rows are left."""

from __future__ import annotations

from collections.abc import Iterable

from hpctl.agent.check import Limits, Machine, Observation
from hpctl.agent.checks.sweep import sweep
from hpctl.agent.nvml.snapshot import Gpu, Snapshot
from hpctl.core.model import Verdict


def gather(machine: Machine) -> Snapshot:
    """The newest sweep."""
    return sweep(machine)


def judge(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Iterable[Observation]:
    """What the row remapper says now; what a GPU or driver does not say is left out."""
    for gpu in seen.gpus:
        yield from _one(gpu, limits)


def _one(gpu: Gpu, limits: Limits) -> Iterable[Observation]:
    remap = gpu.remap
    rows = f"{_shown(remap.uncorrectable)} rows remapped for uncorrectable errors"
    if remap.failed:
        yield Observation("failure", gpu.device, detail=f"row remapping failed; {rows}")
    if remap.pending:
        yield Observation(
            "pending", gpu.device, Verdict.WARN, f"a remapping waits for a reset; {rows}"
        )
    if remap.uncorrectable is not None and remap.uncorrectable >= limits["uncorrectable_rows"]:
        yield Observation("uncorrectable", gpu.device, detail=rows)
    if remap.banks_none:
        yield Observation(
            "bank-none", gpu.device, Verdict.WARN, f"{remap.banks_none} banks without a spare row"
        )
    if remap.banks_low:
        yield Observation(
            "bank-low", gpu.device, Verdict.WARN, f"{remap.banks_low} banks with few spare rows"
        )


def _shown(count: int | None) -> str:
    return "unknown" if count is None else str(count)

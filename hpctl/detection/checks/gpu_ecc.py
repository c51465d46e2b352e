"""Check `gpu.ecc`: uncorrectable memory errors as they come, and the SRAM threshold flag."""

from hpctl.detection.check import (
    Judged,
    Limits,
    compute_counter_growth,
    make_fail_observation,
    make_warn_observation,
    pair_gpu_states_across_snapshots,
)
from hpctl.detection.nvml.snapshot import GpuState, NvmlSnapshot

# Uncorrectable memory errors since the last sweep, and the SRAM threshold flag.
#
# Whether an uncorrectable error was contained (one process died, the GPU is sound) is answered by
# the driver, in this order: its recovery action where it has one, then its events: Xid 94, or
# poison that was not fatal. Counts of corrected errors lead to no action: healthy fleets show
# millions of them.

_XID = 0x8


_NON_FATAL_POISON = 0x1000


_CONTAINED = 94


# The event may be read a sweep before the counter.
_LOOKBACK_S = 10.0


def judge_uncorrected_ecc_errors(
    seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits
) -> Judged:
    """Return the SRAM flags, and the GPUs whose volatile uncorrectable count grew since
    `before`."""
    for gpu in seen.gpus:
        if gpu.ecc.sram_threshold_exceeded:
            yield make_fail_observation(
                "sram-threshold", gpu.device, "the SRAM error count passed its threshold"
            )
    for gpu, was in pair_gpu_states_across_snapshots(seen, before):
        more = compute_counter_growth(gpu.ecc.volatile_uncorrected, was.ecc.volatile_uncorrected)
        if more < limits["uncorrectable"]:
            continue
        detail = f"{more} more uncorrectable errors"
        if before is not None and _is_ecc_error_contained(gpu, seen, before.at):
            yield make_warn_observation("contained", gpu.device, f"{detail}, contained")
        else:
            yield make_fail_observation("uncorrectable", gpu.device, detail)


def _is_ecc_error_contained(gpu: GpuState, seen: NvmlSnapshot, since: float) -> bool:
    if gpu.recovery_action is not None:
        return gpu.recovery_action == 0
    return any(
        event.pci == gpu.pci
        and event.at >= since - _LOOKBACK_S
        and ((event.kind, event.data) == (_XID, _CONTAINED) or event.kind == _NON_FATAL_POISON)
        for event in seen.events
    )

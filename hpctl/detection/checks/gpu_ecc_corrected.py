"""Check `gpu.ecc.corrected`: a storm of corrected memory errors that continues."""

from hpctl.detection.check import (
    Judged,
    Limits,
    compute_counter_growth,
    make_warn_observation,
    pair_gpu_states_across_snapshots,
)
from hpctl.detection.nvml.snapshot import NvmlSnapshot

# A storm of corrected memory errors: while it lasts, calls into the driver may stall.
#
# The count does not show a GPU's health; only a persistent rate is worth a report.


def judge_corrected_ecc_errors(
    seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits
) -> Judged:
    """Return the GPUs whose corrected errors came faster than the limit since `before`."""
    elapsed = seen.at - before.at if before is not None else 0.0
    if elapsed <= 0:
        return
    for gpu, was in pair_gpu_states_across_snapshots(seen, before):
        rate = (
            compute_counter_growth(gpu.ecc.volatile_corrected, was.ecc.volatile_corrected) / elapsed
        )
        if rate > limits["per_second"]:
            yield make_warn_observation(
                "storm", gpu.device, f"{rate:.0f} corrected errors a second"
            )

"""Checks `gpu.throttle` and `gpu.slowdown`: clocks held down by heat or a power brake."""

from collections.abc import Iterator, Mapping

from hpctl.detection.check import (
    Judged,
    Limits,
    compute_counter_growth,
    is_gpu_busy,
    make_warn_observation,
    pair_gpu_states_across_snapshots,
)
from hpctl.detection.checks.gpu_clocks import BUSY_PERCENT
from hpctl.detection.nvml.snapshot import ClockThrottleTimes, GpuState, NvmlSnapshot

# Time for which the hardware held a busy GPU's clocks down, as a share of the time between runs.
#
# Only the cumulative nanosecond counters count (NVML fields 269-271). The event reason bits are a
# moment's view: sampled once a minute they miss bursts, and the bit for the software power cap is
# set on any healthy GPU under load. Two rows of the table run this module with different limits; a
# limit that a row does not have is not judged.

# More than the whole time means a counter that was reset or jumped: no evidence.
_POSSIBLE = 1.1


_THROTTLE_GAUGE = "gpu.throttle_share"


def judge_gpu_throttling(seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits) -> Judged:
    """Return the GPUs, busy at both ends of the window, that were held down for more than a
    limit."""
    for gpu, window_s, shares in _compute_gpu_throttle_shares(seen, before, limits["busy_percent"]):
        for name, share in shares.items():
            limit = limits.get(f"{name}_share")
            if limit is not None and share > limit:
                yield make_warn_observation(
                    name.replace("_", "-"),
                    gpu.device,
                    f"clocks held down for {share:.1%} of {window_s:.0f} s",
                )


def compute_worst_gpu_throttle_share(
    seen: NvmlSnapshot, before: NvmlSnapshot | None
) -> Mapping[str, float]:
    """Return `gpu.throttle_share`: the most throttled busy GPU's share, all reasons but the power
    cap."""
    totals = [
        sum(shares.values())
        for _, _, shares in _compute_gpu_throttle_shares(seen, before, BUSY_PERCENT)
    ]
    return {_THROTTLE_GAUGE: min(1.0, max(totals))} if totals else {}


def _compute_gpu_throttle_shares(
    seen: NvmlSnapshot, before: NvmlSnapshot | None, busy_percent: float
) -> Iterator[tuple[GpuState, float, dict[str, float]]]:
    window_s = seen.at - before.at if before is not None else 0.0
    if window_s <= 0:
        return
    for gpu, was in pair_gpu_states_across_snapshots(seen, before):
        if not (is_gpu_busy(gpu, busy_percent) and is_gpu_busy(was, busy_percent)):
            continue
        then = _get_throttle_times_by_reason(was.throttle)
        shares = {
            name: compute_counter_growth(count, then[name]) / (window_s * 1e9)
            for name, count in _get_throttle_times_by_reason(gpu.throttle).items()
        }
        yield gpu, window_s, {n: share for n, share in shares.items() if share <= _POSSIBLE}


def _get_throttle_times_by_reason(throttle: ClockThrottleTimes) -> dict[str, int | None]:
    return {
        "hw_thermal": throttle.hw_thermal_ns,
        "power_brake": throttle.power_brake_ns,
        "sw_thermal": throttle.sw_thermal_ns,
    }

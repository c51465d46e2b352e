"""Check `gpu.clocks`: a busy GPU whose SM clock is below that of the node's other busy GPUs."""

from collections.abc import Iterable, Mapping
from statistics import median

from hpctl.detection.check import Judged, Limits, is_gpu_busy, make_warn_observation
from hpctl.detection.nvml.snapshot import GpuState, NvmlSnapshot

# A busy GPU whose SM clock is well below that of the node's other, equally busy GPUs.
#
# Always relative: the right clock depends on the model, the power limit and the work. Fewer than
# three peers prove nothing.

BUSY_PERCENT = 50.0


_GAUGE = "gpu.sm_clock_mhz"


def judge_gpu_clock_slowdown(
    seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits
) -> Judged:
    """Return the busy GPUs whose clock is less than the limit's part of their peers' median."""
    for gpu in seen.gpus:
        peers = _list_peer_gpu_clocks(gpu, seen.gpus, limits)
        if gpu.sm_clock_mhz is None or len(peers) < limits["peers"]:
            continue
        usual = median(peers)
        if gpu.sm_clock_mhz < usual * limits["of_median"]:
            yield make_warn_observation(
                "slow",
                gpu.device,
                f"{gpu.sm_clock_mhz} MHz; {len(peers)} GPUs as busy run at {usual:.0f} MHz",
            )


def measure_slowest_busy_gpu_clock(
    seen: NvmlSnapshot, before: NvmlSnapshot | None
) -> Mapping[str, float]:
    """Return `gpu.sm_clock_mhz`: the slowest busy GPU's clock, which sets the pace of the node."""
    clocks = [
        gpu.sm_clock_mhz
        for gpu in seen.gpus
        if gpu.sm_clock_mhz is not None and is_gpu_busy(gpu, BUSY_PERCENT)
    ]
    return {_GAUGE: float(min(clocks))} if clocks else {}


def _list_peer_gpu_clocks(gpu: GpuState, gpus: Iterable[GpuState], limits: Limits) -> list[int]:
    """Return the clocks of the other GPUs of the same model under a load like this one's."""
    load = gpu.utilization
    if load is None or load < limits["busy_percent"]:
        return []
    clocks = []
    for other in gpus:
        clock, utilization = other.sm_clock_mhz, other.utilization
        if other is gpu or other.name != gpu.name or clock is None or utilization is None:
            continue
        alike = abs(utilization - load) <= limits["alike_percent"]
        if alike and utilization >= limits["busy_percent"]:
            clocks.append(clock)
    return clocks

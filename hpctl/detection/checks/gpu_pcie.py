"""Check `gpu.pcie`: a GPU's PCIe link: narrow, slow under load, or repeating packets."""

from collections.abc import Iterator, Mapping
from statistics import median

from hpctl.detection.check import (
    CheckObservation,
    Judged,
    Limits,
    compute_counter_growth,
    is_gpu_busy,
    make_warn_observation,
    pair_gpu_states_across_snapshots,
)
from hpctl.detection.nvml.snapshot import GpuState, NvmlSnapshot
from hpctl.vocabulary.model import DeviceVerdict

# The GPUs' PCIe links: narrower or slower than they can be, or repeating packets too often.
#
# Links are compared with those of the node's other GPUs first: some instance types wire every GPU
# with fewer lanes than it has, which is not a fault. An idle GPU lowers its generation to save
# power, and from PCIe 6 on also its width (L0p), so these count only while it works.

_DYNAMIC_WIDTH = 6


# Gbit/s of one lane, by generation.
_LANE_GBPS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


_GAUGE = "gpu.pcie_replays_per_minute"


def judge_gpu_pcie_links(seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits) -> Judged:
    """Judge width, generation and replays of each GPU."""
    narrow = [gpu for gpu in seen.gpus if _is_pcie_link_too_narrow(gpu, limits)]
    slow = [gpu for gpu in seen.gpus if _is_pcie_link_too_slow(gpu, limits)]
    others_wide = any(_is_pcie_link_full_width(gpu) for gpu in seen.gpus)
    others_fast = any(_is_pcie_link_full_speed(gpu) for gpu in seen.gpus)
    for gpu in narrow:
        yield CheckObservation(
            "width" if others_wide else "width-all",
            gpu.device,
            DeviceVerdict.FAIL if others_wide else DeviceVerdict.WARN,
            f"PCIe x{gpu.pcie.width}, can do x{gpu.pcie.width_max}",
        )
    for gpu in slow:
        yield CheckObservation(
            "generation" if others_fast else "generation-all",
            gpu.device,
            DeviceVerdict.FAIL if others_fast else DeviceVerdict.WARN,
            f"PCIe {gpu.pcie.generation} under load, can do {gpu.pcie.generation_max}",
        )
    yield from _judge_pcie_replay_rates(seen, before, limits)


def compute_worst_pcie_replay_rate(
    seen: NvmlSnapshot, before: NvmlSnapshot | None
) -> Mapping[str, float]:
    """Return `gpu.pcie_replays_per_minute` of the GPU with the most."""
    rates = [rate for _, rate in _compute_pcie_replay_rates(seen, before)]
    return {_GAUGE: max(rates)} if rates else {}


def _is_pcie_link_too_narrow(gpu: GpuState, limits: Limits) -> bool:
    pcie = gpu.pcie
    if not pcie.width or not pcie.width_max or pcie.width >= pcie.width_max:
        return False
    return (pcie.generation_max or 0) < _DYNAMIC_WIDTH or is_gpu_busy(gpu, limits["busy_percent"])


def _is_pcie_link_too_slow(gpu: GpuState, limits: Limits) -> bool:
    pcie = gpu.pcie
    if not pcie.generation or not pcie.generation_max:
        return False
    return pcie.generation < pcie.generation_max and is_gpu_busy(gpu, limits["busy_percent"])


def _is_pcie_link_full_width(gpu: GpuState) -> bool:
    return bool(gpu.pcie.width) and gpu.pcie.width == gpu.pcie.width_max


def _is_pcie_link_full_speed(gpu: GpuState) -> bool:
    return bool(gpu.pcie.generation) and gpu.pcie.generation == gpu.pcie.generation_max


def _judge_pcie_replay_rates(
    seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits
) -> Iterator[CheckObservation]:
    rates = list(_compute_pcie_replay_rates(seen, before))
    for gpu, rate in rates:
        allowed = _compute_allowed_pcie_replay_rate(gpu, limits)
        if allowed is not None and rate > allowed:
            detail = f"{rate:.1f} replays a minute; the link's speed allows {allowed:.1f}"
            yield make_warn_observation("replays", gpu.device, detail)
        peers = [other for peer, other in rates if peer is not gpu]
        if len(peers) < limits["peers"] or rate < limits["replays_floor"]:
            continue
        usual = median(peers)
        if rate > usual * limits["times_median"]:
            detail = f"{rate:.1f} replays a minute; the other GPUs {usual:.1f}"
            yield make_warn_observation("replays-peers", gpu.device, detail)


def _compute_pcie_replay_rates(
    seen: NvmlSnapshot, before: NvmlSnapshot | None
) -> Iterator[tuple[GpuState, float]]:
    """Yield the replays a minute of each GPU that counts them."""
    elapsed = seen.at - before.at if before is not None else 0.0
    if elapsed <= 0:
        return
    for gpu, was in pair_gpu_states_across_snapshots(seen, before):
        if gpu.pcie.replays is not None and was.pcie.replays is not None:
            yield gpu, 60.0 * compute_counter_growth(gpu.pcie.replays, was.pcie.replays) / elapsed


def _compute_allowed_pcie_replay_rate(gpu: GpuState, limits: Limits) -> float | None:
    """Yield the replays a minute that a link within the bit error rate of the standard may
    show."""
    speed = _LANE_GBPS.get(gpu.pcie.generation or 0)
    if speed is None or not gpu.pcie.width:
        return None
    return speed * 1e9 * gpu.pcie.width * 60.0 * limits["bit_error_rate"]

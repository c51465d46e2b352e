"""GPUs that are slower than they could be: clocks, throttling, temperature."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import median

from hpctl.agent.check import Functions, Limits, Observation
from hpctl.agent.checks.gpu_sweep import busy, grown, pairs, sweep
from hpctl.agent.nvml.snapshot import Gpu, Snapshot, Throttle
from hpctl.core.model import Verdict

# --- gpu.clocks ----------
# A busy GPU whose SM clock is well below that of the node's other, equally busy GPUs.
#
# Only ever relative: what clock is right depends on the model, the power limit and the work. Fewer
# than three peers prove nothing.

_BUSY_PERCENT = 50.0
_GAUGE = "gpu.sm_clock_mhz"


def judge_clocks(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Iterable[Observation]:
    """The busy GPUs whose clock is less than the limit's part of their peers' median."""
    for gpu in seen.gpus:
        peers = _peers(gpu, seen.gpus, limits)
        if gpu.sm_clock_mhz is None or len(peers) < limits["peers"]:
            continue
        usual = median(peers)
        if gpu.sm_clock_mhz < usual * limits["of_median"]:
            yield Observation(
                "slow",
                gpu.device,
                Verdict.WARN,
                f"{gpu.sm_clock_mhz} MHz; {len(peers)} GPUs as busy run at {usual:.0f} MHz",
            )


def gauges_clocks(seen: Snapshot, before: Snapshot | None) -> Mapping[str, float]:
    """`gpu.sm_clock_mhz`: the slowest busy GPU's clock, which sets the pace of the node."""
    clocks = [
        gpu.sm_clock_mhz
        for gpu in seen.gpus
        if gpu.sm_clock_mhz is not None and busy(gpu, _BUSY_PERCENT)
    ]
    return {_GAUGE: float(min(clocks))} if clocks else {}


def _peers(gpu: Gpu, gpus: Iterable[Gpu], limits: Limits) -> list[int]:
    """The clocks of the other GPUs of the same model under a load like this one's."""
    load = gpu.utilization
    if load is None or load < limits["busy_percent"]:
        return []
    return [
        other.sm_clock_mhz
        for other in gpus
        if other is not gpu
        and other.name == gpu.name
        and other.sm_clock_mhz is not None
        and other.utilization is not None
        and other.utilization >= limits["busy_percent"]
        and abs(other.utilization - load) <= limits["alike_percent"]
    ]


# --- gpu.throttle and gpu.slowdown ----------
# Time for which the hardware held a busy GPU's clocks down, as a share of the time between runs.
#
# From the cumulative nanosecond counters alone (NVML fields 269-271). The event reason bits are
# a moment's view: sampled once a minute they miss bursts, and the bit for the software power cap is
# set on any healthy GPU under load. Two rows of the table run this module with different limits; a
# limit that a row does not have is not judged.

# More than all of the time means a counter that was reset or jumped: no evidence.
_POSSIBLE = 1.1
_THROTTLE_GAUGE = "gpu.throttle_share"


def judge_throttle(
    seen: Snapshot, before: Snapshot | None, limits: Limits
) -> Iterable[Observation]:
    """The GPUs, busy at both ends of the window, that were held down for more than a limit."""
    for gpu, window_s, shares in _shares(seen, before, limits["busy_percent"]):
        for name, share in shares.items():
            limit = limits.get(f"{name}_share")
            if limit is not None and share > limit:
                yield Observation(
                    name.replace("_", "-"),
                    gpu.device,
                    Verdict.WARN,
                    f"clocks held down for {share:.1%} of {window_s:.0f} s",
                )


def gauges_throttle(seen: Snapshot, before: Snapshot | None) -> Mapping[str, float]:
    """`gpu.throttle_share`: the most throttled busy GPU's share, all reasons but the power cap."""
    totals = [sum(shares.values()) for _, _, shares in _shares(seen, before, _BUSY_PERCENT)]
    return {_THROTTLE_GAUGE: min(1.0, max(totals))} if totals else {}


def _shares(
    seen: Snapshot, before: Snapshot | None, busy_percent: float
) -> Iterator[tuple[Gpu, float, dict[str, float]]]:
    window_s = seen.at - before.at if before is not None else 0.0
    if window_s <= 0:
        return
    for gpu, was in pairs(seen, before):
        if not (busy(gpu, busy_percent) and busy(was, busy_percent)):
            continue
        then = _counters(was.throttle)
        shares = {
            name: grown(count, then[name]) / (window_s * 1e9)
            for name, count in _counters(gpu.throttle).items()
        }
        yield gpu, window_s, {n: share for n, share in shares.items() if share <= _POSSIBLE}


def _counters(throttle: Throttle) -> dict[str, int | None]:
    return {
        "hw_thermal": throttle.hw_thermal_ns,
        "power_brake": throttle.power_brake_ns,
        "sw_thermal": throttle.sw_thermal_ns,
    }


# --- gpu.temperature ----------
# How far a GPU and its memory are from the temperature at which they slow themselves down.
#
# The margin is the device's own: one limit in degrees for all models would be wrong for most.


def judge_temperature(
    seen: Snapshot, before: Snapshot | None, limits: Limits
) -> Iterable[Observation]:
    """The GPUs with no margin left."""
    for gpu in seen.gpus:
        for code, margin in (("core", _core(gpu)), ("memory", _memory(gpu))):
            if margin is not None and margin <= limits["margin_c"]:
                yield Observation(
                    code, gpu.device, Verdict.WARN, f"{margin} °C left before it slows itself down"
                )


def _core(gpu: Gpu) -> int | None:
    """NVML's own margin, else (before Hopper) the slowdown threshold less the temperature."""
    if gpu.temperature_margin_c is not None:
        return gpu.temperature_margin_c
    return _left(gpu.temperature_slowdown_c, gpu.temperature_c)


def _memory(gpu: Gpu) -> int | None:
    return _left(gpu.memory_temperature_max_c, gpu.memory_temperature_c)


def _left(limit: int | None, now: int | None) -> int | None:
    # 0 is what drivers give for a threshold or a sensor that is not there.
    return limit - now if limit and now else None


CHECKS = {
    "gpu.clocks": Functions(sweep, judge_clocks, gauges_clocks),
    "gpu.throttle": Functions(sweep, judge_throttle, gauges_throttle),
    "gpu.slowdown": Functions(sweep, judge_throttle, gauges_throttle),
    "gpu.temperature": Functions(sweep, judge_temperature),
}
"""What the runner calls, by the check's name."""

"""GPUs that are slower than they could be or set up otherwise than others, and their gauges."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from statistics import mean, median

from hpctl.agent.check import Functions, Judged, Limits, busy, fail, grown, pairs, sweep, warn
from hpctl.agent.checks import check_gpu_links
from hpctl.agent.nvml.snapshot import Gpu, Snapshot, Throttle

# --- gpu.clocks ----------
# A busy GPU whose SM clock is well below that of the node's other, equally busy GPUs.
#
# Only ever relative: what clock is right depends on the model, the power limit and the work. Fewer
# than three peers prove nothing.

_BUSY_PERCENT = 50.0
_GAUGE = "gpu.sm_clock_mhz"


def judge_clocks(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """The busy GPUs whose clock is less than the limit's part of their peers' median."""
    for gpu in seen.gpus:
        peers = _peers(gpu, seen.gpus, limits)
        if gpu.sm_clock_mhz is None or len(peers) < limits["peers"]:
            continue
        usual = median(peers)
        if gpu.sm_clock_mhz < usual * limits["of_median"]:
            yield warn(
                "slow",
                gpu.device,
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


def judge_throttle(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """The GPUs, busy at both ends of the window, that were held down for more than a limit."""
    for gpu, window_s, shares in _shares(seen, before, limits["busy_percent"]):
        for name, share in shares.items():
            limit = limits.get(f"{name}_share")
            if limit is not None and share > limit:
                yield warn(
                    name.replace("_", "-"),
                    gpu.device,
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


def judge_temperature(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """The GPUs with no margin left."""
    for gpu in seen.gpus:
        for code, margin in (("core", _core(gpu)), ("memory", _memory(gpu))):
            if margin is not None and margin <= limits["margin_c"]:
                yield warn(code, gpu.device, f"{margin} °C left before it slows itself down")


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


# --- gpu.settings ----------
# How the GPUs are set up: InfoROM, VBIOS, persistence mode and application clocks.
#
# All GPUs of a node are of one kind and set up alike: one that differs was changed, or exchanged.

_VERSION = re.compile(r"[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f]{2}){4}")
"""Five bytes: a float holds them exactly."""


def gauges_settings(seen: Snapshot, before: Snapshot | None) -> Mapping[str, float]:
    """The VBIOS as a number, whether persistence mode is on everywhere, the lowest application
    clock: the head node compares them with those of a job's other nodes."""
    clocks = [clock for gpu in seen.gpus if (clock := gpu.sm_clock_application_mhz) is not None]
    modes = [gpu.persistence for gpu in seen.gpus if gpu.persistence is not None]
    versions = [match[0] for gpu in seen.gpus if (match := _VERSION.fullmatch(gpu.vbios))]
    gauges: dict[str, float] = {}
    if clocks:
        gauges["gpu.application_clock_mhz"] = float(min(clocks))
    if modes:
        gauges["gpu.persistence"] = float(all(modes))
    if versions:
        gauges["gpu.vbios"] = float(int(max(versions).replace(".", ""), 16))
    return gauges


def judge_settings(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """A corrupt InfoROM; the odd VBIOS; persistence mode off; clocks set below the default."""
    versions = Counter((gpu.name, gpu.vbios) for gpu in seen.gpus if gpu.vbios)
    usual = {name: max(n for (other, _), n in versions.items() if other == name)
             for name, _ in versions}  # fmt: skip
    for gpu in seen.gpus:
        if gpu.inforom_corrupt:
            yield fail("inforom", gpu.device, "the InfoROM's checksum is wrong")
        if gpu.vbios and versions[gpu.name, gpu.vbios] < usual[gpu.name]:
            yield warn("vbios", gpu.device, f"VBIOS {gpu.vbios}, unlike the node's others")
        if gpu.persistence is False:
            yield warn("persistence", gpu.device, "persistence mode is off")
        now, default = gpu.sm_clock_application_mhz, gpu.sm_clock_default_mhz
        if now is not None and default is not None and now < default:
            yield warn("clocks", gpu.device, f"application clock {now} MHz, {default} by default")


# --- gpu.gauges ----------
# The GPUs' numbers for the head node's comparison of peers, taken often; it finds nothing itself.
#
# The checks that these numbers belong to run once a minute. Peers are compared in windows of 20 s,
# and one old number reported three times would count as three.


def judge_gauges(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Judged:
    """Nothing: one node's numbers say nothing without its peers'."""
    return ()


def gauges_gauges(seen: Snapshot, before: Snapshot | None) -> Mapping[str, float]:
    """Throttle share, slowest clock and PCIe replays since the last run, as their checks count
    them, and how the GPUs are set up; `gpu.busy` (0 to 1) and `gpu.power_w`, means over all GPUs,
    which tell who waits."""
    if before is not None and seen.at <= before.at:
        return {}
    gauges = {
        **gauges_clocks(seen, before),
        **gauges_throttle(seen, before),
        **check_gpu_links.gauges_pcie(seen, before),
        **gauges_settings(seen, before),
    }
    used = [gpu.utilization for gpu in seen.gpus if gpu.utilization is not None]
    if used:
        gauges["gpu.busy"] = mean(used) / 100
    drawn = [gpu.power_mw for gpu in seen.gpus if gpu.power_mw is not None]
    if drawn:
        gauges["gpu.power_w"] = mean(drawn) / 1000
    return gauges


CHECKS = {
    "gpu.clocks": Functions(sweep, judge_clocks, gauges_clocks),
    "gpu.throttle": Functions(sweep, judge_throttle, gauges_throttle),
    "gpu.slowdown": Functions(sweep, judge_throttle, gauges_throttle),
    "gpu.temperature": Functions(sweep, judge_temperature),
    "gpu.settings": Functions(sweep, judge_settings, gauges_settings),
    "gpu.gauges": Functions(sweep, judge_gauges, gauges_gauges),
}
"""What the runner calls, by the check's name."""

"""How the GPUs are set up, and the numbers that the head node compares between nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import mean

from hpctl.agent.check import Functions, Limits, Observation
from hpctl.agent.checks import check_gpu_pcie, check_gpu_speed
from hpctl.agent.checks.gpu_sweep import sweep
from hpctl.agent.nvml.snapshot import Snapshot
from hpctl.core.model import Verdict

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
    told: dict[str, float] = {}
    if clocks:
        told["gpu.application_clock_mhz"] = float(min(clocks))
    if modes:
        told["gpu.persistence"] = float(all(modes))
    if versions:
        told["gpu.vbios"] = float(int(max(versions).replace(".", ""), 16))
    return told


def judge_settings(
    seen: Snapshot, before: Snapshot | None, limits: Limits
) -> Iterable[Observation]:
    """A corrupt InfoROM; the odd VBIOS; persistence mode off; clocks set below the default."""
    versions = Counter((gpu.name, gpu.vbios) for gpu in seen.gpus if gpu.vbios)
    usual = {name: max(n for (other, _), n in versions.items() if other == name)
             for name, _ in versions}  # fmt: skip
    for gpu in seen.gpus:
        if gpu.inforom_corrupt:
            yield Observation("inforom", gpu.device, detail="the InfoROM's checksum is wrong")
        if gpu.vbios and versions[gpu.name, gpu.vbios] < usual[gpu.name]:
            detail = f"VBIOS {gpu.vbios}, unlike the node's others"
            yield Observation("vbios", gpu.device, Verdict.WARN, detail)
        if gpu.persistence is False:
            yield Observation("persistence", gpu.device, Verdict.WARN, "persistence mode is off")
        now, default = gpu.sm_clock_application_mhz, gpu.sm_clock_default_mhz
        if now is not None and default is not None and now < default:
            detail = f"application clock {now} MHz, {default} by default"
            yield Observation("clocks", gpu.device, Verdict.WARN, detail)


# --- gpu.gauges ----------
# The GPUs' numbers for the head node's comparison of peers, taken often; it finds nothing itself.
#
# The checks that these numbers belong to run once a minute. Peers are compared in windows of 20 s,
# and one old number told three times would count as three.


def judge_gauges(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Iterable[Observation]:
    """Nothing: one node's numbers say nothing without its peers'."""
    return ()


def gauges_gauges(seen: Snapshot, before: Snapshot | None) -> Mapping[str, float]:
    """Throttle share, slowest clock and PCIe replays since the last run, as their checks count
    them, and how the GPUs are set up; `gpu.busy` (0 to 1) and `gpu.power_w`, means over all GPUs,
    which tell who waits."""
    if before is not None and seen.at <= before.at:
        return {}
    told = {
        **check_gpu_speed.gauges_clocks(seen, before),
        **check_gpu_speed.gauges_throttle(seen, before),
        **check_gpu_pcie.gauges(seen, before),
        **gauges_settings(seen, before),
    }
    used = [gpu.utilization for gpu in seen.gpus if gpu.utilization is not None]
    if used:
        told["gpu.busy"] = mean(used) / 100
    drawn = [gpu.power_mw for gpu in seen.gpus if gpu.power_mw is not None]
    if drawn:
        told["gpu.power_w"] = mean(drawn) / 1000
    return told


CHECKS = {
    "gpu.settings": Functions(sweep, judge_settings, gauges_settings),
    "gpu.gauges": Functions(sweep, judge_gauges, gauges_gauges),
}
"""What the runner calls, by the check's name."""

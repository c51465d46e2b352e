"""Check `gpu.settings`: InfoROM, VBIOS, persistence mode, clocks."""

import re
from collections import Counter
from collections.abc import Mapping

from hpctl.detection.check import Judged, Limits, make_fail_observation, make_warn_observation
from hpctl.detection.nvml.snapshot import NvmlSnapshot

# How the GPUs are set up: InfoROM, VBIOS, persistence mode and application clocks.
#
# All GPUs of a node are of one kind and set up alike: one that differs was changed or replaced.

_VERSION = re.compile(r"[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f]{2}){4}")
"""Five bytes, which a float represents exactly."""


def make_gpu_setting_gauges(seen: NvmlSnapshot, before: NvmlSnapshot | None) -> Mapping[str, float]:
    """Return the VBIOS as a number, whether persistence mode is on everywhere, the lowest
    application clock: the head node compares them with those of a job's other nodes."""
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


def judge_gpu_settings(seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits) -> Judged:
    """Return a corrupt InfoROM; the odd VBIOS; persistence mode off; clocks set below the
    default."""
    versions = Counter((gpu.name, gpu.vbios) for gpu in seen.gpus if gpu.vbios)
    usual: dict[str, int] = {}
    for (name, _), times in versions.items():
        usual[name] = max(times, usual.get(name, 0))
    for gpu in seen.gpus:
        if gpu.inforom_corrupt:
            yield make_fail_observation("inforom", gpu.device, "the InfoROM's checksum is wrong")
        if gpu.vbios and versions[gpu.name, gpu.vbios] < usual[gpu.name]:
            yield make_warn_observation(
                "vbios", gpu.device, f"VBIOS {gpu.vbios}, unlike the node's others"
            )
        if gpu.persistence is False:
            yield make_warn_observation("persistence", gpu.device, "persistence mode is off")
        now, default = gpu.sm_clock_application_mhz, gpu.sm_clock_default_mhz
        if now is not None and default is not None and now < default:
            yield make_warn_observation(
                "clocks", gpu.device, f"application clock {now} MHz, {default} by default"
            )

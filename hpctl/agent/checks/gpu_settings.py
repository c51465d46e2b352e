"""How the GPUs are set up: InfoROM, VBIOS, persistence mode and application clocks.

All GPUs of a node are of one kind and set up alike: one that differs was changed, or exchanged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from hpctl.agent.check import Limits, Machine, Observation
from hpctl.agent.checks.sweep import sweep
from hpctl.agent.nvml.snapshot import Snapshot
from hpctl.core.model import Verdict

_VERSION = re.compile(r"[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f]{2}){4}")
"""Five bytes: a float holds them exactly."""


def gather(machine: Machine) -> Snapshot:
    """The newest sweep."""
    return sweep(machine)


def gauges(seen: Snapshot, before: Snapshot | None) -> Mapping[str, float]:
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


def judge(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Iterable[Observation]:
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

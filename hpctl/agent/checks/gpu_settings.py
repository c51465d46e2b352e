"""How the GPUs are set up: InfoROM, VBIOS, persistence mode and application clocks.

All GPUs of a node are of one kind and set up alike: one that differs was changed, or exchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hpctl.agent.check import Limits, Machine, Observation
from hpctl.agent.checks.sweep import sweep
from hpctl.agent.nvml.snapshot import Snapshot
from hpctl.core.model import Verdict


def gather(machine: Machine) -> Snapshot:
    """The newest sweep."""
    return sweep(machine)


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

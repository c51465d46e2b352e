"""Uncorrectable memory errors of Neuron devices.

The driver counts from when it was loaded, so any number but zero happened in this boot, whether
the agent ran then or not. AWS says to replace the instance for HBM and SRAM, and to reboot for
what can be repaired (Neuron Runtime troubleshooting guide).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hpctl.agent.check import Limits, Machine, Observation
from hpctl.agent.neuron import Device, ErrorCounters

CODES: Mapping[str, str] = {
    "mem_ecc_uncorrected": "mem_uncorrected",
    "sram_ecc_uncorrected": "sram_uncorrected",
    "mem_ecc_repairable_uncorrected": "mem_repairable",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """The devices with their counters."""

    devices: tuple[Device, ...]


@lru_cache(maxsize=4)
def _counters(root: Path) -> ErrorCounters:
    return ErrorCounters()


def gather(machine: Machine) -> Sample:
    """Read them. Raises NotHere where there is no Neuron device, CannotTell."""
    return Sample(_counters(machine.root).read(machine))


def judge(seen: Sample, before: Sample | None, limits: Limits) -> Iterable[Observation]:
    """Each device and kind of error from the limit on."""
    for device in seen.devices:
        for counter, code in CODES.items():
            count = device.errors.get(counter, 0)
            if count >= limits["errors"]:
                yield Observation(
                    code, device.name, detail=f"{count} uncorrected errors", evidence=counter
                )

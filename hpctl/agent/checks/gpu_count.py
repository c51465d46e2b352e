"""How many GPUs the PCI bus has, the driver lists, and the machine should have."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpctl.agent.check import CannotTell, Limits, Machine, NotHere, Observation
from hpctl.agent.checks.sweep import listed
from hpctl.core.model import Verdict

_NVIDIA = "0x10de"
# 3D controller: data-centre GPUs. Display controllers (0x0300) are left out: they are not for work.
_CLASS = "0x0302"


@dataclass(frozen=True, slots=True)
class Sample:
    """The three counts; None is not known."""

    pci: tuple[str, ...]
    nvml: tuple[str, ...] | None
    expected: int | None


def pci_gpus(machine: Machine) -> tuple[str, ...]:
    """The PCI addresses of NVIDIA's 3D controllers, from sysfs."""
    found = []
    for device in sorted(machine.path("/sys/bus/pci/devices").glob("*")):
        try:
            vendor = (device / "vendor").read_text().strip()
            if vendor == _NVIDIA and (device / "class").read_text().startswith(_CLASS):
                found.append(device.name)
        except OSError:
            # A device that goes while it is looked at is not there.
            continue
    return tuple(found)


def gather(machine: Machine) -> Sample:
    """Count. NotHere where nobody knows of a GPU."""
    pci, expected = pci_gpus(machine), machine.expected.gpus
    nvml: tuple[str, ...] | None
    try:
        nvml = tuple(gpu.device for gpu in listed(machine))
    except NotHere:
        # Without a driver the machine has none to use, which matters where it should have some.
        nvml = () if expected else None
    except CannotTell:
        nvml = None
    if not pci and not nvml and not expected:
        raise NotHere("no GPU on the PCI bus, and none expected")
    return Sample(pci, nvml, expected)


def judge(seen: Sample, before: Sample | None, limits: Limits) -> Iterable[Observation]:
    """The first mismatch: too few on the bus, then too few with the driver, then too many."""
    pci, nvml, expected = len(seen.pci), seen.nvml, seen.expected
    if expected is not None and pci < expected:
        yield Observation("pci", detail=f"{pci} GPUs on the PCI bus, {expected} expected")
    elif nvml is not None and len(nvml) < max(pci, expected or 0):
        missing = ", ".join(sorted(set(seen.pci) - set(nvml))) if nvml else "all"
        detail = f"NVML lists {len(nvml)} of {max(pci, expected or 0)} GPUs; missing: {missing}"
        yield Observation("nvml", detail=detail)
    elif expected is not None and pci > expected:
        detail = f"{pci} GPUs on the PCI bus, only {expected} expected"
        yield Observation("more", verdict=Verdict.WARN, detail=detail)

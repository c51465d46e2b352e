"""Check `gpu.count`: GPUs on the PCI bus, in the driver's list, and of this instance type."""

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    Judged,
    Limits,
    list_nvml_gpu_states,
    make_fail_observation,
    make_warn_observation,
)
from hpctl.detection.machine import list_gpu_pci_addresses

# How many GPUs the PCI bus has, the driver lists, and the machine should have.


class GpuCountSample(Struct, frozen=True):
    """The three counts; None where unknown."""

    pci: tuple[str, ...]
    nvml: tuple[str, ...] | None
    expected: int | None


def collect_gpu_counts(machine: CheckedMachine) -> GpuCountSample:
    """Count. Raises DeviceAbsentError where no source knows of a GPU."""
    pci, expected = list_gpu_pci_addresses(machine.root), machine.expected.gpus
    nvml: tuple[str, ...] | None
    try:
        nvml = tuple(gpu.device for gpu in list_nvml_gpu_states(machine))
    except DeviceAbsentError:
        # Without a driver the machine has no usable GPU, which matters where it should have some.
        nvml = () if expected else None
    except CheckResultUnknownError:
        nvml = None
    if not pci and not nvml and not expected:
        raise DeviceAbsentError("no GPU on the PCI bus, and none expected")
    return GpuCountSample(pci, nvml, expected)


def judge_gpu_count(seen: GpuCountSample, before: GpuCountSample | None, limits: Limits) -> Judged:
    """Return the first mismatch: too few on the bus, then too few with the driver, then too
    many."""
    pci, nvml, expected = len(seen.pci), seen.nvml, seen.expected
    if expected is not None and pci < expected:
        yield make_fail_observation("pci", "", f"{pci} GPUs on the PCI bus, {expected} expected")
    elif nvml is not None and len(nvml) < max(pci, expected or 0):
        missing = ", ".join(sorted(set(seen.pci) - set(nvml))) if nvml else "all"
        detail = f"NVML lists {len(nvml)} of {max(pci, expected or 0)} GPUs; missing: {missing}"
        yield make_fail_observation("nvml", "", detail)
    elif expected is not None and pci > expected:
        yield make_warn_observation(
            "more", "", f"{pci} GPUs on the PCI bus, only {expected} expected"
        )

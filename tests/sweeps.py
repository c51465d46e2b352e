"""Sweeps of the NVML child as literals, and what the table's checks say of them."""

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from hpctl.detection.check import CheckedMachine, CheckObservation, ExpectedHardware
from hpctl.detection.nvml.snapshot import GpuState, NvmlSnapshot
from hpctl.detection.runner import LoadedCheck, load_check
from hpctl.faults.catalogue import SHIPPED
from hpctl.faults.table import CHECKS, HealthCheckSpec

HOPPER = "NVIDIA H100 80GB HBM3"
MINUTE = 60.0


def pci(index: int) -> str:
    return f"0000:{0x10 + index:02x}:00.0"


def gpus(count: int = 8, **values) -> tuple[GpuState, ...]:
    """So many equal GPUs."""
    return tuple(
        GpuState(index, f"GPU-{index}", pci(index), HOPPER, **values) for index in range(count)
    )


def but(index: int, among: tuple[GpuState, ...], **values) -> tuple[GpuState, ...]:
    """The same GPUs, but one of them has other values."""
    return tuple(replace(g, **values) if g.index == index else g for g in among)


def check(name: str) -> LoadedCheck:
    return load_check(row(name))


def row(name: str) -> HealthCheckSpec:
    return next(spec for spec in CHECKS if spec.name == name)


def judged(name: str, seen, before=None) -> list[CheckObservation]:
    """What the check of that name says, by the limits of the table; its rules all exist."""
    one = check(name)
    output = list(one.judge(seen, before, one.limits))
    stem = name.replace(".", "-")
    missing = [o.code for o in output if f"{stem}-{o.code}" not in SHIPPED]
    assert not missing, f"no fault row for {stem}-{missing}"
    assert all(o.detail for o in output)
    return output


def codes(name: str, seen, before=None) -> dict[str, str]:
    """The codes by device."""
    output = judged(name, seen, before)
    found = {o.device: o.code for o in output}
    assert len(found) == len(output), "two codes on one device: use judged()"
    return found


def machine(nvml=None, root=Path("/nowhere"), expected=None):
    return CheckedMachine(
        root, ExpectedHardware(gpus=expected), None if nvml is None else answer(nvml)
    )


def answer(what: NvmlSnapshot | Exception) -> Callable[[], NvmlSnapshot]:
    def nvml() -> NvmlSnapshot:
        if isinstance(what, Exception):
            raise what
        return what

    return nvml


def device(root: Path, address: str, vendor: str = "0x10de", klass: str = "0x030200") -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{klass}\n")


def bus(root: Path, count: int) -> Path:
    """A machine's root with so many GPUs on the PCI bus, and other devices beside them."""
    for index in range(count):
        device(root, pci(index))
    device(root, "0000:00:03.0", klass="0x030000")
    device(root, "0000:00:05.0", vendor="0x1d0f", klass="0x020000")
    device(root, "0000:80:00.0", klass="0x068000")
    return root

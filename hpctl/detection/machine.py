"""What an agent needs to know at its start: this boot's age, what it replaces, what it runs on."""

import contextlib
from pathlib import Path

from msgspec import structs
from msgspec.structs import replace

import hpctl
from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    ExpectedHardware,
)
from hpctl.detection.instance_shapes import get_instance_type_hardware

#
# Whether there is an NVIDIA GPU on the PCI bus: without a driver NVML cannot report it.

NVIDIA = "0x10de"


CONTROLLER_3D = "0x0302"
"""The PCI class of data-centre GPUs. Display controllers (0x0300) do not count."""


def list_gpu_pci_addresses(root: Path) -> tuple[str, ...]:
    """Return the PCI addresses of NVIDIA's 3D controllers, by sysfs under `root`."""
    return tuple(
        d.name for d in sorted(root.glob("sys/bus/pci/devices/*")) if _is_gpu_pci_device(d)
    )


def _is_gpu_pci_device(device: Path) -> bool:
    try:
        vendor = (device / "vendor").read_text().strip()
        return vendor == NVIDIA and (device / "class").read_text().startswith(CONTROLLER_3D)
    except OSError:
        # A device that disappears meanwhile is not there.
        return False


PRODUCT_NAME = "/sys/devices/virtual/dmi/id/product_name"


def read_machine_uptime_s(machine: CheckedMachine) -> float:
    """Return the seconds since the machine booted; 0 where unknown, so that every grace applies."""
    try:
        return float(machine.text("/proc/uptime").split()[0])
    except (CheckResultUnknownError, DeviceAbsentError, ValueError, IndexError):
        return 0.0


def record_agent_version_change(spool: Path) -> bool:
    """Return whether another version of the agent ran here last, and record this version.

    A first start is no upgrade. Nor is a spool that cannot be written: the grace would restart with
    every start.
    """
    file = spool / "version"
    try:
        last = file.read_text().strip()
    except OSError:
        last = ""
    if last == hpctl.__version__:
        return False
    with contextlib.suppress(OSError):
        spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text(f"{hpctl.__version__}\n")
        return last != ""
    return False


def build_checked_machine(root: Path, configured: ExpectedHardware) -> CheckedMachine:
    """Return the machine to check; the instance type gives what the settings leave open.

    A Nitro instance has its type as the product name in its firmware's tables.
    """
    bare = CheckedMachine(root, configured)
    kind = configured.instance_type
    if not kind:
        with contextlib.suppress(CheckResultUnknownError, DeviceAbsentError):
            kind = bare.text(PRODUCT_NAME)
    shape = get_instance_type_hardware(kind)
    gpus = shape.gpus if configured.gpus is None else configured.gpus
    return replace(bare, expected=structs.replace(configured, instance_type=kind, gpus=gpus))

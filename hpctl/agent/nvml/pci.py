"""Whether there is an NVIDIA GPU on the PCI bus: without a driver NVML cannot say."""

from __future__ import annotations

from pathlib import Path

NVIDIA = "0x10de"
CONTROLLER_3D = "0x0302"
"""The PCI class of data-centre GPUs. Display controllers (0x0300) are not for work."""


def has_gpu(root: Path) -> bool:
    """True when sysfs under `root` lists one."""
    return any(_is_gpu(device) for device in root.glob("sys/bus/pci/devices/*"))


def _is_gpu(device: Path) -> bool:
    try:
        vendor = (device / "vendor").read_text().strip()
        return vendor == NVIDIA and (device / "class").read_text().startswith(CONTROLLER_3D)
    except OSError:
        # A device that goes while it is looked at is not there.
        return False

"""RDMA devices (EFA on AWS, InfiniBand and RoCE elsewhere), and their counters over time."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

from msgspec import Struct

from hpctl.detection.check import CheckedMachine, CheckResultUnknownError, DeviceAbsentError

CLASS = "/sys/class/infiniband"


PCI = "/sys/bus/pci/devices"


AMAZON = "0x1d0f"


EFA = re.compile(r"0xefa[0-9a-f]")
"""PCI device ids of EFA: 0xefa0 and its successors."""


_RATE = re.compile(r"(\d{1,5}(?:\.\d)?) Gb/sec")


MOST_DEVICES = 128
"""Limit of the RDMA devices that are read: no machine has so many."""


class RdmaDevice(Struct, frozen=True):
    """One RDMA device by its kernel name (`rdmap79s0`, `mlx5_0`), and where it is in sysfs."""

    name: str
    folder: str
    efa: bool


def list_rdma_devices(machine: CheckedMachine) -> tuple[RdmaDevice, ...]:
    """Return every RDMA device, by name. Raises DeviceAbsentError where the kernel has no RDMA,
    CheckResultUnknownError."""
    folder = str(machine.path(CLASS))
    try:
        names = sorted(os.listdir(folder))[:MOST_DEVICES]
    except FileNotFoundError as error:
        raise DeviceAbsentError(f"no {CLASS}") from error
    except OSError as error:
        raise CheckResultUnknownError(f"{CLASS}: {error.strerror}") from error
    found = []
    for name in names:
        where = f"{folder}/{name}"
        try:
            inode = os.stat(where).st_ino
        except OSError:
            continue  # removed between the two reads
        found.append(RdmaDevice(name, where, is_efa_pci_device(f"{where}/device", inode)))
    return tuple(found)


def list_efa_devices(machine: CheckedMachine) -> tuple[RdmaDevice, ...]:
    """Return the EFA devices that have a driver. Raises DeviceAbsentError where there are none,
    CheckResultUnknownError."""
    found = tuple(device for device in list_rdma_devices(machine) if device.efa)
    if not found:
        raise DeviceAbsentError("no EFA device")
    return found


def list_infiniband_devices(machine: CheckedMachine) -> tuple[RdmaDevice, ...]:
    """Return the InfiniBand and RoCE devices. Raises DeviceAbsentError where there are none,
    CheckResultUnknownError."""
    found = tuple(device for device in list_rdma_devices(machine) if not device.efa)
    if not found:
        raise DeviceAbsentError("no InfiniBand or RoCE device")
    return found


def count_efa_pci_functions(machine: CheckedMachine) -> int | None:
    """Return how many EFA functions the PCI bus has, with a driver or not; None if it cannot be
    read."""
    return count_amazon_pci_functions(machine, EFA)


def count_amazon_pci_functions(machine: CheckedMachine, device: re.Pattern[str]) -> int | None:
    """Return how many of Amazon's PCI functions have such a device id; None if it cannot be
    read."""
    folder = str(machine.path(PCI))
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    found = 0
    for name in names:
        with suppress(OSError):  # unplugged between the two reads
            found += _is_amazon_pci_function(f"{folder}/{name}", device)
    return found


def is_efa_pci_device(folder: str, inode: int) -> bool:
    """Return whether the PCI device in that folder is an EFA. `inode`: the RDMA device's, its
    identity."""
    try:
        return _is_cached_efa_device(folder, inode)
    except OSError:
        return False  # a software device has no PCI folder; a new one is read again


@lru_cache(maxsize=512)
def _is_cached_efa_device(folder: str, inode: int) -> bool:  # noqa: ARG001 - a device that returns is another one
    return _is_amazon_pci_function(folder, EFA)


def _is_amazon_pci_function(folder: str, device: re.Pattern[str]) -> bool:
    """Return whether the vendor is Amazon. Raises OSError."""
    return _read_sysfs_word(f"{folder}/vendor") == AMAZON and bool(
        device.fullmatch(_read_sysfs_word(f"{folder}/device"))
    )


def _read_sysfs_word(path: str) -> str:
    with open(path, "rb") as file:
        return file.read(64).decode("ascii", "replace").strip().lower()


class RdmaPort(Struct, frozen=True):
    """One port's state as the kernel writes it, without its number: `ACTIVE`, `LinkUp`."""

    device: str
    number: str
    state: str
    phys_state: str
    gbps: float = 0.0
    """Its rate, `400 Gb/sec (4X NDR)`; 0 where unknown."""

    @property
    def name(self) -> str:
        """Return the device, and the port where the device can have several: `mlx5_0/2`."""
        return self.device if self.number == "1" else f"{self.device}/{self.number}"

    @property
    def active(self) -> bool:
        """Return whether it can carry traffic."""
        return self.state == "ACTIVE"


def list_rdma_ports(found: Sequence[RdmaDevice]) -> tuple[RdmaPort, ...]:
    """Return the ports of these devices whose state could be read."""
    seen = []
    for device in found:
        try:
            numbers = sorted(os.listdir(f"{device.folder}/ports"))
        except OSError:
            continue
        for number in numbers[:8]:
            folder = f"{device.folder}/ports/{number}"
            state = _read_rdma_port_state(f"{folder}/state")
            if state:
                phys, rate = (
                    _read_rdma_port_state(f"{folder}/phys_state"),
                    _RATE.match(_read_sysfs_file(f"{folder}/rate")),
                )
                gbps = float(rate[1]) if rate else 0.0
                seen.append(RdmaPort(device.name, number, state, phys, gbps))
    return tuple(seen)


def _read_rdma_port_state(path: str) -> str:
    """Return `4: ACTIVE`, as the kernel writes it, without the number."""
    return _read_sysfs_file(path).partition(":")[2].strip()


def _read_sysfs_file(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(64).decode("ascii", "replace")
    except OSError:
        return ""

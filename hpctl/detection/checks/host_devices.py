"""Check `host.devices`: the NVMe disks of the instance type; network cards that were there."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    DeviceAbsentError,
    Judged,
    Limits,
    make_fail_observation,
    make_warn_observation,
)
from hpctl.detection.instance_shapes import get_instance_type_hardware

# The instance's own NVMe disks and its network cards: as many as expected, and as before.
#
# The PCI function identifies a device: EBS volumes and network interfaces that a user attaches or
# detaches are not counted, only what the instance type has.

PCI = "/sys/bus/pci/devices"


AMAZON, MELLANOX = "0x1d0f", "0x15b3"


# Amazon's PCI functions (drivers/nvme/host/pci.c and amzn-drivers): instance storage, and ENA.
_DISKS = frozenset({"0xcd00", "0xcd01", "0xcd02"})


_ENA = frozenset({"0x0ec2", "0x1ec2", "0xec20", "0xec21"})


_NETWORK = "0x02"
"""PCI class of network controllers."""


class PciDeviceSample(Struct, frozen=True):
    """PCI addresses now, those of network cards that have disappeared since the agent began, and
    how many disks the instance type has."""

    disks: tuple[str, ...]
    cards: tuple[str, ...]
    gone: tuple[str, ...]
    expected_disks: int | None


@lru_cache(maxsize=4)
def _get_seen_network_cards(root: Path) -> set[str]:
    return set()


def collect_pci_device_sample(machine: CheckedMachine) -> PciDeviceSample:
    """List every PCI function. Raises DeviceAbsentError where there is none of either."""
    disks, cards = [], []
    for folder in sorted(machine.path(PCI).glob("*")):
        try:
            vendor, device, kind = (
                (folder / name).read_text().strip() for name in ("vendor", "device", "class")
            )
        except OSError:
            continue  # one that disappears meanwhile is not there
        if vendor == AMAZON and device in _DISKS:
            disks.append(folder.name)
        elif kind.startswith(_NETWORK) and (vendor == MELLANOX or device in _ENA):
            cards.append(folder.name)
    seen = _get_seen_network_cards(machine.root)
    gone = tuple(sorted(seen - set(cards)))
    seen.update(cards)
    expected = get_instance_type_hardware(machine.expected.instance_type).nvme_disks
    if not disks and not cards and not gone:
        raise DeviceAbsentError("no network card, and no disk of an instance")
    return PciDeviceSample(tuple(disks), tuple(cards), gone, expected)


def judge_missing_pci_devices(
    seen: PciDeviceSample, before: PciDeviceSample | None, limits: Limits
) -> Judged:
    """Return too few disks, and network cards that have disappeared.

    Where no disk is visible, the view is restricted: a machine does not lose all of them together.
    """
    if seen.expected_disks is not None and 0 < len(seen.disks) < seen.expected_disks:
        detail = f"{len(seen.disks)} of {seen.expected_disks} instance-storage disks on the bus"
        yield make_fail_observation("nvme", "", detail)
    for card in seen.gone:
        yield make_warn_observation("network", card, "the network card was there and is gone")

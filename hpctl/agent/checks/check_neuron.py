"""AWS Neuron devices: all there, and without uncorrected memory errors."""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from msgspec import Struct, field

from hpctl.agent.check import CannotTell, Functions, Judged, Limits, Machine, NotHere, fail, warn
from hpctl.agent.machine import shape_of
from hpctl.agent.rdma import pci_functions

# --- what the checks below share ----------
# AWS Neuron devices (Trainium, Inferentia) as their driver shows them in sysfs.

PLACES = ("/sys/devices/virtual/neuron_device", "/sys/class/neuron_device")
NAME = re.compile(r"neuron\d+")
PCI_ID = re.compile(r"0x7[0-9]64")
"""PCI device ids of Neuron: 0x7064 (Inferentia), 0x7164 (Trainium), and what followed."""
COUNTERS = ("mem_ecc_uncorrected", "sram_ecc_uncorrected", "mem_ecc_repairable_uncorrected")
"""Names of the driver (Neuron Sysfs User Guide); the last is missing from older drivers."""
OLD_FOLDER = "stats/hardware"
"""Where they were before driver 2.31, which moved nodes of its tree."""
MOST_DEPTH = 4
MOST_FOLDERS = 200
"""How far below a device the counters are looked for where they are not in OLD_FOLDER."""


class Device(Struct, frozen=True):
    """One Neuron device and its error counters; one that its driver lacks is not there."""

    name: str
    errors: Mapping[str, int] = field(default_factory=dict)


def names(machine: Machine) -> dict[str, str]:
    """The devices that the driver shows, and their folders. Empty where there is no driver."""
    for place in PLACES:
        folder = str(machine.path(place))
        try:
            found = sorted(name for name in os.listdir(folder) if NAME.fullmatch(name))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CannotTell(f"{place}: {error.strerror}") from error
        return {name: f"{folder}/{name}" for name in found}
    return {}


class ErrorCounters:
    """Where each device keeps its error counters, found once. Not for several threads at once."""

    def __init__(self) -> None:
        self._found: dict[str, Mapping[str, str]] = {}

    def read(self, machine: Machine) -> tuple[Device, ...]:
        """Every device with its counters. Raises NotHere where there is no Neuron device."""
        folders = names(machine)
        if not folders:
            raise NotHere("no Neuron device")
        return tuple(Device(name, self._device(folder)) for name, folder in folders.items())

    def _device(self, folder: str) -> dict[str, int]:
        found = self._found.get(folder) or find(folder)
        errors = {}
        for name, path in found.items():
            try:
                with open(path, "rb") as file:
                    errors[name] = int(file.read(64))
            except (OSError, ValueError):
                # Not where it was: a driver of another release was loaded. Looked for again.
                self._found.pop(folder, None)
                return errors
        if errors:
            self._found[folder] = found
        return errors


def find(folder: str) -> Mapping[str, str]:
    """The files of COUNTERS below a device, wherever this driver's release keeps them."""
    found = _counters_in(f"{folder}/{OLD_FOLDER}")
    return found or _walk(folder)


def _walk(folder: str) -> dict[str, str]:
    """Breadth first, so that a device's own counter goes before one of its cores."""
    found: dict[str, str] = {}
    waiting = [(folder, 0)]
    looked = 0
    while waiting and looked < MOST_FOLDERS:
        here, depth = waiting.pop(0)
        looked += 1
        found = {**_counters_in(here), **found}
        if depth < MOST_DEPTH:
            waiting += [(below, depth + 1) for below in _folders(here)]
    return found


def _counters_in(folder: str) -> dict[str, str]:
    """A counter is a file, or a folder with its number in `total`."""
    found = {}
    for name in COUNTERS:
        path = f"{folder}/{name}"
        if os.path.isfile(f"{path}/total"):
            found[name] = f"{path}/total"
        elif os.path.isfile(path):
            found[name] = path
    return found


def _folders(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(e.path for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return []


# --- neuron.devices ----------
# Whether all Neuron devices are there: as many as configured, or as the type has.


class Sample(Struct, frozen=True):
    """The devices of the driver by name, the bus's own count, and what there should be."""

    names: tuple[str, ...]
    on_bus: int | None
    wanted: int | None


def gather_devices(machine: Machine) -> Sample:
    """Count. Raises NotHere where there is none and none is expected, CannotTell."""
    found, bus = tuple(names(machine)), pci_functions(machine, PCI_ID)
    wanted = machine.expected.neuron_devices
    if wanted is None:
        wanted = shape_of(machine.expected.instance_type).neuron_devices
    if not found and not bus and not wanted:
        raise NotHere("no Neuron device")
    return Sample(found, bus, wanted)


def judge_devices(seen: Sample, before: Sample | None, limits: Limits) -> Judged:
    """Fewer than there should be, more, or on the bus and unknown to the driver."""
    found = len(seen.names)
    on_bus = "" if seen.on_bus is None else f", {seen.on_bus} on the PCI bus"
    if seen.wanted is not None and found < seen.wanted:
        yield fail("fewer", "", f"{found} of {seen.wanted} Neuron devices{on_bus}")
    elif seen.wanted is not None and found > seen.wanted:
        yield warn("more", "", f"{found} Neuron devices, {seen.wanted} expected")
    elif seen.on_bus is not None and seen.on_bus > found:
        yield warn("unbound", "", f"{found} Neuron devices{on_bus}: no driver for the rest")


# --- neuron.errors ----------
# Uncorrectable memory errors of Neuron devices.
#
# The driver counts from when it was loaded, so any number but zero happened in this boot, whether
# the agent ran then or not. AWS says to replace the instance for HBM and SRAM, and to reboot for
# what can be repaired (Neuron Runtime troubleshooting guide).

CODES: Mapping[str, str] = {
    "mem_ecc_uncorrected": "mem_uncorrected",
    "sram_ecc_uncorrected": "sram_uncorrected",
    "mem_ecc_repairable_uncorrected": "mem_repairable",
}


@lru_cache(maxsize=4)
def _counters(root: Path) -> ErrorCounters:
    return ErrorCounters()


def gather_errors(machine: Machine) -> tuple[Device, ...]:
    """Read them. Raises NotHere where there is no Neuron device, CannotTell."""
    return _counters(machine.root).read(machine)


def judge_errors(
    seen: tuple[Device, ...], before: tuple[Device, ...] | None, limits: Limits
) -> Judged:
    """Each device and kind of error from the limit on."""
    for device in seen:
        for counter, code in CODES.items():
            count = device.errors.get(counter, 0)
            if count >= limits["errors"]:
                yield fail(code, device.name, f"{count} uncorrected errors", counter)


CHECKS = {
    "neuron.devices": Functions(gather_devices, judge_devices),
    "neuron.errors": Functions(gather_errors, judge_errors),
}
"""What the runner calls, by the check's name."""

"""Readings that the checks of this family share."""

import os
import re
from collections.abc import Mapping

from msgspec import Struct, field

from hpctl.detection.check import CheckedMachine, CheckResultUnknownError, DeviceAbsentError
from hpctl.detection.counter_rules import list_check_counter_rules

# AWS Neuron devices (Trainium, Inferentia) as their driver shows them in sysfs.

PLACES = ("/sys/devices/virtual/neuron_device", "/sys/class/neuron_device")


NAME = re.compile(r"neuron\d+")


PCI_ID = re.compile(r"0x7[0-9]64")
"""PCI device ids of Neuron: 0x7064 (Inferentia), 0x7164 (Trainium), and later ones."""


COUNTERS = tuple(rule.name for rule in list_check_counter_rules("neuron.errors"))
"""Names of the driver (Neuron Sysfs User Guide); the last is missing from older drivers."""


OLD_FOLDER = "stats/hardware"
"""Their folder before driver 2.31, which moved nodes of its tree."""


MOST_DEPTH = 4


MOST_FOLDERS = 200
"""How many levels below a device the counters are searched where they are not in OLD_FOLDER."""


class NeuronDevice(Struct, frozen=True):
    """One Neuron device and its error counters; one that its driver lacks is missing."""

    name: str
    errors: Mapping[str, int] = field(default_factory=dict)


def map_neuron_devices_to_folders(machine: CheckedMachine) -> dict[str, str]:
    """Return the devices that the driver shows, and their folders. Empty where there is no
    driver."""
    for place in PLACES:
        folder = str(machine.path(place))
        try:
            found = sorted(name for name in os.listdir(folder) if NAME.fullmatch(name))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CheckResultUnknownError(f"{place}: {error.strerror}") from error
        return {name: f"{folder}/{name}" for name in found}
    return {}


class NeuronErrorReader:
    """The places of each device's error counters, found once. Not for several threads at once."""

    def __init__(self) -> None:
        self._found: dict[str, Mapping[str, str]] = {}

    def read(self, machine: CheckedMachine) -> tuple[NeuronDevice, ...]:
        """Return every device with its counters. Raises DeviceAbsentError where there is no Neuron
        device."""
        folders = map_neuron_devices_to_folders(machine)
        if not folders:
            raise DeviceAbsentError("no Neuron device")
        return tuple(
            NeuronDevice(name, self._read_device_error_counters(folder))
            for name, folder in folders.items()
        )

    def _read_device_error_counters(self, folder: str) -> dict[str, int]:
        found = self._found.get(folder) or find_neuron_counter_files(folder)
        errors = {}
        for name, path in found.items():
            try:
                with open(path, "rb") as file:
                    errors[name] = int(file.read(64))
            except (OSError, ValueError):
                # Not at its place: a driver of another release was loaded. Search again.
                self._found.pop(folder, None)
                return errors
        if errors:
            self._found[folder] = found
        return errors


def find_neuron_counter_files(folder: str) -> Mapping[str, str]:
    """Return the files of COUNTERS below a device, wherever this driver's release keeps them."""
    found = _list_folder_counter_files(f"{folder}/{OLD_FOLDER}")
    return found or _search_neuron_counter_files(folder)


def _search_neuron_counter_files(folder: str) -> dict[str, str]:
    """Walk breadth first, so that a device's own counter comes before one of its cores."""
    found: dict[str, str] = {}
    waiting = [(folder, 0)]
    looked = 0
    while waiting and looked < MOST_FOLDERS:
        here, depth = waiting.pop(0)
        looked += 1
        found = {**_list_folder_counter_files(here), **found}
        if depth < MOST_DEPTH:
            waiting += [(below, depth + 1) for below in list_subfolders(here)]
    return found


def _list_folder_counter_files(folder: str) -> dict[str, str]:
    """Return the counters in a folder. A counter is a file, or a folder with its number in
    `total`."""
    found = {}
    for name in COUNTERS:
        path = f"{folder}/{name}"
        if os.path.isfile(f"{path}/total"):
            found[name] = f"{path}/total"
        elif os.path.isfile(path):
            found[name] = path
    return found


def list_subfolders(folder: str) -> list[str]:
    """Return the folders of a folder, without links; none of one that cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(e.path for e in entries if e.is_dir(follow_symlinks=False))
    except OSError:
        return []

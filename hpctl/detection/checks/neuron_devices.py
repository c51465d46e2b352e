"""Check `neuron.devices`: as many Neuron devices as there should be."""

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    DeviceAbsentError,
    Judged,
    Limits,
    make_fail_observation,
    make_warn_observation,
)
from hpctl.detection.checks.neuron_reading import PCI_ID, map_neuron_devices_to_folders
from hpctl.detection.instance_shapes import get_instance_type_hardware
from hpctl.detection.rdma import count_amazon_pci_functions

# Whether all Neuron devices are present: as many as configured, or as the type has.


class NeuronDeviceSample(Struct, frozen=True):
    """The devices of the driver by name, the bus's own count, and the expected number."""

    names: tuple[str, ...]
    on_bus: int | None
    wanted: int | None


def collect_neuron_device_sample(machine: CheckedMachine) -> NeuronDeviceSample:
    """Count Neuron devices. Raises DeviceAbsentError where there is none and none is expected,
    CheckResultUnknownError."""
    found, bus = (
        tuple(map_neuron_devices_to_folders(machine)),
        count_amazon_pci_functions(machine, PCI_ID),
    )
    wanted = machine.expected.neuron_devices
    if wanted is None:
        wanted = get_instance_type_hardware(machine.expected.instance_type).neuron_devices
    if not found and not bus and not wanted:
        raise DeviceAbsentError("no Neuron device")
    return NeuronDeviceSample(found, bus, wanted)


def judge_neuron_device_count(
    seen: NeuronDeviceSample, before: NeuronDeviceSample | None, limits: Limits
) -> Judged:
    """Return devices that are fewer than expected, more, or on the bus and unknown to the
    driver."""
    found = len(seen.names)
    on_bus = "" if seen.on_bus is None else f", {seen.on_bus} on the PCI bus"
    if seen.wanted is not None and found < seen.wanted:
        yield make_fail_observation("fewer", "", f"{found} of {seen.wanted} Neuron devices{on_bus}")
    elif seen.wanted is not None and found > seen.wanted:
        yield make_warn_observation("more", "", f"{found} Neuron devices, {seen.wanted} expected")
    elif seen.on_bus is not None and seen.on_bus > found:
        yield make_warn_observation(
            "unbound", "", f"{found} Neuron devices{on_bus}: no driver for the rest"
        )

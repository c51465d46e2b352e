"""Check `efa.devices`: as many EFA devices as there should be, each with a driver."""

from functools import lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpctl.detection.check import (
    CheckedMachine,
    DeviceAbsentError,
    Judged,
    Limits,
    make_fail_observation,
    make_warn_observation,
)
from hpctl.detection.instance_shapes import get_instance_type_hardware
from hpctl.detection.rdma import count_efa_pci_functions, list_rdma_devices

# Whether all EFA devices are present: on the bus, with a driver, as many as there should be.
#
# What there should be is what the agent is configured to expect, else what the instance type has,
# else the most that this run of the agent saw. An instance may be launched with fewer EFA
# interfaces than its type has, or with none: with neither, the check reports nothing.

MOST_NAMES = 8
"""Names listed in one finding."""


class EfaDeviceSample(Struct, frozen=True):
    """The EFA devices by name, the bus's own count, and the expected number with its source."""

    names: tuple[str, ...]
    on_bus: int | None
    wanted: int | None
    by: str
    gone: tuple[str, ...] = ()


class _SeenEfaDevices(Struct):
    """The names that this run of the agent has seen below one root."""

    names: frozenset[str] = frozenset()


@lru_cache(maxsize=4)
def _get_seen_efa_devices(root: Path) -> _SeenEfaDevices:
    return _SeenEfaDevices()


def collect_efa_device_sample(machine: CheckedMachine) -> EfaDeviceSample:
    """Count the EFA devices. Raises DeviceAbsentError where there is no EFA and none is expected,
    CheckResultUnknownError."""
    try:
        names = tuple(device.name for device in list_rdma_devices(machine) if device.efa)
    except DeviceAbsentError:
        names = ()
    seen = _get_seen_efa_devices(machine.root)
    on_bus = count_efa_pci_functions(machine)
    sample = _add_expected_efa_device_count(
        machine, EfaDeviceSample(names, on_bus, None, ""), len(seen.names)
    )
    if not names and not on_bus and not sample.wanted:
        raise DeviceAbsentError("no EFA device")
    gone = tuple(sorted(seen.names - set(names)))
    # A device may come back under another name: only as many as the most seen at once are kept.
    if len(names) >= len(seen.names):
        seen.names = frozenset(names)
    return replace(sample, gone=gone)


def _add_expected_efa_device_count(
    machine: CheckedMachine, sample: EfaDeviceSample, most: int
) -> EfaDeviceSample:
    configured = machine.expected.efa_devices
    if configured is not None:
        return replace(sample, wanted=configured, by="the agent's settings")
    usual = get_instance_type_hardware(machine.expected.instance_type).efa_devices
    if usual is not None and (sample.names or sample.on_bus or most):
        return replace(sample, wanted=usual, by=machine.expected.instance_type)
    return replace(sample, wanted=most or None, by="earlier in this run of the agent")


def judge_efa_device_count(
    seen: EfaDeviceSample, before: EfaDeviceSample | None, limits: Limits
) -> Judged:
    """Return devices that are fewer than expected, more, or on the bus without a driver."""
    found, bus = len(seen.names), seen.on_bus
    on_bus = "" if bus is None else f", {bus} on the PCI bus"
    if seen.wanted is not None and found < seen.wanted:
        gone = f"; gone: {', '.join(seen.gone[:MOST_NAMES])}" if seen.gone else ""
        yield make_fail_observation(
            "fewer", "", f"{found} of {seen.wanted} EFA devices ({seen.by}){on_bus}{gone}"
        )
    elif seen.wanted is not None and found > seen.wanted:
        yield make_warn_observation(
            "more", "", f"{found} EFA devices, {seen.wanted} expected ({seen.by})"
        )
    elif bus is not None and bus > found:
        yield make_warn_observation(
            "unbound", "", f"{bus - found} of {bus} EFA devices have no driver"
        )

"""Check `efa.devices`: as many EFA devices as there should be, each with a driver."""

from functools import lru_cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpctl.detection.check import Judged, Limits, Machine, NotHere, fail, warn
from hpctl.detection.instance_shapes import shape_of
from hpctl.detection.rdma import devices, efa_functions

# Whether all EFA devices are there: on the bus, with a driver, as many as there should be.
#
# What there should be is what the agent is configured to expect, else what the instance type
# has, else the most that this run of the agent saw. An instance may be launched with fewer EFA
# interfaces than its type has, or with none: with neither, the check says nothing.

MOST_NAMES = 8
"""Names listed in one finding."""


class Sample(Struct, frozen=True):
    """The EFA devices by name, the bus's own count, and what there should be by whose word."""

    names: tuple[str, ...]
    on_bus: int | None
    wanted: int | None
    by: str
    gone: tuple[str, ...] = ()


class _Seen(Struct):
    """The names that this run of the agent has seen below one root."""

    names: frozenset[str] = frozenset()


@lru_cache(maxsize=4)
def _seen(root: Path) -> _Seen:
    return _Seen()


def gather_devices(machine: Machine) -> Sample:
    """Count. Raises NotHere where there is no EFA and none is expected, CannotTell."""
    try:
        names = tuple(device.name for device in devices(machine) if device.efa)
    except NotHere:
        names = ()
    seen = _seen(machine.root)
    on_bus = efa_functions(machine)
    sample = _wanted(machine, Sample(names, on_bus, None, ""), len(seen.names))
    if not names and not on_bus and not sample.wanted:
        raise NotHere("no EFA device")
    gone = tuple(sorted(seen.names - set(names)))
    # A device may come back under another name: only as many as the most seen at once are kept.
    if len(names) >= len(seen.names):
        seen.names = frozenset(names)
    return replace(sample, gone=gone)


def _wanted(machine: Machine, sample: Sample, most: int) -> Sample:
    configured = machine.expected.efa_devices
    if configured is not None:
        return replace(sample, wanted=configured, by="the agent's settings")
    usual = shape_of(machine.expected.instance_type).efa_devices
    if usual is not None and (sample.names or sample.on_bus or most):
        return replace(sample, wanted=usual, by=machine.expected.instance_type)
    return replace(sample, wanted=most or None, by="earlier in this run of the agent")


def judge_devices(seen: Sample, before: Sample | None, limits: Limits) -> Judged:
    """Fewer than there should be, more, or on the bus and without a driver."""
    found, bus = len(seen.names), seen.on_bus
    on_bus = "" if bus is None else f", {bus} on the PCI bus"
    if seen.wanted is not None and found < seen.wanted:
        gone = f"; gone: {', '.join(seen.gone[:MOST_NAMES])}" if seen.gone else ""
        yield fail("fewer", "", f"{found} of {seen.wanted} EFA devices ({seen.by}){on_bus}{gone}")
    elif seen.wanted is not None and found > seen.wanted:
        yield warn("more", "", f"{found} EFA devices, {seen.wanted} expected ({seen.by})")
    elif bus is not None and bus > found:
        yield warn("unbound", "", f"{bus - found} of {bus} EFA devices have no driver")

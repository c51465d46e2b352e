"""Whether all Neuron devices are there: as many as the agent was told, or as the type has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpctl.agent.check import Limits, Machine, NotHere, Observation
from hpctl.agent.instance_shapes import shape_of
from hpctl.agent.neuron import names, on_bus
from hpctl.core.model import Verdict


@dataclass(frozen=True, slots=True)
class Sample:
    """The devices of the driver by name, the bus's own count, and what there should be."""

    names: tuple[str, ...]
    on_bus: int | None
    wanted: int | None


def gather(machine: Machine) -> Sample:
    """Count. Raises NotHere where there is none and none is expected, CannotTell."""
    found, bus = tuple(names(machine)), on_bus(machine)
    wanted = machine.expected.neuron_devices
    if wanted is None:
        wanted = shape_of(machine.expected.instance_type).neuron_devices
    if not found and not bus and not wanted:
        raise NotHere("no Neuron device")
    return Sample(found, bus, wanted)


def judge(seen: Sample, before: Sample | None, limits: Limits) -> Iterable[Observation]:
    """Fewer than there should be, more, or on the bus and unknown to the driver."""
    found = len(seen.names)
    on_bus = "" if seen.on_bus is None else f", {seen.on_bus} on the PCI bus"
    if seen.wanted is not None and found < seen.wanted:
        yield Observation("fewer", detail=f"{found} of {seen.wanted} Neuron devices{on_bus}")
    elif seen.wanted is not None and found > seen.wanted:
        yield Observation(
            "more", "", Verdict.WARN, f"{found} Neuron devices, {seen.wanted} expected"
        )
    elif seen.on_bus is not None and seen.on_bus > found:
        yield Observation(
            "unbound", "", Verdict.WARN, f"{found} Neuron devices{on_bus}: no driver for the rest"
        )

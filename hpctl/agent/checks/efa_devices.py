"""Whether all EFA devices are there: on the bus, with a driver, as many as there should be.

What there should be is what the agent was told, else what the instance type has, else the most
that this run of the agent saw. An instance may be launched with fewer EFA interfaces than its type
has, or with none: told nothing and seeing none, the check says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from hpctl.agent.check import Limits, Machine, NotHere, Observation
from hpctl.agent.instance_shapes import shape_of
from hpctl.agent.rdma import devices, efa_functions
from hpctl.core.model import Verdict

MOST_NAMES = 8
"""Names told in one finding."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The EFA devices by name, the bus's own count, and what there should be by whose word."""

    names: tuple[str, ...]
    on_bus: int | None
    wanted: int | None
    by: str
    gone: tuple[str, ...] = ()


@dataclass(slots=True)
class _Seen:
    """The names that this run of the agent has seen below one root."""

    names: frozenset[str] = frozenset()


@lru_cache(maxsize=4)
def _seen(root: Path) -> _Seen:
    return _Seen()


def gather(machine: Machine) -> Sample:
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
    told = machine.expected.efa_devices
    if told is not None:
        return replace(sample, wanted=told, by="the agent's settings")
    usual = shape_of(machine.expected.instance_type).efa_devices
    if usual is not None and (sample.names or sample.on_bus or most):
        return replace(sample, wanted=usual, by=machine.expected.instance_type)
    return replace(sample, wanted=most or None, by="earlier in this run of the agent")


def judge(seen: Sample, before: Sample | None, limits: Limits) -> Iterable[Observation]:
    """Fewer than there should be, more, or on the bus and without a driver."""
    found, bus = len(seen.names), seen.on_bus
    on_bus = "" if bus is None else f", {bus} on the PCI bus"
    if seen.wanted is not None and found < seen.wanted:
        gone = f"; gone: {', '.join(seen.gone[:MOST_NAMES])}" if seen.gone else ""
        yield Observation(
            "fewer", detail=f"{found} of {seen.wanted} EFA devices ({seen.by}){on_bus}{gone}"
        )
    elif seen.wanted is not None and found > seen.wanted:
        yield Observation(
            "more", "", Verdict.WARN, f"{found} EFA devices, {seen.wanted} expected ({seen.by})"
        )
    elif bus is not None and bus > found:
        yield Observation(
            "unbound", "", Verdict.WARN, f"{bus - found} of {bus} EFA devices have no driver"
        )

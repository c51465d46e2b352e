"""Whether InfiniBand and RoCE ports that worked still do, and as fast as they did.

A port that was never active in this run of the agent is one that nobody cabled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hpctl.agent.check import Limits, Machine, NotHere, Observation
from hpctl.agent.rdma import Port, other_devices, ports


@dataclass(frozen=True, slots=True)
class Sample:
    """The ports now, those that were active once, and the devices that are gone since."""

    ports: tuple[Port, ...]
    were_active: frozenset[str] = frozenset()
    gone: tuple[str, ...] = ()
    fastest: tuple[tuple[str, float], ...] = ()
    """Gb/s that a port has had at best."""


@dataclass(slots=True)
class _Seen:
    """What this run of the agent has seen below one root."""

    devices: set[str]
    active: set[str]
    fastest: dict[str, float]


@lru_cache(maxsize=4)
def _seen(root: Path) -> _Seen:
    return _Seen(set(), set(), {})


def gather(machine: Machine) -> Sample:
    """Read the states. Raises NotHere where there never was such a device, CannotTell."""
    seen = _seen(machine.root)
    try:
        found = other_devices(machine)
    except NotHere:
        if not seen.devices:
            raise
        found = ()
    now = ports(found)
    gone = tuple(sorted(seen.devices - {device.name for device in found}))
    sample = Sample(now, frozenset(seen.active), gone, tuple(seen.fastest.items()))
    for port in now:
        if port.active:
            seen.fastest[port.name] = max(port.gbps, seen.fastest.get(port.name, 0.0))
    seen.devices.update(device.name for device in found)
    seen.active.update(port.name for port in now if port.active)
    return sample


def gauges(seen: Sample, before: Sample | None) -> Mapping[str, float]:
    """`rdma.gbps`: the rate of the slowest port in use."""
    rates = [port.gbps for port in seen.ports if port.active and port.gbps > 0]
    return {"rdma.gbps": min(rates)} if rates else {}


def judge(seen: Sample, before: Sample | None, limits: Limits) -> Iterable[Observation]:
    """Ports that were active and are not, that became slower, and devices that went."""
    fastest = dict(seen.fastest)
    for port in seen.ports:
        if port.active and 0 < port.gbps < (best := fastest.get(port.name, 0.0)):
            yield Observation("slow", port.name, detail=f"{port.gbps:g} of {best:g} Gb/s")
        if not port.active and port.name in seen.were_active:
            yield Observation(
                "down", port.name, detail=f"port is {port.state}, link {port.phys_state or '?'}"
            )
    for device in seen.gone:
        yield Observation("gone", device, detail="the device was there and is gone")

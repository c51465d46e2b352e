"""Check `rdma.link`: InfiniBand and RoCE ports that were active still are."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    DeviceAbsentError,
    Judged,
    Limits,
    make_fail_observation,
)
from hpctl.detection.rdma import RdmaPort, list_infiniband_devices, list_rdma_ports

# Whether InfiniBand and RoCE ports that worked still do, at the same rate.
#
# A port that was never active in this run of the agent is one without a cable.


class RdmaLinkSample(Struct, frozen=True):
    """The ports now, those that were active once, and the devices that have disappeared since."""

    ports: tuple[RdmaPort, ...]
    were_active: frozenset[str] = frozenset()
    gone: tuple[str, ...] = ()
    fastest: tuple[tuple[str, float], ...] = ()
    """The highest rate of a port so far, in Gb/s."""


class _SeenRdmaPorts(Struct):
    """What this run of the agent has seen below one root."""

    devices: set[str]
    active: set[str]
    fastest: dict[str, float]


@lru_cache(maxsize=4)
def _get_seen_rdma_ports(root: Path) -> _SeenRdmaPorts:
    return _SeenRdmaPorts(set(), set(), {})


def collect_rdma_link_sample(machine: CheckedMachine) -> RdmaLinkSample:
    """Read the states. Raises DeviceAbsentError where there never was such a device,
    CheckResultUnknownError."""
    seen = _get_seen_rdma_ports(machine.root)
    try:
        found = list_infiniband_devices(machine)
    except DeviceAbsentError:
        if not seen.devices:
            raise
        found = ()
    now = list_rdma_ports(found)
    gone = tuple(sorted(seen.devices - {device.name for device in found}))
    sample = RdmaLinkSample(now, frozenset(seen.active), gone, tuple(seen.fastest.items()))
    for port in now:
        if port.active:
            seen.fastest[port.name] = max(port.gbps, seen.fastest.get(port.name, 0.0))
    seen.devices.update(device.name for device in found)
    seen.active.update(port.name for port in now if port.active)
    return sample


def compute_slowest_rdma_port_rate(
    seen: RdmaLinkSample, before: RdmaLinkSample | None
) -> Mapping[str, float]:
    """Return `rdma.gbps`: the rate of the slowest port in use."""
    rates = [port.gbps for port in seen.ports if port.active and port.gbps > 0]
    return {"rdma.gbps": min(rates)} if rates else {}


def judge_rdma_port_states(
    seen: RdmaLinkSample, before: RdmaLinkSample | None, limits: Limits
) -> Judged:
    """Return ports that are no longer active or became slower, and devices that disappeared."""
    fastest = dict(seen.fastest)
    for port in seen.ports:
        if port.active and 0 < port.gbps < (best := fastest.get(port.name, 0.0)):
            yield make_fail_observation("slow", port.name, f"{port.gbps:g} of {best:g} Gb/s")
        if not port.active and port.name in seen.were_active:
            yield make_fail_observation(
                "down", port.name, f"port is {port.state}, link {port.phys_state or '?'}"
            )
    for device in seen.gone:
        yield make_fail_observation("gone", device, "the device was there and is gone")

"""Whether every EFA port is active.

The EFA driver answers ACTIVE and LinkUp for any port (amzn-drivers, efa_query_port): what this
check would find is a device on its way out, and it is only watched.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpctl.agent.check import Limits, Machine, Observation
from hpctl.agent.rdma import Port, efa_devices, ports


@dataclass(frozen=True, slots=True)
class Sample:
    """The ports of all EFA devices."""

    ports: tuple[Port, ...]


def gather(machine: Machine) -> Sample:
    """Read the states. Raises NotHere where there is no EFA device, CannotTell."""
    return Sample(ports(efa_devices(machine)))


def judge(seen: Sample, before: Sample | None, limits: Limits) -> Iterable[Observation]:
    """Each port that is not active."""
    for port in seen.ports:
        if not port.active:
            yield Observation(
                "down", port.name, detail=f"port is {port.state}, link {port.phys_state or '?'}"
            )

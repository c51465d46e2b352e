"""Check `efa.link`: every EFA port is active."""

from hpctl.detection.check import CheckedMachine, Judged, Limits, make_failure
from hpctl.detection.rdma import Port, efa_devices, list_ports

# Whether every EFA port is active.
#
# The EFA driver answers ACTIVE and LinkUp for any port (amzn-drivers, efa_query_port): this check
# would only find a device that is being removed, and it is only watched.


def gather_link(machine: CheckedMachine) -> tuple[Port, ...]:
    """Read the states. Raises NotHere where there is no EFA device, CannotTell."""
    return list_ports(efa_devices(machine))


def judge_link(seen: tuple[Port, ...], before: tuple[Port, ...] | None, limits: Limits) -> Judged:
    """Return each port that is not active."""
    for port in seen:
        if not port.active:
            yield make_failure(
                "down", port.name, f"port is {port.state}, link {port.phys_state or '?'}"
            )

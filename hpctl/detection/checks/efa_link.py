"""Check `efa.link`: every EFA port is active."""

from hpctl.detection.check import CheckedMachine, Judged, Limits, make_fail_observation
from hpctl.detection.rdma import RdmaPort, list_efa_devices, list_rdma_ports

# Whether every EFA port is active.
#
# The EFA driver answers ACTIVE and LinkUp for any port (amzn-drivers, efa_query_port): this check
# would only find a device that is being removed, and it is only watched.


def read_efa_port_states(machine: CheckedMachine) -> tuple[RdmaPort, ...]:
    """Read the states. Raises DeviceAbsentError where there is no EFA device,
    CheckResultUnknownError."""
    return list_rdma_ports(list_efa_devices(machine))


def judge_efa_port_states(
    seen: tuple[RdmaPort, ...], before: tuple[RdmaPort, ...] | None, limits: Limits
) -> Judged:
    """Return each port that is not active."""
    for port in seen:
        if not port.active:
            yield make_fail_observation(
                "down", port.name, f"port is {port.state}, link {port.phys_state or '?'}"
            )

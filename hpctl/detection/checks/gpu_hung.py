"""Check `gpu.hung`: a call into the NVIDIA driver that does not return."""

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    DriverHungError,
    Judged,
    Limits,
    get_latest_sweep,
    make_failure,
)

# A call into the driver that does not return is a fault of the node, not of the agent.


class GpuHungSample(Struct, frozen=True):
    """The time for which an answer has been overdue, in seconds; 0 when the driver answers."""

    overdue_s: float = 0.0
    call: str = ""


def measure_nvml_delay(machine: CheckedMachine) -> GpuHungSample:
    """Return whether the NVML child answers. Raises DeviceAbsentError, and UnknownResultError while
    it starts."""
    try:
        get_latest_sweep(machine)
    except DriverHungError as hung:
        return GpuHungSample(hung.overdue_s, hung.call)
    return GpuHungSample()


def judge_nvml_hang(seen: GpuHungSample, before: GpuHungSample | None, limits: Limits) -> Judged:
    """Return an observation once the limit is reached."""
    if seen.overdue_s >= limits["overdue_s"]:
        what = seen.call or "NVML"
        yield make_failure("hung", "", f"the driver has not answered {what}", what)

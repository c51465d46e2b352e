"""Check `gpu.hung`: a call into the NVIDIA driver that does not return."""

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    DriverHung,
    Judged,
    Limits,
    latest_sweep,
    make_failure,
)

# A call into the driver that does not return is a fault of the node, not of the agent.


class GpuHungSample(Struct, frozen=True):
    """The time for which an answer has been overdue, in seconds; 0 when the driver answers."""

    overdue_s: float = 0.0
    call: str = ""


def gather_hung(machine: CheckedMachine) -> GpuHungSample:
    """Return whether the NVML child answers. Raises NotHere, and CannotTell while it starts."""
    try:
        latest_sweep(machine)
    except DriverHung as hung:
        return GpuHungSample(hung.overdue_s, hung.call)
    return GpuHungSample()


def judge_hung(seen: GpuHungSample, before: GpuHungSample | None, limits: Limits) -> Judged:
    """Return an observation once the limit is reached."""
    if seen.overdue_s >= limits["overdue_s"]:
        what = seen.call or "NVML"
        yield make_failure("hung", "", f"the driver has not answered {what}", what)

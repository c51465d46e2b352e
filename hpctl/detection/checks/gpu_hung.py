"""Check `gpu.hung`: a call into the NVIDIA driver that does not come back."""

from msgspec import Struct

from hpctl.detection.check import DriverHung, Judged, Limits, Machine, fail, newest

# A call into the driver that does not come back: itself a fault of the node, not of the agent.


class Sample(Struct, frozen=True):
    """For how long an answer has been overdue, in seconds; 0 when the driver answers."""

    overdue_s: float = 0.0
    call: str = ""


def gather_hung(machine: Machine) -> Sample:
    """Whether the NVML child answers. Raises NotHere, and CannotTell while it starts."""
    try:
        newest(machine)
    except DriverHung as hung:
        return Sample(hung.overdue_s, hung.call)
    return Sample()


def judge_hung(seen: Sample, before: Sample | None, limits: Limits) -> Judged:
    """Hung from the limit on."""
    if seen.overdue_s >= limits["overdue_s"]:
        what = seen.call or "NVML"
        yield fail("hung", "", f"the driver has not answered {what}", what)

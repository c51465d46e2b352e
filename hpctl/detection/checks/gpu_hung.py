"""Check `gpu.hung`: a call into the NVIDIA driver that does not return."""

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    DriverHungError,
    Judged,
    Limits,
    get_latest_nvml_snapshot,
    make_fail_observation,
)

# A call into the driver that does not return is a fault of the node, not of the agent.


class NvmlResponseDelaySample(Struct, frozen=True):
    """The time for which an answer has been overdue, in seconds; 0 when the driver answers."""

    overdue_s: float = 0.0
    call: str = ""


def measure_nvml_response_delay(machine: CheckedMachine) -> NvmlResponseDelaySample:
    """Return whether the NVML child answers. Raises DeviceAbsentError, and CheckResultUnknownError
    while it starts."""
    try:
        get_latest_nvml_snapshot(machine)
    except DriverHungError as hung:
        return NvmlResponseDelaySample(hung.overdue_s, hung.call)
    return NvmlResponseDelaySample()


def judge_nvml_response_delay(
    seen: NvmlResponseDelaySample, before: NvmlResponseDelaySample | None, limits: Limits
) -> Judged:
    """Return an observation once the limit is reached."""
    if seen.overdue_s >= limits["overdue_s"]:
        what = seen.call or "NVML"
        yield make_fail_observation("hung", "", f"the driver has not answered {what}", what)

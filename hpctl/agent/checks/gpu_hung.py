"""A call into the driver that does not come back: itself a fault of the node, not of the agent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpctl.agent.check import Limits, Machine, Observation
from hpctl.agent.checks.sweep import newest
from hpctl.agent.nvml.snapshot import DriverHung


@dataclass(frozen=True, slots=True)
class Sample:
    """For how long an answer has been overdue, in seconds; 0 when the driver answers."""

    overdue_s: float = 0.0
    call: str = ""


def gather(machine: Machine) -> Sample:
    """Whether the NVML child answers. Raises NotHere, and CannotTell while it starts."""
    try:
        newest(machine)
    except DriverHung as hung:
        return Sample(hung.overdue_s, hung.call)
    return Sample()


def judge(seen: Sample, before: Sample | None, limits: Limits) -> Iterable[Observation]:
    """Hung from the limit on."""
    if seen.overdue_s >= limits["overdue_s"]:
        what = seen.call or "NVML"
        yield Observation("hung", detail=f"the driver has not answered {what}", evidence=what)

"""Whether the EFA devices still send their keep-alives: one that stopped has a dead device behind.

A counter that never moved is one that the device does not send (facts/detection 5.1 names only
its standing still). Where all devices of a node stop at once the driver or the count is rather to
blame than every NIC, so that is only watched.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpctl.agent.check import Limits, Machine, Observation
from hpctl.agent.counters import Trace
from hpctl.agent.efa import trace
from hpctl.core.model import Verdict

COUNTER = "keep_alive_rcvd"


def gather(machine: Machine) -> Trace:
    """The shared sweep. Raises NotHere where there is no EFA device, CannotTell."""
    return trace(machine)


def judge(seen: Trace, before: Trace | None, limits: Limits) -> Iterable[Observation]:
    """Each device whose count stood still since the last gather."""
    if before is None or seen.now.at - before.now.at < limits["still_s"]:
        return
    grown = dict(seen.rises(before.now, COUNTER))
    still = [
        device
        for device, rise in grown.items()
        if rise == 0 and seen.now.devices[device].values[COUNTER] > 0
    ]
    if len(still) > 1 and len(still) == len(grown):
        yield Observation(
            "stalled_all", "", Verdict.WARN, f"no keep-alive from any of {len(still)} devices"
        )
        return
    for device in still:
        told = seen.now.devices[device].values[COUNTER]
        yield Observation("stalled", device, detail=f"no keep-alive after number {told}")

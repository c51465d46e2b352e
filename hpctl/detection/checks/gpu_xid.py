"""Check `gpu.xid`: Xids from NVML's events that act by their number: the second source."""

from itertools import chain

from hpctl.detection.check import Judged, Limits, make_fail_observation
from hpctl.detection.nvml.snapshot import NvmlSnapshot
from hpctl.faults.table import list_check_fault_rows

# Xids that NVML's events name: the second source next to the kernel's log.
#
# Only those whose number is sufficient. Where the driver's text or a companion line decides (48
# with 94, 154, the NVLink codes) the kernel's log is the source: an event has no text.

_XID = 0x8


CERTAIN = frozenset(
    map(int, chain.from_iterable(row.codes for row in list_check_fault_rows("gpu.xid")))
)
"""The Xids that act by their number."""


def judge_xid_events(seen: NvmlSnapshot, before: NvmlSnapshot | None, limits: Limits) -> Judged:
    """Return the certain Xids among the events that came since `before`."""
    since = max((event.at for event in before.events), default=None) if before else None
    for event in seen.events:
        new = since is None or event.at > since
        if new and event.kind == _XID and event.data in CERTAIN:
            yield make_fail_observation(str(event.data), event.pci, "NVML event")

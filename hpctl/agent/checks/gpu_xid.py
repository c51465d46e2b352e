"""Xids that NVML's events name: the second source beside the kernel's log.

Only those whose number alone says everything. Where the driver's text or a companion line decides
(48 with 94, 154, the NVLink codes) the kernel's log is the source: an event has no text.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpctl.agent.check import Limits, Machine, Observation
from hpctl.agent.checks.sweep import sweep
from hpctl.agent.nvml.snapshot import Snapshot

_XID = 0x8
CERTAIN = frozenset({46, 54, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 151, 158, 167, 168})
"""The Xids that act by their number."""


def gather(machine: Machine) -> Snapshot:
    """The newest sweep, with the events before it."""
    return sweep(machine)


def judge(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Iterable[Observation]:
    """The certain Xids among the events that came since `before`."""
    since = max((event.at for event in before.events), default=None) if before else None
    for event in seen.events:
        new = since is None or event.at > since
        if new and event.kind == _XID and event.data in CERTAIN:
            yield Observation(str(event.data), event.pci, detail="NVML event")

"""What the driver says of a GPU: its recovery action, that it is lost, the Xids of its events."""

from __future__ import annotations

from collections.abc import Iterable

from hpctl.agent.check import Functions, Limits, Machine, NotHere, Observation
from hpctl.agent.checks.gpu_sweep import GPU_IS_LOST, RESET_REQUIRED, newest, said, sweep
from hpctl.agent.nvml.snapshot import NvmlError, Snapshot
from hpctl.core.faults.table import rows_of
from hpctl.core.model import Verdict

# --- gpu.recovery ----------
# The driver's own recovery action for each GPU (NVML field 230): the first authority.
#
# It is the same word that Xid 154 writes to the kernel's log when it changes; the field is its
# state, so it is also seen by an agent that started later, and it goes when the GPU has recovered.

# NVML_GPU_RECOVERY_ACTION_* of nvml.h.
_NONE = 0
_ACTIONS = {
    1: ("reset", "GPU reset"),
    2: ("reboot", "node reboot"),
    3: ("drain-p2p", "drain peer-to-peer traffic"),
    4: ("drain-and-reset", "drain and reset"),
    5: ("recover-imex", "recover the IMEX domain"),
    6: ("bus-reset", "bus reset"),
    7: ("system-reboot", "system reboot"),
}


def judge_recovery(
    seen: Snapshot, before: Snapshot | None, limits: Limits
) -> Iterable[Observation]:
    """One observation for each GPU for which the driver asks anything."""
    for gpu in seen.gpus:
        action = gpu.recovery_action
        if action is None or action == _NONE:
            continue
        code, phrase = _ACTIONS.get(action, ("unknown", f"recovery action {action}"))
        yield Observation(code, gpu.device, detail=f"the driver asks: {phrase}")


# --- gpu.lost ----------
# GPUs that NVML says are lost, wait for a reset, or have become unavailable.

_UNAVAILABLE = 0x4000
_CODES = {GPU_IS_LOST: "lost", RESET_REQUIRED: "reset-required"}


def gather_lost(machine: Machine) -> Snapshot:
    """The newest sweep, also one that failed as a whole. NotHere where there are no GPUs."""
    seen = newest(machine)
    if not seen.gpus and (seen.error is None or seen.error.code not in _CODES):
        raise NotHere(said(seen.error) if seen.error else "NVML lists no GPU")
    return seen


def judge_lost(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Iterable[Observation]:
    """One observation for each GPU (or NVML itself) that answers with an error."""
    if seen.error is not None and seen.error.code in _CODES:
        yield _observation(seen.error, "")
    for gpu in seen.gpus:
        if gpu.error is not None:
            yield _observation(gpu.error, gpu.device)
    newest_at: dict[str, float] = {}
    for event in seen.events:
        if event.kind == _UNAVAILABLE:
            newest_at[event.pci] = event.at
    for pci, at in newest_at.items():
        if seen.at - at <= limits["event_s"]:
            yield Observation("unavailable", pci, detail="NVML event: GPU unavailable")


def _observation(error: NvmlError, device: str) -> Observation:
    code = _CODES.get(error.code)
    if code is None:
        return Observation("error", device, Verdict.WARN, said(error))
    return Observation(code, device, detail=said(error))


# --- gpu.xid ----------
# Xids that NVML's events name: the second source beside the kernel's log.
#
# Only those whose number alone says everything. Where the driver's text or a companion line decides
# (48 with 94, 154, the NVLink codes) the kernel's log is the source: an event has no text.

_XID = 0x8
CERTAIN = frozenset(int(code) for row in rows_of("gpu.xid") for code in row.codes)
"""The Xids that act by their number."""


def judge_xid(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Iterable[Observation]:
    """The certain Xids among the events that came since `before`."""
    since = max((event.at for event in before.events), default=None) if before else None
    for event in seen.events:
        new = since is None or event.at > since
        if new and event.kind == _XID and event.data in CERTAIN:
            yield Observation(str(event.data), event.pci, detail="NVML event")


CHECKS = {
    "gpu.recovery": Functions(sweep, judge_recovery),
    "gpu.lost": Functions(gather_lost, judge_lost),
    "gpu.xid": Functions(sweep, judge_xid),
}
"""What the runner calls, by the check's name."""

"""GPUs that NVML says are lost, wait for a reset, or have become unavailable."""

from __future__ import annotations

from collections.abc import Iterable

from hpctl.agent.check import Limits, Machine, NotHere, Observation
from hpctl.agent.checks.sweep import GPU_IS_LOST, RESET_REQUIRED, newest, said
from hpctl.agent.nvml.snapshot import NvmlError, Snapshot
from hpctl.core.model import Verdict

_UNAVAILABLE = 0x4000
_CODES = {GPU_IS_LOST: "lost", RESET_REQUIRED: "reset-required"}


def gather(machine: Machine) -> Snapshot:
    """The newest sweep, also one that failed as a whole. NotHere where there are no GPUs."""
    seen = newest(machine)
    if not seen.gpus and (seen.error is None or seen.error.code not in _CODES):
        raise NotHere(said(seen.error) if seen.error else "NVML lists no GPU")
    return seen


def judge(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Iterable[Observation]:
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

"""Retired memory pages: what GPUs before Ampere have in place of row remapping."""

from __future__ import annotations

from collections.abc import Iterable

from hpctl.agent.check import Limits, Machine, Observation
from hpctl.agent.checks.sweep import sweep
from hpctl.agent.nvml.snapshot import Snapshot
from hpctl.core.model import Verdict


def gather(machine: Machine) -> Snapshot:
    """The newest sweep."""
    return sweep(machine)


def judge(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Iterable[Observation]:
    """Pages that wait for a reset, and GPUs that have none left to retire."""
    for gpu in seen.gpus:
        ecc = gpu.ecc
        pages = (ecc.retired_sbe or 0) + (ecc.retired_dbe or 0)
        if ecc.retired_pending:
            yield Observation(
                "pending", gpu.device, Verdict.WARN, f"a page waits for a reset; {pages} retired"
            )
        if pages >= limits["pages"]:
            yield Observation("pages", gpu.device, detail=f"{pages} pages retired")

"""A storm of corrected memory errors: while it lasts, calls into the driver may stall.

The count says nothing about a GPU's health; only a rate that goes on and on is worth a look.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpctl.agent.check import Limits, Machine, Observation
from hpctl.agent.checks.sweep import grown, pairs, sweep
from hpctl.agent.nvml.snapshot import Snapshot
from hpctl.core.model import Verdict


def gather(machine: Machine) -> Snapshot:
    """The newest sweep."""
    return sweep(machine)


def judge(seen: Snapshot, before: Snapshot | None, limits: Limits) -> Iterable[Observation]:
    """The GPUs whose corrected errors came faster than the limit since `before`."""
    elapsed = seen.at - before.at if before is not None else 0.0
    if elapsed <= 0:
        return
    for gpu, was in pairs(seen, before):
        rate = grown(gpu.ecc.volatile_corrected, was.ecc.volatile_corrected) / elapsed
        if rate > limits["per_second"]:
            yield Observation(
                "storm", gpu.device, Verdict.WARN, f"{rate:.0f} corrected errors a second"
            )

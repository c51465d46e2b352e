"""A GPU reset: the daemon's order to a node's agent, the agent's answer, and what a reset clears.

An order is good for one boot of one instance, for ORDER_S seconds, and once. The agent answers
with a finding of CHECK, whose device is the recovery's id: `done`, `failed` or `refused`. An order
without an answer is in doubt: it is never given again, and the next rung of the ladder is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from msgspec import Meta, Struct

from hpctl.core.model import Clears, Finding, Generation, RecoveryId

CHECK: Final = "gpu.reset"
DONE, FAILED, REFUSED = "done", "failed", "refused"
ORDER_S: Final = 60.0
"""An agent asks every 10 s; a credential of this age is worth nothing to whoever finds it."""
MOST_GPUS: Final = 32
_OF_GPUS: Final = ("gpu.", "kernel.xid")

_Word = Annotated[str, Meta(max_length=64)]


class ResetOrder(Struct, frozen=True, forbid_unknown_fields=True):
    """Reset the GPUs at these PCI addresses (all where none is named). `until`: Unix seconds."""

    recovery: _Word
    generation: Generation
    until: float
    devices: Annotated[tuple[_Word, ...], Meta(max_length=MOST_GPUS)] = ()


def devices(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The PCI addresses of the GPUs that findings speak against."""
    named = {f.device for f in findings if f.check.startswith(_OF_GPUS) and f.device.count(":") > 1}
    return tuple(sorted(named)) if len(named) <= MOST_GPUS else ()


def answer(recovery: RecoveryId, findings: Iterable[Finding]) -> Finding | None:
    """What a node's agent says of the reset that a recovery ordered; None: nothing yet."""
    return next((f for f in findings if f.check == CHECK and f.device == recovery), None)


def standing(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings without those that a reset has cleared since: of its GPUs, seen before it."""
    resets = [f for f in findings if f.check == CHECK and f.code == DONE]
    if not resets:
        return findings
    return tuple(f for f in findings if not any(_cleared(f, reset) for reset in resets))


def _cleared(finding: Finding, reset: Finding) -> bool:
    of_gpu = finding.check.startswith(_OF_GPUS) and finding.check != CHECK
    before = finding.last < reset.first and finding.clears is not Clears.OPERATOR
    return of_gpu and before and finding.device in reset.evidence.split()

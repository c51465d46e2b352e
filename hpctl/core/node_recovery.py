"""The durable treatment of one generation of one node: its value and its table.

Rules of this file. Every phase change is in TRANSITIONS; an unknown pair raises. Every waiting
phase has a DEADLINE row. What moves a recovery is decided in `node_advance`; nothing there or
here opens one: `plan` does, under the gates. A closed recovery never acts again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hpctl.core.compat import StrEnum
from hpctl.core.model import (
    Finding,
    Generation,
    LogicalId,
    NodeName,
    RecoveryId,
    Remedy,
    RuleId,
    Urgency,
)
from hpctl.core.recovery import StepKind, StepRecord, Trail, next_phase


class Phase(StrEnum):
    """Where a node recovery stands. The last three are ends."""

    OPEN = "open"
    CORDONED = "cordoned"
    VACATED = "vacated"
    REMEDYING = "remedying"
    REJOINING = "rejoining"
    VERIFYING = "verifying"
    RETURNED = "returned"
    ESCALATED = "escalated"
    CANCELLED = "cancelled"


ENDS: Final = frozenset({Phase.RETURNED, Phase.ESCALATED, Phase.CANCELLED})


class Signal(StrEnum):
    """An observed change that moves a node recovery."""

    CORDON_SEEN = "cordon_seen"
    JOBS_GONE = "jobs_gone"
    REMEDY_ACCEPTED = "remedy_accepted"
    NOTHING_TO_REMEDY = "nothing_to_remedy"
    NEW_GENERATION_SEEN = "new_generation_seen"
    REJOINED = "rejoined"
    FAULT_AGAIN = "fault_again"
    REBOOT_IN_VAIN = "reboot_in_vain"
    RETURN_SEEN = "return_seen"
    MARKED = "marked"
    REPLACE_ASKED = "replace_asked"
    WITHDRAWN = "withdrawn"
    NEEDS_HUMAN = "needs_human"
    DEADLINE = "deadline"
    OPERATOR_TOOK_OVER = "operator_took_over"
    OPERATOR_CANCELLED = "operator_cancelled"


_WAITING: Final = tuple(p for p in Phase if p not in ENDS)
_UNTOUCHED: Final = (Phase.OPEN, Phase.CORDONED, Phase.VACATED)

TRANSITIONS: Final[Mapping[tuple[Phase, Signal], Phase]] = {
    (Phase.OPEN, Signal.CORDON_SEEN): Phase.CORDONED,
    (Phase.CORDONED, Signal.JOBS_GONE): Phase.VACATED,
    (Phase.VACATED, Signal.REMEDY_ACCEPTED): Phase.REMEDYING,
    (Phase.VACATED, Signal.NOTHING_TO_REMEDY): Phase.VERIFYING,
    (Phase.REMEDYING, Signal.NEW_GENERATION_SEEN): Phase.REJOINING,
    (Phase.REJOINING, Signal.REJOINED): Phase.VERIFYING,
    # A second new generation while we wait for the first: the provider tried again by itself.
    (Phase.REJOINING, Signal.NEW_GENERATION_SEEN): Phase.REJOINING,
    (Phase.VERIFYING, Signal.FAULT_AGAIN): Phase.VACATED,
    # The machine did not come back from our reboot: on to the next rung, not to a person yet.
    (Phase.REMEDYING, Signal.REBOOT_IN_VAIN): Phase.VACATED,
    (Phase.REJOINING, Signal.REBOOT_IN_VAIN): Phase.VACATED,
    (Phase.VERIFYING, Signal.RETURN_SEEN): Phase.RETURNED,
    # A mass event, seen before any instance felt anything: the node was given back.
    **{(p, Signal.WITHDRAWN): Phase.CANCELLED for p in _UNTOUCHED},
    # HyperPod's health agent marked the node meanwhile; it may ask for more than our rung.
    **{(p, Signal.MARKED): p for p in _WAITING},
    **{(p, Signal.REPLACE_ASKED): p for p in _UNTOUCHED},
    **{(p, Signal.NEEDS_HUMAN): Phase.ESCALATED for p in _WAITING},
    **{(p, Signal.DEADLINE): Phase.ESCALATED for p in _WAITING},
    **{(p, Signal.OPERATOR_TOOK_OVER): Phase.CANCELLED for p in _WAITING},
    **{(p, Signal.OPERATOR_CANCELLED): Phase.CANCELLED for p in _WAITING},
}


MARKS: Final = frozenset({Signal.MARKED, Signal.REPLACE_ASKED})
_CLIMBS: Final = frozenset({Signal.FAULT_AGAIN, Signal.REBOOT_IN_VAIN, Signal.REPLACE_ASKED})


def goes_anyway(ladder: tuple[Remedy, ...]) -> bool:
    """Whether hpctl only makes room before the provider takes the instance.

    No budget holds that back, and many at once are no broken check: a spot pool runs dry.
    """
    return ladder == (Remedy.AWAIT,)


class NodeRecovery(Struct, frozen=True):
    """One node recovery as the journal tells it.

    `generation` is what is being treated now: after a reboot or a replacement, the new one.
    `opened_for` never changes. `rung` indexes `ladder`.
    """

    id: RecoveryId
    opened_for: Generation
    generation: Generation
    rule: RuleId
    meaning: str
    urgency: Urgency
    ladder: tuple[Remedy, ...]
    opened: datetime
    phase: Phase
    since: datetime
    rung: int = 0
    why: str = ""
    logical_id: LogicalId | None = None
    by: str = ""
    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    trail: tuple[Trail, ...] = ()
    marked_at: int = -1
    """How many drains we had ordered when the newest mark of HyperPod's agent was written down."""

    @property
    def drains(self) -> int:
        """How many drains we have ordered."""
        return sum(s.kind is StepKind.DRAIN for s in self.steps)

    @property
    def node(self) -> NodeName:
        """The Slurm name of the node; stays the same over a replacement."""
        return self.opened_for.node

    key = node
    """What at most one open recovery may be about."""

    @property
    def ended(self) -> bool:
        """Closed for ever."""
        return self.phase in ENDS

    @property
    def remedy(self) -> Remedy:
        """The rung being tried."""
        return self.ladder[min(self.rung, len(self.ladder) - 1)]

    @property
    def withdrawn(self) -> bool:
        """Ended because its fault was a mass event's: the node was given back untreated."""
        return bool(self.trail) and self.trail[-1].signal == Signal.WITHDRAWN

    @property
    def remedied(self) -> bool:
        """True once something was asked for that the instance feels."""
        return any(s.kind in (StepKind.REBOOT, StepKind.REPLACE) for s in self.steps)

    def on(
        self, seen: str, at: datetime, why: str, now_is: Generation | None = None
    ) -> NodeRecovery:
        """The recovery after a signal. Raises IllegalSignal for a pair not in the table."""
        signal = Signal(seen)
        phase = next_phase(TRANSITIONS, self.id, self.phase, signal)
        marked = signal in MARKS
        return replace(
            self,
            phase=phase,
            # Who marks a node puts no deadline off.
            since=self.since if marked else at,
            urgency=Urgency.NOW if marked and not self.by else self.urgency,
            rung=self.rung + (signal in _CLIMBS),
            marked_at=self.drains if marked else self.marked_at,
            generation=now_is or self.generation,
            trail=(*self.trail, Trail(at, signal, phase, why)),
        )

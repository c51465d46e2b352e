"""The durable treatment of one generation of one node: its value and its table.

Rules of this file. Every phase change is in TRANSITIONS; an unknown pair raises. Every waiting
phase has a DEADLINE row. What moves a recovery is decided in `hpctl.nodes.advance`; nothing there
or here opens one: `plan` does, under the gates. A closed recovery never acts again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from itertools import product
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.identity import LogicalId, NodeGeneration, NodeName, RecoveryId, RuleId
from hpctl.vocabulary.model import Finding
from hpctl.vocabulary.recovery import (
    RecoveryStepRecord,
    RecoveryTransitionRecord,
    StepKind,
    find_phase_after_signal,
)


class NodeRecoveryPhase(StrEnum):
    """The phase of a node recovery. The last four are ends."""

    OPEN = "open"
    CORDONED = "cordoned"
    VACATED = "vacated"
    REMEDYING = "remedying"
    REJOINING = "rejoining"
    VERIFYING = "verifying"
    ACCEPTING = "accepting"
    UNRESERVING = "unreserving"
    RETURNED = "returned"
    REMOVED = "removed"
    ESCALATED = "escalated"
    CANCELLED = "cancelled"


IN_TEST: Final = (NodeRecoveryPhase.ACCEPTING, NodeRecoveryPhase.UNRESERVING)
"""A node is resumed here inside a reservation of hpctl's."""
ENDS: Final = frozenset(
    {
        NodeRecoveryPhase.RETURNED,
        NodeRecoveryPhase.REMOVED,
        NodeRecoveryPhase.ESCALATED,
        NodeRecoveryPhase.CANCELLED,
    }
)


class NodeRecoverySignal(StrEnum):
    """An observed change that moves a node recovery."""

    CORDON_SEEN = "cordon_seen"
    JOBS_GONE = "jobs_gone"
    REMEDY_ALLOWED = "remedy_allowed"
    EVIDENCE_KEPT = "evidence_kept"
    NO_EVIDENCE = "no_evidence"
    REMEDY_ACCEPTED = "remedy_accepted"
    NOTHING_TO_REMEDY = "nothing_to_remedy"
    RESET_SEEN = "reset_seen"
    NEW_GENERATION_SEEN = "new_generation_seen"
    INSTANCE_GONE = "instance_gone"
    REJOINED = "rejoined"
    FAULT_AGAIN = "fault_again"
    RESET_IN_VAIN = "reset_in_vain"
    ACCEPTANCE_DUE = "acceptance_due"
    TEST_PASSED = "test_passed"
    TEST_FAILED = "test_failed"
    TEST_ASKS_RESET = "test_asks_reset"
    TEST_ASKS_REBOOT = "test_asks_reboot"
    TEST_ASKS_REPLACE = "test_asks_replace"
    UNTESTED = "untested"
    UNRESERVED = "unreserved"
    REBOOT_IN_VAIN = "reboot_in_vain"
    RETURN_SEEN = "return_seen"
    MAINTENANCE_BEGAN = "maintenance_began"
    MAINTENANCE_ENDED = "maintenance_ended"
    FAULT_FOUND = "fault_found"
    MARKED = "marked"
    REPLACE_ASKED = "replace_asked"
    WITHDRAWN = "withdrawn"
    NEEDS_HUMAN = "needs_human"
    NODE_GONE = "node_gone"
    DEADLINE = "deadline"
    OPERATOR_TOOK_OVER = "operator_took_over"
    OPERATOR_CANCELLED = "operator_cancelled"


MAINTENANCE: Final = (NodeRecoverySignal.MAINTENANCE_BEGAN, NodeRecoverySignal.MAINTENANCE_ENDED)
_WAITING: Final = tuple(p for p in NodeRecoveryPhase if p not in ENDS)
_UNTOUCHED: Final = (NodeRecoveryPhase.OPEN, NodeRecoveryPhase.CORDONED, NodeRecoveryPhase.VACATED)
_MAY_END: Final = tuple(p for p in _WAITING if p is not NodeRecoveryPhase.ACCEPTING)
_ENDING: Final = {
    NodeRecoverySignal.NEEDS_HUMAN: NodeRecoveryPhase.ESCALATED,
    NodeRecoverySignal.DEADLINE: NodeRecoveryPhase.ESCALATED,
    NodeRecoverySignal.NODE_GONE: NodeRecoveryPhase.CANCELLED,
    NodeRecoverySignal.OPERATOR_TOOK_OVER: NodeRecoveryPhase.CANCELLED,
    NodeRecoverySignal.OPERATOR_CANCELLED: NodeRecoveryPhase.CANCELLED,
}

TEST_ASKS: Final[Mapping[NodeRecoverySignal, Remedy]] = {
    NodeRecoverySignal.TEST_ASKS_RESET: Remedy.RESET_GPU,
    NodeRecoverySignal.TEST_ASKS_REBOOT: Remedy.REBOOT,
    NodeRecoverySignal.TEST_ASKS_REPLACE: Remedy.REPLACE,
}
"""The remedy that a failed test names; `test_failed` names none."""

TRANSITIONS: Final[Mapping[tuple[NodeRecoveryPhase, NodeRecoverySignal], NodeRecoveryPhase]] = {
    (NodeRecoveryPhase.OPEN, NodeRecoverySignal.CORDON_SEEN): NodeRecoveryPhase.CORDONED,
    (NodeRecoveryPhase.CORDONED, NodeRecoverySignal.JOBS_GONE): NodeRecoveryPhase.VACATED,
    # The gate that held the remedy passes. The deadline of the phase starts again.
    (NodeRecoveryPhase.VACATED, NodeRecoverySignal.REMEDY_ALLOWED): NodeRecoveryPhase.VACATED,
    # The remedy may destroy the node now: what it shows was kept, or why nothing was is known.
    (NodeRecoveryPhase.VACATED, NodeRecoverySignal.EVIDENCE_KEPT): NodeRecoveryPhase.VACATED,
    (NodeRecoveryPhase.VACATED, NodeRecoverySignal.NO_EVIDENCE): NodeRecoveryPhase.VACATED,
    (NodeRecoveryPhase.VACATED, NodeRecoverySignal.REMEDY_ACCEPTED): NodeRecoveryPhase.REMEDYING,
    (NodeRecoveryPhase.VACATED, NodeRecoverySignal.NOTHING_TO_REMEDY): NodeRecoveryPhase.VERIFYING,
    (NodeRecoveryPhase.REMEDYING, NodeRecoverySignal.RESET_SEEN): NodeRecoveryPhase.VERIFYING,
    (
        NodeRecoveryPhase.REMEDYING,
        NodeRecoverySignal.NEW_GENERATION_SEEN,
    ): NodeRecoveryPhase.REJOINING,
    # A deletion: the instance leaves, and no other takes its place.
    (NodeRecoveryPhase.REMEDYING, NodeRecoverySignal.INSTANCE_GONE): NodeRecoveryPhase.REMOVED,
    (NodeRecoveryPhase.REJOINING, NodeRecoverySignal.REJOINED): NodeRecoveryPhase.VERIFYING,
    # A second new generation while we wait for the first: the provider itself tried again.
    (
        NodeRecoveryPhase.REJOINING,
        NodeRecoverySignal.NEW_GENERATION_SEEN,
    ): NodeRecoveryPhase.REJOINING,
    (NodeRecoveryPhase.VERIFYING, NodeRecoverySignal.FAULT_AGAIN): NodeRecoveryPhase.VACATED,
    # The GPU cannot be reset, or the machine did not come back from our reboot: on to the next
    # rung, not to a person yet.
    (NodeRecoveryPhase.VACATED, NodeRecoverySignal.RESET_IN_VAIN): NodeRecoveryPhase.VACATED,
    (NodeRecoveryPhase.REMEDYING, NodeRecoverySignal.RESET_IN_VAIN): NodeRecoveryPhase.VACATED,
    (NodeRecoveryPhase.REJOINING, NodeRecoverySignal.RESET_IN_VAIN): NodeRecoveryPhase.VACATED,
    (NodeRecoveryPhase.REMEDYING, NodeRecoverySignal.REBOOT_IN_VAIN): NodeRecoveryPhase.VACATED,
    (NodeRecoveryPhase.REJOINING, NodeRecoverySignal.REBOOT_IN_VAIN): NodeRecoveryPhase.VACATED,
    (NodeRecoveryPhase.VERIFYING, NodeRecoverySignal.RETURN_SEEN): NodeRecoveryPhase.RETURNED,
    (NodeRecoveryPhase.VERIFYING, NodeRecoverySignal.ACCEPTANCE_DUE): NodeRecoveryPhase.ACCEPTING,
    # Whatever ends a test, its reservation and its job go first.
    **{
        (NodeRecoveryPhase.ACCEPTING, signal): NodeRecoveryPhase.UNRESERVING
        for signal in (
            NodeRecoverySignal.TEST_PASSED,
            NodeRecoverySignal.TEST_FAILED,
            *TEST_ASKS,
            NodeRecoverySignal.FAULT_AGAIN,
            NodeRecoverySignal.UNTESTED,
            *_ENDING,
        )
    },
    # What comes to light of a node that has passed, before it is let out of its reservation.
    (NodeRecoveryPhase.UNRESERVING, NodeRecoverySignal.FAULT_AGAIN): NodeRecoveryPhase.UNRESERVING,
    (NodeRecoveryPhase.UNRESERVING, NodeRecoverySignal.UNRESERVED): NodeRecoveryPhase.VACATED,
    (NodeRecoveryPhase.UNRESERVING, NodeRecoverySignal.RETURN_SEEN): NodeRecoveryPhase.RETURNED,
    # A mass event, or an order that was taken back or refused, before any instance felt
    # anything: the node was given back.
    **{(p, NodeRecoverySignal.WITHDRAWN): NodeRecoveryPhase.CANCELLED for p in _UNTOUCHED},
    # An admin's maintenance reservation holds the node. Its end restarts the phase's deadline.
    **{(p, s): p for p, s in product(_WAITING, MAINTENANCE)},
    # An admin rebooted or replaced the machine while it was in maintenance.
    (NodeRecoveryPhase.VACATED, NodeRecoverySignal.NEW_GENERATION_SEEN): NodeRecoveryPhase.VACATED,
    (
        NodeRecoveryPhase.VERIFYING,
        NodeRecoverySignal.NEW_GENERATION_SEEN,
    ): NodeRecoveryPhase.VERIFYING,
    # A fault after a maintenance: it is treated by a separate recovery, under the gates.
    (NodeRecoveryPhase.VERIFYING, NodeRecoverySignal.FAULT_FOUND): NodeRecoveryPhase.CANCELLED,
    # HyperPod's health agent marked the node meanwhile; it may ask for more than our rung.
    **{(p, NodeRecoverySignal.MARKED): p for p in _WAITING},
    **{(p, NodeRecoverySignal.REPLACE_ASKED): p for p in _UNTOUCHED},
    **{(p, s): end for p, (s, end) in product(_MAY_END, _ENDING.items())},
}


MARKS: Final = frozenset({NodeRecoverySignal.MARKED, NodeRecoverySignal.REPLACE_ASKED})
FELT: Final = frozenset({StepKind.RESET, StepKind.REBOOT, StepKind.REPLACE, StepKind.REMOVE})
"""The steps that an instance feels."""
_CLIMBS: Final = frozenset(
    {
        NodeRecoverySignal.FAULT_AGAIN,
        NodeRecoverySignal.RESET_IN_VAIN,
        NodeRecoverySignal.REBOOT_IN_VAIN,
        NodeRecoverySignal.TEST_FAILED,
        *TEST_ASKS,
    }
)


_EVIDENCE: Final = (NodeRecoverySignal.EVIDENCE_KEPT, NodeRecoverySignal.NO_EVIDENCE)
_UNTREATED: Final = (NodeRecoverySignal.WITHDRAWN, NodeRecoverySignal.FAULT_FOUND)


SCALE_DOWN: Final = RuleId("scale-down")
"""Capacity takes an instance out of its group."""
REMOVAL_OVER: Final = RuleId("removal-over")
"""A node still has the Reason of a removal that has ended: it is given back."""
MAINTENANCE_BEGINS: Final = RuleId("maintenance-begins")
"""A maintenance window is about to begin: the jobs leave the node."""
MAINTENANCE_OVER: Final = RuleId("maintenance-over")
"""A maintenance window ends or has ended: the node is verified before it serves."""
OF_MAINTENANCE: Final = frozenset({MAINTENANCE_BEGINS, MAINTENANCE_OVER})
_OF_CAPACITY: Final = frozenset({SCALE_DOWN, REMOVAL_OVER})


def is_await_only_remedy_ladder(ladder: tuple[Remedy, ...]) -> bool:
    """Return whether hpctl only makes room before the provider takes the instance.

    No budget holds that back, and many at once are no broken check: a spot pool runs dry.
    """
    return ladder == (Remedy.AWAIT,)


class NodeRecovery(Struct, frozen=True):
    """One node recovery as the journal tells it.

    `generation` is what is being treated now: after a reboot or a replacement, the new one.
    `opened_for` never changes. `rung` indexes `ladder`.
    """

    id: RecoveryId
    opened_for: NodeGeneration
    generation: NodeGeneration
    rule: RuleId
    meaning: str
    urgency: Urgency
    ladder: tuple[Remedy, ...]
    opened: datetime
    phase: NodeRecoveryPhase
    since: datetime
    rung: int = 0
    why: str = ""
    logical_id: LogicalId | None = None
    by: str = ""
    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    steps: tuple[RecoveryStepRecord, ...] = ()
    trail: tuple[RecoveryTransitionRecord, ...] = ()
    tests: tuple[Finding, ...] = ()
    """What its newest acceptance test found."""
    marked_at: int = -1
    """How many drains we had ordered when the newest mark of HyperPod's agent was written down."""
    group: str = ""
    """The instance group whose size changes; empty where none does."""
    was_change: bool = False
    """An earlier version wrote it as a change of capacity (`engine.journal.earlier_removals`)."""

    @property
    def drains(self) -> int:
        """Return how many drains we have ordered."""
        return sum(s.kind is StepKind.DRAIN for s in self.steps)

    @property
    def node(self) -> NodeName:
        """Return the Slurm name of the node; stays the same over a replacement."""
        return self.opened_for.node

    key = node
    """What at most one open recovery may be about."""

    @property
    def ended(self) -> bool:
        """Return whether it is closed; a closed recovery never opens again."""
        return self.phase in ENDS

    @property
    def remedy(self) -> Remedy:
        """Return the rung being tried."""
        return self.ladder[min(self.rung, len(self.ladder) - 1)]

    @property
    def test(self) -> str:
        """Return the id of its newest acceptance test, which its job and its reservation bear."""
        return f"{self.id}-{sum(t.signal == NodeRecoverySignal.ACCEPTANCE_DUE for t in self.trail)}"

    @property
    def newest_test_result(self) -> tuple[NodeRecoverySignal, str]:
        """Return what ended its newest test, and why."""
        for move in reversed(self.trail):
            signal = NodeRecoverySignal(move.signal)
            if move.phase == NodeRecoveryPhase.UNRESERVING and signal not in (*MARKS, *MAINTENANCE):
                return signal, move.why
        return NodeRecoverySignal.NEEDS_HUMAN, "nothing says how its test ended"

    @property
    def evidence(self) -> RecoveryTransitionRecord | None:
        """The move that says what was kept of the node before its remedy, or why nothing was; None
        where that is not settled."""
        return next((move for move in self.trail if move.signal in _EVIDENCE), None)

    @property
    def is_in_maintenance(self) -> bool:
        """Return whether a maintenance reservation was last seen to hold the node."""
        seen = [move.signal for move in self.trail if move.signal in MAINTENANCE]
        return seen[-1:] == [NodeRecoverySignal.MAINTENANCE_BEGAN]

    @property
    def withdrawn(self) -> bool:
        """Ended before any remedy took effect: for a mass event or an order that was taken back or
        refused, when the node was given back untreated; or, after a maintenance, for a fault that
        another recovery treats."""
        return bool(self.trail) and self.trail[-1].signal in _UNTREATED

    @property
    def is_for_maintenance(self) -> bool:
        """Return whether a maintenance window is why the node is closed, and no fault."""
        return self.rule in OF_MAINTENANCE

    @property
    def was_in_maintenance(self) -> bool:
        """Return whether a maintenance reservation has held the node since it opened."""
        return any(move.signal == NodeRecoverySignal.MAINTENANCE_BEGAN for move in self.trail)

    @property
    def is_for_capacity_change(self) -> bool:
        """Return whether the size of a group is why the node is treated: that is wanted, and no
        fault."""
        return self.rule in _OF_CAPACITY

    @property
    def remedied(self) -> bool:
        """True once something was asked for that the instance feels."""
        return any(s.kind in FELT for s in self.steps)

    def on(
        self, seen: str, at: datetime, why: str, now_is: NodeGeneration | None = None
    ) -> NodeRecovery:
        """Return the recovery after a signal. Raises IllegalRecoverySignalError for a pair not in
        the table."""
        signal = NodeRecoverySignal(seen)
        phase = find_phase_after_signal(TRANSITIONS, self.id, self.phase, signal)
        marked = signal in MARKS
        return replace(
            self,
            phase=phase,
            # Who marks a node puts no deadline off.
            since=self.since if marked else at,
            urgency=Urgency.NOW if marked and not self.by else self.urgency,
            rung=_choose_next_remedy_rung(self, signal),
            marked_at=self.drains if marked else self.marked_at,
            generation=now_is or self.generation,
            trail=(*self.trail, RecoveryTransitionRecord(at, signal, phase, why)),
        )


def _choose_next_remedy_rung(rec: NodeRecovery, signal: NodeRecoverySignal) -> int:
    """Return the next rung for a signal that climbs, or the one further up that a failed test
    names.

    A replacement that fails its test may be replaced once more: it is another instance.
    """
    if signal is NodeRecoverySignal.REPLACE_ASKED:
        return rec.ladder.index(Remedy.REPLACE)
    if signal not in _CLIMBS:
        return rec.rung
    asked, first = TEST_ASKS.get(signal), rec.rung + 1
    replaced = {step.target for step in rec.steps if step.kind is StepKind.REPLACE}
    if asked is rec.remedy is Remedy.REPLACE and len(replaced) == 1:
        first = rec.rung
    further = (rung for rung in range(first, len(rec.ladder)) if rec.ladder[rung] is asked)
    return next(further, rec.rung + 1)

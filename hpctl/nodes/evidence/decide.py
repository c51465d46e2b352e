"""When the evidence of a node is kept, and when its remedy goes ahead without it."""

from collections.abc import Collection
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from hpctl.engine.node_history import may_have_begun_remedy
from hpctl.engine.view import PlanningView, is_timestamp_fresh
from hpctl.faults.health import ORDER_S
from hpctl.nodes.actors import NodeCase
from hpctl.nodes.before_remedy import PreRemedySteps
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.assessment import Remedy
from hpctl.vocabulary.evidence import (
    EvidenceCollectionOrder,
    format_evidence_archive_name,
    is_evidence_archive_stored,
)
from hpctl.vocabulary.identity import RecoveryId
from hpctl.vocabulary.model import Finding
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase, NodeRecoverySignal
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import EvidenceCollectionPolicy, OperatingMode, RecoveryPolicy
from hpctl.vocabulary.recovery import (
    Next,
    RecheckInterval,
    RecoveryPhaseMove,
    StepKind,
    StepStartDecision,
    WaitDecision,
    find_last_step_attempt,
    format_call_outcome,
)

_DESTROYS: Final = (Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE)
_MOST_WHY: Final = 300


def require_evidence_before_remedy(c: NodeCase) -> Next | None:
    """Have the evidence kept, or wait for it; None where the remedy may go ahead.

    The wait is part of the time that the remedy waits for other nodes to report the same
    (`node.remedy_after_s`), not added to it.
    """
    if not _needs_evidence(c.rec, c.policy) or c.rec.evidence or may_have_begun_remedy(c.rec):
        return None
    if c.rec.remedy is not Remedy.RESET_GPU and not c.facts.provider_present:
        return None
    if c.facts.evidence is not None:
        return _make_phase_move_for_agent_answer(c, c.facts.evidence)
    last = c.last(StepKind.EVIDENCE)
    if last is None:
        return _begin_evidence_collection(c)
    if not last.in_doubt and not last.accepted:
        return _repeat_evidence_order(c)
    if c.facts.heard != c.rec.generation:
        return RecoveryPhaseMove(
            NodeRecoverySignal.NO_EVIDENCE, "the node has booted since it was asked"
        )
    ends = add_seconds_within_bounds(last.started, c.policy.evidence.deadline_s)
    if c.now >= ends:
        why = f"its agent did not answer within {c.policy.evidence.deadline_s:g} s"
        return RecoveryPhaseMove(NodeRecoverySignal.NO_EVIDENCE, why)
    return WaitDecision(ends, "the node's evidence is being kept", RecheckInterval.SLOWLY)


def _needs_evidence(rec: NodeRecovery, policy: RecoveryPolicy) -> bool:
    """Return whether hpctl itself is about to reset, reboot or replace, and a directory is set."""
    acts = policy.mode is OperatingMode.OWN and not policy.attended
    return acts and bool(policy.evidence.directory) and rec.remedy in _DESTROYS


def _make_phase_move_for_agent_answer(c: NodeCase, answer: Finding) -> RecoveryPhaseMove:
    """Return the move for the agent's answer, which the node's root may have written."""
    if not is_evidence_archive_stored(answer):
        why = answer.detail or "its agent gives no reason"
        return RecoveryPhaseMove(NodeRecoverySignal.NO_EVIDENCE, why[:_MOST_WHY])
    directory = c.policy.evidence.directory.rstrip("/")
    why = f"{directory}/{format_evidence_archive_name(c.rec.id)}, {answer.evidence}"
    return RecoveryPhaseMove(NodeRecoverySignal.EVIDENCE_KEPT, why)


def _begin_evidence_collection(c: NodeCase) -> Next:
    deadline_s, facts = c.policy.evidence.deadline_s, c.facts
    since = max(filter(None, (c.rec.since, facts.able_since)))
    ends = add_seconds_within_bounds(since, deadline_s)
    if facts.silent or facts.heard != c.rec.generation:
        return _wait_for_silent_agent(c)
    if c.now >= ends:
        why = f"{c.policy.evidence.at_once} other nodes kept theirs for {deadline_s:g} s"
        return RecoveryPhaseMove(NodeRecoverySignal.NO_EVIDENCE, why)
    if not facts.turn:
        return WaitDecision(ends, "other nodes' evidence is being kept", RecheckInterval.SLOWLY)
    return _make_evidence_order(
        c, StepStartDecision(StepKind.EVIDENCE, c.rec.node, 1, c.rec.meaning)
    )


def _wait_for_silent_agent(c: NodeCase) -> Next:
    """Give a silent agent the time that the remedy waits anyway."""
    ripe = add_seconds_within_bounds(c.rec.opened, c.policy.node.remedy_after_s)
    why = "its agent does not answer"
    if c.now < ripe and not c.rec.by:
        return WaitDecision(ripe, f"{why}, so its evidence cannot be kept", RecheckInterval.SLOWLY)
    return RecoveryPhaseMove(NodeRecoverySignal.NO_EVIDENCE, why)


def _repeat_evidence_order(c: NodeCase) -> Next:
    """Order again what was offered to no agent, or give up."""
    answer = c.attempt(StepKind.EVIDENCE, c.rec.node, c.rec.meaning)
    ends = add_seconds_within_bounds(c.rec.since, c.policy.evidence.deadline_s)
    if isinstance(answer, Outcome):
        return RecoveryPhaseMove(
            NodeRecoverySignal.NO_EVIDENCE,
            f"not ordered: {format_call_outcome(answer)}"[:_MOST_WHY],
        )
    if c.now >= ends:
        return RecoveryPhaseMove(
            NodeRecoverySignal.NO_EVIDENCE, "the order could not be given in time"
        )
    return _make_evidence_order(c, answer) if isinstance(answer, StepStartDecision) else answer


def _make_evidence_order(c: NodeCase, step: StepStartDecision) -> StepStartDecision:
    rec = c.rec
    first = min((f.first for f in rec.findings), default=rec.opened)
    asked = f", requested by {rec.by}" if rec.by else ""
    order = EvidenceCollectionOrder(
        recovery=rec.id,
        generation=rec.generation,
        until=add_seconds_within_bounds(c.now, ORDER_S).timestamp(),
        since=min(first, rec.opened).timestamp(),
        remedy=rec.remedy.value,
        why=f"{rec.rule}: {rec.meaning}{asked}"[:_MOST_WHY],
    )
    return replace(step, evidence=order)


def find_recoveries_ready_for_evidence(
    view: PlanningView, held: Collection[RecoveryId], policy: RecoveryPolicy, now: datetime
) -> frozenset[RecoveryId]:
    """Return the recoveries that may begin to keep evidence now, the longest empty first."""
    open_recoveries = [view.state.nodes[rid] for rid in view.state.open_nodes.values()]
    asking = [
        r for r in open_recoveries if _is_waiting_for_evidence(r) and _needs_evidence(r, policy)
    ]
    busy = [r for r in asking if _is_agent_collecting_evidence(r, policy.evidence, now)]
    waiting = [
        r
        for r in asking
        if find_last_step_attempt(r.steps, StepKind.EVIDENCE) is None
        and r.id not in held
        and r.node not in view.flaws
        and _is_agent_answering(r, view, policy, now)
    ]
    waiting.sort(key=lambda r: (r.since, r.id))
    free = max(0, policy.evidence.at_once - len(busy))
    return frozenset(r.id for r in waiting[:free])


def _is_waiting_for_evidence(rec: NodeRecovery) -> bool:
    return rec.phase is NodeRecoveryPhase.VACATED and rec.evidence is None


def _is_agent_collecting_evidence(
    rec: NodeRecovery, policy: EvidenceCollectionPolicy, now: datetime
) -> bool:
    last = find_last_step_attempt(rec.steps, StepKind.EVIDENCE)
    begun = last is not None and (last.in_doubt or last.accepted)
    return (
        begun
        and last is not None
        and now < add_seconds_within_bounds(last.started, policy.deadline_s)
    )


def _is_agent_answering(
    rec: NodeRecovery, view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> bool:
    health = view.health.get(rec.node)
    if health is None or health.generation != rec.generation:
        return False
    return is_timestamp_fresh(health.last_heard, policy.ages.silent_s, now)


EVIDENCE: Final = PreRemedySteps(
    find_turns=find_recoveries_ready_for_evidence, come_before_remedy=require_evidence_before_remedy
)

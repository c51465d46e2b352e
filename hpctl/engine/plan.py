"""Which recoveries may open. Pure: a view, a policy and a time in, decisions out.

Invariant: every candidate yields exactly one Open or one Hold, and the opens of one plan
together never exceed a budget. Candidates are taken in a fixed order, so that the same view
gives the same plan however its parts were ordered.

A flaw becomes a hold `internal_error` on its one target, and an escalation if it lasts. The hold is
in the journal like every other, so that `status`, `explain` and `doctor` show it and a restart does
not lose it; it is lifted when the target can be handled again.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from operator import itemgetter
from typing import Final

from msgspec.structs import replace

from hpctl.engine.gates import (
    GATES,
    RecoveryGateCounts,
    build_recovery_gate_counts,
    find_mass_event_rules_by_node,
    is_target_approved_by_operator,
)
from hpctl.engine.journal.events import GateBlocked, NodeRecoveryOpened
from hpctl.engine.kinds import JobsByNode, RecoveryKind, RecoveryPlan
from hpctl.engine.maintenance import (
    describe_maintenance_reservation,
    find_reservation_blocking_recovery,
)
from hpctl.engine.node_history import (
    has_health_agent_mark,
    list_steps_since_drain,
    may_have_begun_remedy,
)
from hpctl.engine.remedies import find_blocked_remedies
from hpctl.engine.view import PlanningView, RecoveryCandidate
from hpctl.faults.assess import make_fault_severity_sort_key
from hpctl.faults.catalogue import OWN_HARDWARE, FaultRules
from hpctl.faults.hma_marks import REQUESTS as MARK_REQUESTS
from hpctl.faults.hma_marks import RULES as MARK_RULES
from hpctl.faults.reachability import RULES as REACH_RULES
from hpctl.faults.reachability import is_intentionally_unreachable
from hpctl.faults.slurm_reasons import list_drained_node_fault_rules
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.assessment import FaultClass, NodeAssessment, NodeCondition, Remedy, Urgency
from hpctl.vocabulary.cloud_facts import InstanceStatus
from hpctl.vocabulary.identity import InstanceId, NodeName, RuleId
from hpctl.vocabulary.isolation import ItemProcessingFailure, process_items_capturing_failures
from hpctl.vocabulary.node_recovery import (
    NodeRecovery,
    NodeRecoveryPhase,
    NodeRecoverySignal,
    is_await_only_remedy_ladder,
)
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.reason import parse_recovery_id_from_reason
from hpctl.vocabulary.recovery import StepKind, make_recovery_id
from hpctl.vocabulary.slurm_facts import SlurmNode

GATE: Final = "internal_error"
QUARANTINED: Final = RuleId("internal-error")
ESCALATED: Final = RuleId("internal-error-lasts")
LASTS_S: Final = 600.0
"""What cannot be handled for so long does not pass without help."""


def merge_gate_blocks(
    flaws: Iterable[ItemProcessingFailure],
    holds: Iterable[GateBlocked],
    known: Mapping[str, GateBlocked],
    now: datetime,
) -> list[GateBlocked]:
    """Return all holds of one cycle, one a target. `known`: those that are in the journal."""
    found = {hold.target: hold for hold in holds}
    for flaw in flaws:
        before = known.get(flaw.target)
        lasts = (
            before is not None and before.gate == GATE and _is_gate_block_persistent(before, now)
        )
        hint = "it lasts: look at the daemon's log" if lasts else "left alone, all others go on"
        why = f"{flaw.where} raised {flaw.error} (input {flaw.digest}); {hint}"
        rule = ESCALATED if lasts else QUARANTINED
        found[flaw.target] = GateBlocked(now, flaw.target, GATE, why, rule)
    return list(found.values())


def _is_gate_block_persistent(before: GateBlocked, now: datetime) -> bool:
    return before.rule == ESCALATED or now >= add_seconds_within_bounds(before.at, LASTS_S)


_SPOKEN: Final = MARK_RULES | REACH_RULES | list_drained_node_fault_rules()
"""The rules that rest on Slurm's word or the cloud's, whatever the node's agent says."""
NODE_LOST: Final = RuleId("node-lost")
"""The catalogue's row for a node that two observers call gone."""
DRAIN_RESTORED: Final = FaultClass(
    RuleId("drain-restored"),
    "slurmctld restored a drain that was lifted",
    Urgency.AFTER_JOBS,
    (Remedy.NONE,),
    source="slurmctld",
)
"""No fault of a node: slurmctld died within seconds of a RESUME, before it had saved that."""


def plan_recoveries(  # noqa: PLR0913 -- pure: all that decides is an argument
    view: PlanningView,
    policy: RecoveryPolicy,
    rules: FaultRules,
    here: JobsByNode,
    now: datetime,
    kinds: Sequence[RecoveryKind],
) -> RecoveryPlan:
    """Decide on every candidate. `here`: the jobs on nodes with an open recovery."""
    judged = _exclude_mass_event_faults(view, policy, rules, now)
    candidates, flaws = find_node_recovery_candidates(judged, rules, now)
    candidates += _find_candidates_drained_after_return(
        view, _list_nodes_under_recovery(view, candidates), now
    )
    for kind in kinds:
        candidates += kind.find_candidates(
            view, policy, _list_nodes_under_recovery(view, candidates), now
        )
    counts = build_recovery_gate_counts(view, candidates, policy, now)

    def decide_and_count_candidate(
        candidate: RecoveryCandidate,
    ) -> NodeRecoveryOpened | GateBlocked:
        decision = decide_candidate(candidate, view, counts, policy, now)
        if not isinstance(decision, GateBlocked):
            counts.add(candidate.node, candidate.fault.rule, now)
        return decision

    nodes, of_nodes = process_items_capturing_failures(
        "plan",
        sorted(candidates, key=_make_candidate_sort_key),
        lambda c: c.node.name,
        decide_and_count_candidate,
    )
    of_kinds = _merge_recovery_plans([kind.plan(view, policy, here, now) for kind in kinds])
    opens = [opened for opened in nodes if not isinstance(opened, GateBlocked)]
    holds = [hold for hold in nodes if isinstance(hold, GateBlocked)]
    return RecoveryPlan(
        (*opens, *of_kinds.opens),
        (*holds, *of_kinds.holds, *_list_blocks_of_recovering_nodes(view, policy, now)),
        (*flaws, *of_nodes, *of_kinds.flaws),
        tuple(candidates),
    )


def plan_followup_recoveries(
    view: PlanningView,
    policy: RecoveryPolicy,
    here: JobsByNode,
    now: datetime,
    kinds: Sequence[RecoveryKind],
) -> RecoveryPlan:
    """Decide on what may open only after the journal has what `plan` opened."""
    return _merge_recovery_plans([kind.plan_after(view, policy, here, now) for kind in kinds])


def _merge_recovery_plans(plans: Sequence[RecoveryPlan]) -> RecoveryPlan:
    """Return one plan of what several kinds open, hold and could not decide; no candidates."""
    return RecoveryPlan(
        tuple(chain.from_iterable(plan.opens for plan in plans)),
        tuple(chain.from_iterable(plan.holds for plan in plans)),
        tuple(chain.from_iterable(plan.flaws for plan in plans)),
    )


def _exclude_mass_event_faults(
    view: PlanningView, policy: RecoveryPolicy, rules: FaultRules, now: datetime
) -> PlanningView:
    """The view in which a fault of a node's own goes before a mass event's, where it has both."""
    of_events = find_mass_event_rules_by_node(view, policy, now)
    changed = {}
    for name, events in of_events.items():
        judged = view.assessments[name]
        own = [rule for rule in judged.also if rule not in events and rule in rules.classes]
        if own and judged.fault is not None and judged.fault.rule in events:
            rule = max(own, key=lambda one: make_fault_severity_sort_key(rules.classes[one], rules))
            fault = rules.classes[rule]
            also = {r: at for r, at in judged.faults.items() if r != rule}
            why = f"{rule}: {fault.meaning}"
            changed[name] = replace(
                judged, fault=fault, since=judged.also[rule], also=also, why=why
            )
    if not changed:
        return view
    return replace(view, assessments={**view.assessments, **changed})


def _list_nodes_under_recovery(
    view: PlanningView, candidates: Iterable[RecoveryCandidate]
) -> set[NodeName]:
    """Return the nodes that are treated or about to be."""
    return {*view.state.open_nodes, *(candidate.node.name for candidate in candidates)}


def _list_blocks_of_recovering_nodes(
    view: PlanningView, policy: RecoveryPolicy, now: datetime
) -> list[GateBlocked]:
    """Return nodes under treatment for which nothing is done now: an admin keeps them in a
    maintenance reservation, or a gate holds their remedy, which a person may approve."""
    found = []
    for name, rid in view.state.open_nodes.items():
        held_by = find_reservation_blocking_recovery(view.state.nodes[rid], view)
        if held_by is not None:
            why = f"{describe_maintenance_reservation(held_by, now)}, and its recovery waits"
            found.append(GateBlocked(now, name, "maintenance", why, view.state.nodes[rid].rule))
    for rid, held in find_blocked_remedies(view, policy, now).items():
        rec = view.state.nodes[rid]
        if rec.node not in view.maintenance:
            why = f"{held.why}; {rec.node} stays closed, and its remedy waits"
            found.append(GateBlocked(now, rec.node, held.gate, why, rec.rule, True))
    return found


def _make_candidate_sort_key(c: RecoveryCandidate) -> tuple[bool, datetime, str]:
    return (c.fault.urgency is not Urgency.NOW, c.since, c.node.name)


def decide_candidate(
    c: RecoveryCandidate,
    view: PlanningView,
    counts: RecoveryGateCounts,
    policy: RecoveryPolicy,
    now: datetime,
) -> NodeRecoveryOpened | GateBlocked:
    """Check one candidate against all gates in order."""
    passed: list[str] = []
    is_waived = is_target_approved_by_operator(c.node.name, view, policy, now)
    leaves = is_await_only_remedy_ladder(c.fault.ladder)
    for row in GATES:
        if (c.manual and not row.manual) or (is_waived and row.approvable):
            passed.append(f"{row.name} (waived by {c.by or 'approval'})")
            continue
        if leaves and not row.manual:
            passed.append(f"{row.name} (the instance goes anyway)")
            continue
        if row.name == "correlated" and c.fault.rule in OWN_HARDWARE:
            passed.append(f"{row.name} (its own hardware: closed now, remedied when this passes)")
            continue
        why = row.gate(c, view, counts, policy, now)
        if why is not None:
            return GateBlocked(now, c.node.name, row.name, why, c.fault.rule, row.approvable)
        passed.append(row.name)
    return _make_node_recovery_opening(c, view, policy, tuple(passed), now)


def _make_node_recovery_opening(
    c: RecoveryCandidate,
    view: PlanningView,
    policy: RecoveryPolicy,
    passed: tuple[str, ...],
    now: datetime,
) -> NodeRecoveryOpened:
    instance = view.instance(c.node.name)
    judged = view.assessments.get(c.node.name)
    return NodeRecoveryOpened(
        at=now,
        recovery=make_recovery_id(
            "n", c.node.name, c.generation, c.fault.rule, len(view.state.nodes), known=view.state
        ),
        generation=c.generation,
        rule=c.fault.rule,
        meaning=c.fault.meaning,
        urgency=c.fault.urgency,
        ladder=tuple(dict.fromkeys(c.fault.ladder)),
        why=c.why,
        mode=policy.mode,
        rung=0 if c.manual else _choose_escalation_ladder_step(c, view, now),
        logical_id=instance.logical_id if instance else None,
        by=c.by,
        findings=(*c.findings, *(judged.findings if judged and not c.manual else ())),
        passed=passed,
        group=c.group,
    )


def _choose_escalation_ladder_step(c: RecoveryCandidate, view: PlanningView, now: datetime) -> int:
    """Climb one rung for each time this instance was treated by this rule in the window."""
    window = c.fault.escalate_window_s
    treated = [
        rec
        for rec in view.state.nodes.values()
        if rec.rule == c.fault.rule and rec.generation.instance == c.generation.instance
    ]
    returned = [rec for rec in treated if rec.phase is NodeRecoveryPhase.RETURNED]
    before = sum(now < add_seconds_within_bounds(rec.opened, window) for rec in returned)
    return min(before, len(set(c.fault.ladder)) - 1)


def find_node_recovery_candidates(
    view: PlanningView, rules: FaultRules, now: datetime
) -> tuple[list[RecoveryCandidate], list[ItemProcessingFailure]]:
    """Return every generation that the facts call faulty and that is not treated yet."""
    leaving = _list_nodes_with_deleted_instances(view)

    def make_candidate_of_assessed_node(
        item: tuple[NodeName, NodeAssessment],
    ) -> RecoveryCandidate | None:
        name, judged = item
        node = view.scheduler.nodes.get(name)
        if node is None or name in view.state.open_nodes or name not in view.health:
            return None
        if (name, judged.generation.instance) in leaving or view.is_quarantined(name):
            return None
        candidate = _make_recovery_candidate(node, judged, view, rules, now)
        dealt_with = candidate is not None and _is_fault_already_treated(candidate, judged, view)
        return None if dealt_with else candidate

    found, flaws = process_items_capturing_failures(
        "plan", view.assessments.items(), itemgetter(0), make_candidate_of_assessed_node
    )
    return [candidate for candidate in found if candidate is not None], flaws


def _find_candidates_drained_after_return(
    view: PlanningView, treated: Collection[NodeName], now: datetime
) -> list[RecoveryCandidate]:
    """Return nodes that are drained in the name of a recovery that has seen them back in service.

    Only hpctl writes such a Reason. They are given back as by an operator's order: no budget is
    spent on it, and all of them at once are one slurmctld's doing, and no mass event.

    24.11 keeps the Reason of a node that was resumed, and may keep it where it drains the node
    itself because slurmd registered with less than slurm.conf says: that drain is a new one.
    """
    found = []
    for node in view.scheduler.nodes.values():
        if "INVALID_REG" in node.flags:
            continue
        owner = parse_recovery_id_from_reason(node.reason) if node.reason and node.drained else None
        lifted = view.state.nodes.get(owner) if owner is not None else None
        health = view.health.get(node.name)
        if (
            lifted is None
            or health is None
            or node.name in treated
            or view.is_quarantined(node.name)
        ):
            continue
        if lifted.node == node.name and lifted.phase is NodeRecoveryPhase.RETURNED:
            why = f"{lifted.id} had given it back: slurmctld came back with a state from before"
            generation = health.generation
            found.append(RecoveryCandidate(generation, node, DRAIN_RESTORED, now, why, by="hpctl"))
    return found


def _list_nodes_with_deleted_instances(view: PlanningView) -> set[tuple[NodeName, InstanceId]]:
    """Return the nodes whose very instance is gone by our own order, or may be about to go.

    Its name stays in Slurm for a while, DOWN, and its agent is silent: as was asked for.
    """
    recoveries = filter(_may_have_deleted_instance, view.state.nodes.values())
    return {(rec.node, rec.generation.instance) for rec in recoveries}


def _may_have_deleted_instance(rec: NodeRecovery) -> bool:
    """Return whether a recovery has deleted its instance, or may have."""
    if rec.phase is NodeRecoveryPhase.REMOVED:
        return True
    given_up = rec.remedy is Remedy.DELETE and rec.phase is NodeRecoveryPhase.CANCELLED
    return given_up and may_have_begun_remedy(rec)


def _make_recovery_candidate(
    node: SlurmNode, judged: NodeAssessment, view: PlanningView, rules: FaultRules, now: datetime
) -> RecoveryCandidate | None:
    heard = view.health[node.name].last_heard
    if judged.condition is NodeCondition.FAULTY and judged.fault is not None:
        # A mark is Slurm's word, which is as young as the view of Slurm; silence is no word.
        last_heard = None if judged.fault.rule in _SPOKEN else heard
        return RecoveryCandidate(
            judged.generation, node, judged.fault, judged.since, judged.why, heard=last_heard
        )
    silent = now - heard > rules.silent_after
    if judged.condition is NodeCondition.UNKNOWN and silent:
        agrees = _find_node_loss_evidence(node, view)
        if agrees:
            why = f"agent silent since {heard:%H:%M:%S}; {agrees}"
            lost = rules.classes[NODE_LOST]
            return RecoveryCandidate(judged.generation, node, lost, judged.since, why, heard=heard)
    return None


def _find_node_loss_evidence(node: SlurmNode, view: PlanningView) -> str:
    """Return who, besides the silent agent, says that the node is gone. Empty: none."""
    instance = view.instance(node.name)
    if is_intentionally_unreachable(node):
        return ""
    if node.down:
        return f"Slurm says DOWN ({node.reason})"
    if not node.responding:
        return "its slurmd does not answer slurmctld"
    if instance is not None and instance.status is InstanceStatus.FAILURE:
        return f"the cloud says {instance.status} ({instance.message})"
    return ""


def _is_fault_already_treated(
    c: RecoveryCandidate, judged: NodeAssessment, view: PlanningView
) -> bool:
    """Return whether the last recovery of this very generation ended after the newest evidence.

    A person who cancelled a recovery, was handed one or gave the node back is not overruled by
    the old lines, nor by a condition that merely lasts; what is new opens a new recovery.
    """
    rid = view.state.last_of_node.get(c.node.name)
    if rid is None:
        return False
    last: NodeRecovery = view.state.nodes[rid]
    if c.fault.rule in MARK_REQUESTS and _is_fault_mark_of_former_instance(c, last):
        return True
    if c.generation not in (last.opened_for, last.generation):
        return False
    if last.withdrawn:
        return False
    if last.phase is NodeRecoveryPhase.RETURNED and not _SPOKEN.isdisjoint(
        {c.fault.rule, *judged.also}
    ):
        return False  # giving the node back took the old Reason off, whatever the clocks say
    if c.fault.rule in REACH_RULES:
        # It merely lasts: since when is forgotten whenever no cycle runs for a while.
        return last.rule == c.fault.rule
    return judged.newest <= _find_recovery_evidence_cutoff_time(last)


def _is_fault_mark_of_former_instance(c: RecoveryCandidate, last: NodeRecovery) -> bool:
    """Return whether the mark was on the node when a recovery opened for another instance of it.

    FAIL and its Reason stay when an instance is replaced, and the time of its launch, which shows
    that the mark is older, is not known while the cloud does not answer.
    """
    marked_at = c.node.reason_at
    if marked_at is None or marked_at > last.opened or not has_health_agent_mark(last):
        return False
    return c.generation.instance not in ("", last.opened_for.instance)


def _find_recovery_evidence_cutoff_time(last: NodeRecovery) -> datetime:
    """Return the time up to which a recovery took evidence into account; what is newer may open
    another.

    For a node given back that is when its RETURN, or its acceptance test, began, not when the
    recovery ended: nothing was observed in between.
    """
    if last.phase is not NodeRecoveryPhase.RETURNED:
        return last.since
    if [move.phase for move in last.trail[-2:-1]] == [NodeRecoveryPhase.UNRESERVING]:
        return max(t.at for t in last.trail if t.signal == NodeRecoverySignal.ACCEPTANCE_DUE)
    return next(
        (s.started for s in list_steps_since_drain(last) if s.kind is StepKind.RETURN), last.since
    )

"""The recoveries of nodes as the engine drives them: see `hpctl.engine.kinds`."""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from hpctl.engine.gates import find_mass_event_recoveries, find_mass_event_rules_by_node
from hpctl.engine.kinds import Answers, JobsByNode, RecoveryAdvanceResult, RecoveryKind
from hpctl.engine.remedies import HOLDS_REMEDY, find_blocked_remedies
from hpctl.engine.view import PlanningView, RecoveryCandidate
from hpctl.faults.catalogue import OWN_HARDWARE
from hpctl.faults.reachability import RULES as REACH_RULES
from hpctl.nodes import advance
from hpctl.nodes.actors import NodeFacts, explain_unneeded_remedy
from hpctl.nodes.before_remedy import NOTHING_BEFORE, PreRemedySteps
from hpctl.nodes.facts import make_node_facts
from hpctl.nodes.stuck import find_stuck_node_candidates
from hpctl.nodes.testing import (
    NO_TESTING,
    FindSuspicions,
    NodeTestFunctions,
    find_no_node_suspicions,
)
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition
from hpctl.vocabulary.identity import NodeName, RuleId
from hpctl.vocabulary.isolation import process_items_capturing_failures
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase, NodeRecoverySignal
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import RecoveryPhaseMove
from hpctl.vocabulary.slurm_facts import SlurmJob

MayStop = Callable[[SlurmJob, PlanningView], bool]
"""Returns whether a running job is ready for a node of it to be set DOWN."""


def allow_all_job_stops(job: SlurmJob, view: PlanningView) -> bool:  # noqa: ARG001
    """Return True: where no recoveries of jobs are known, none has to be ready."""
    return True


def make_node_recovery_kind(
    testing: NodeTestFunctions = NO_TESTING,
    before: PreRemedySteps = NOTHING_BEFORE,
    may_stop: MayStop = allow_all_job_stops,
    find_suspicions: FindSuspicions = find_no_node_suspicions,
) -> RecoveryKind:
    """Return the kind. `testing` says how nodes are tested before they serve, `before` what comes
    before their remedy, `may_stop` which running jobs are ready for their node to be set DOWN,
    `find_suspicions` which nodes the failures of jobs point to."""

    def advance_node_recoveries(
        view: PlanningView, policy: RecoveryPolicy, here: JobsByNode, now: datetime
    ) -> Answers:
        correlated = find_mass_event_recoveries(view, policy, now)
        held = find_blocked_remedies(view, policy, now)
        of_events = find_mass_event_rules_by_node(view, policy, now)
        turns = before.find_turns(view, held, policy, now)

        def answer_node_recovery(rec: NodeRecovery) -> RecoveryAdvanceResult:
            jobs = here[rec.node]
            facts = replace(
                make_node_facts(rec, view, jobs, policy, now),
                movable=frozenset(int(job.id) for job in jobs if may_stop(job, view)),
                results=testing.read_results(rec.test, rec.node, view, policy),
            )
            facts = replace(
                facts,
                assessment=_exclude_mass_event_faults(
                    facts.assessment, of_events.get(rec.node, frozenset())
                ),
                blocked=held[rec.id].why if rec.id in held else "",
                was_blocked=_is_remedy_held_by_gate(rec, view, now),
                turn=rec.id in turns,
            )
            facts = replace(
                facts, assessment=_mark_recent_faults_suspected(rec, facts.assessment, policy, now)
            )
            facts = _apply_mass_event_to_facts(rec, facts, correlated.get(rec.id, ""))
            answer = advance.advance_node_recovery(rec, facts, policy, now, testing, before)
            if (
                isinstance(answer, RecoveryPhaseMove)
                and answer.signal is NodeRecoverySignal.NEW_GENERATION_SEEN
            ):
                return RecoveryAdvanceResult(
                    rec.id, answer, generation=advance.find_new_generation(rec, facts)
                )
            return RecoveryAdvanceResult(rec.id, answer)

        open_nodes = view.state.open_nodes.items()
        nodes = [view.state.nodes[rid] for name, rid in open_nodes if not view.is_quarantined(name)]
        return process_items_capturing_failures(
            "advance", nodes, lambda rec: rec.node, answer_node_recovery
        )

    def find_nonfaulty_node_candidates(
        view: PlanningView, policy: RecoveryPolicy, treated: Collection[NodeName], now: datetime
    ) -> list[RecoveryCandidate]:
        """Return candidates among nodes that are not assessed faulty: those that failed a
        burn-in, that keep a job from its restart, that are to be tested, or that the failures of
        jobs point to."""
        burned = testing.find_burned(view, treated)
        treated = {*treated, *(candidate.node.name for candidate in burned)}
        stuck = find_stuck_node_candidates(view, policy, treated, now)
        treated = {*treated, *(candidate.node.name for candidate in stuck)}
        untested = testing.find_untested(view, policy, treated, now)
        treated = {*treated, *(candidate.node.name for candidate in untested)}
        suspected = testing.find_suspected(view, policy, treated, find_suspicions, now)
        return [*burned, *stuck, *untested, *suspected]

    return RecoveryKind(
        advance=advance_node_recoveries,
        find_candidates=find_nonfaulty_node_candidates,
        orders=testing.orders,
    )


def _exclude_mass_event_faults(
    judged: NodeAssessment | None, rules: frozenset[RuleId]
) -> NodeAssessment | None:
    """Return an assessment without the faults that are a mass event's: they say nothing of this
    node."""
    if judged is None or not rules or not rules.issuperset(judged.faults):
        return judged
    out_of_reach = not REACH_RULES.isdisjoint(rules)
    condition = NodeCondition.UNKNOWN if out_of_reach else NodeCondition.HEALTHY
    why = f"{', '.join(sorted(rules))} is a mass event"
    return NodeAssessment(judged.generation, condition, judged.since, why=why)


def _mark_recent_faults_suspected(
    rec: NodeRecovery, judged: NodeAssessment | None, policy: RecoveryPolicy, now: datetime
) -> NodeAssessment | None:
    """Return the assessment, suspected where its fault is too young for the next remedy.

    Other nodes get the time to report the same that they get before a first remedy.
    """
    if judged is None or judged.condition is not NodeCondition.FAULTY or rec.phase not in _CHECKED:
        return judged
    wait_s = policy.node.remedy_after_s
    for rule, since in judged.faults.items():
        if rule in OWN_HARDWARE or now >= add_seconds_within_bounds(since, wait_s):
            return judged
    until = add_seconds_within_bounds(min(judged.faults.values()), wait_s)
    return replace(judged, condition=NodeCondition.SUSPECT, until=until)


_CHECKED: Final = (NodeRecoveryPhase.VERIFYING, NodeRecoveryPhase.ACCEPTING)


def _apply_mass_event_to_facts(rec: NodeRecovery, facts: NodeFacts, why: str) -> NodeFacts:
    """Return the facts with what the mass event that `why` describes means for this one."""
    if why and rec.rule in OWN_HARDWARE:
        return facts
    return replace(facts, correlated=why or explain_unneeded_remedy(rec, facts))


def _is_remedy_held_by_gate(rec: NodeRecovery, view: PlanningView, now: datetime) -> bool:
    """Return whether a gate has held the remedy of a recovery since its phase began, until now."""
    hold = view.state.holds.get(rec.node)
    if hold is None or hold.gate not in HOLDS_REMEDY or hold.at < rec.since:
        return False
    # The clock may have been set back, and the hold is lifted only at the end of a cycle.
    last = rec.trail[-1] if rec.trail else None
    return last is None or (last.signal, last.at) != (NodeRecoverySignal.REMEDY_ALLOWED, now)

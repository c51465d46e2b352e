"""The recoveries of nodes as the engine drives them: see `hpctl.engine.kinds`."""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from hpctl.engine.gates import find_correlated_recoveries, find_correlated_rules
from hpctl.engine.kinds import Answers, JobsByNode, RecoveryAnswer, RecoveryKind
from hpctl.engine.remedies import HOLDS_REMEDY, find_held_remedies
from hpctl.engine.view import PlanningView, RecoveryCandidate
from hpctl.faults.catalogue import OWN_HARDWARE
from hpctl.faults.reachability import RULES as REACH_RULES
from hpctl.nodes import advance
from hpctl.nodes.actors import NodeFacts, explain_recovered_node
from hpctl.nodes.before_remedy import NOTHING_BEFORE, BeforeRemedySteps
from hpctl.nodes.facts import make_node_facts
from hpctl.nodes.stuck import find_stuck_nodes
from hpctl.nodes.testing import NO_TESTING, FindSuspicions, NodeTestFunctions, find_no_suspicions
from hpctl.toolkit.bounds import add_seconds
from hpctl.vocabulary.assessment import Assessment, NodeCondition
from hpctl.vocabulary.identity import NodeName, RuleId
from hpctl.vocabulary.isolation import isolate_each_call
from hpctl.vocabulary.node_recovery import NodePhase, NodeRecovery, NodeSignal
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.recovery import PhaseMove
from hpctl.vocabulary.slurm_facts import SlurmJob

MayStop = Callable[[SlurmJob, PlanningView], bool]
"""Returns whether a running job is ready for a node of it to be set DOWN."""


def allow_all_job_stops(job: SlurmJob, view: PlanningView) -> bool:  # noqa: ARG001
    """Return True: where no recoveries of jobs are known, none has to be ready."""
    return True


def make_node_recovery_kind(
    testing: NodeTestFunctions = NO_TESTING,
    before: BeforeRemedySteps = NOTHING_BEFORE,
    may_stop: MayStop = allow_all_job_stops,
    find_suspicions: FindSuspicions = find_no_suspicions,
) -> RecoveryKind:
    """Return the kind. `testing` says how nodes are tested before they serve, `before` what comes
    before their remedy, `may_stop` which running jobs are ready for their node to be set DOWN,
    `find_suspicions` which nodes the failures of jobs point to."""

    def advance_node_recoveries(
        view: PlanningView, policy: RecoveryPolicy, here: JobsByNode, now: datetime
    ) -> Answers:
        correlated = find_correlated_recoveries(view, policy, now)
        held = find_held_remedies(view, policy, now)
        of_events = find_correlated_rules(view, policy, now)
        turns = before.find_turns(view, held, policy, now)

        def answer_node(rec: NodeRecovery) -> RecoveryAnswer:
            jobs = here[rec.node]
            facts = replace(
                make_node_facts(rec, view, jobs, policy, now),
                movable=frozenset(int(job.id) for job in jobs if may_stop(job, view)),
                results=testing.read_results(rec.test, rec.node, view, policy),
            )
            facts = replace(
                facts,
                assessment=_exclude_mass_event_rules(
                    facts.assessment, of_events.get(rec.node, frozenset())
                ),
                blocked=held[rec.id].why if rec.id in held else "",
                was_blocked=_has_gate_held_remedy(rec, view, now),
                turn=rec.id in turns,
            )
            facts = replace(
                facts, assessment=_defer_young_faults(rec, facts.assessment, policy, now)
            )
            facts = _exclude_mass_event(rec, facts, correlated.get(rec.id, ""))
            answer = advance.advance_node_recovery(rec, facts, policy, now, testing, before)
            if isinstance(answer, PhaseMove) and answer.signal is NodeSignal.NEW_GENERATION_SEEN:
                return RecoveryAnswer(
                    rec.id, answer, generation=advance.find_new_generation(rec, facts)
                )
            return RecoveryAnswer(rec.id, answer)

        open_nodes = view.state.open_nodes.items()
        nodes = [view.state.nodes[rid] for name, rid in open_nodes if not view.is_quarantined(name)]
        return isolate_each_call("advance", nodes, lambda rec: rec.node, answer_node)

    def find_nonfaulty_node_candidates(
        view: PlanningView, policy: RecoveryPolicy, treated: Collection[NodeName], now: datetime
    ) -> list[RecoveryCandidate]:
        """Return candidates among nodes that are not assessed faulty: those that failed a
        burn-in, that keep a job from its restart, that are to be tested, or that the failures of
        jobs point to."""
        burned = testing.find_burned(view, treated)
        treated = {*treated, *(candidate.node.name for candidate in burned)}
        stuck = find_stuck_nodes(view, policy, treated, now)
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


def _exclude_mass_event_rules(
    judged: Assessment | None, rules: frozenset[RuleId]
) -> Assessment | None:
    """Return an assessment without the faults that are a mass event's: they say nothing of this
    node."""
    if judged is None or not rules or not rules.issuperset(judged.faults):
        return judged
    out_of_reach = not REACH_RULES.isdisjoint(rules)
    condition = NodeCondition.UNKNOWN if out_of_reach else NodeCondition.HEALTHY
    why = f"{', '.join(sorted(rules))} is a mass event"
    return Assessment(judged.generation, condition, judged.since, why=why)


def _defer_young_faults(
    rec: NodeRecovery, judged: Assessment | None, policy: RecoveryPolicy, now: datetime
) -> Assessment | None:
    """Return the assessment, suspected where its fault is too young for the next remedy.

    Other nodes get the time to report the same that they get before a first remedy.
    """
    if judged is None or judged.condition is not NodeCondition.FAULTY or rec.phase not in _CHECKED:
        return judged
    wait_s = policy.node.remedy_after_s
    for rule, since in judged.faults.items():
        if rule in OWN_HARDWARE or now >= add_seconds(since, wait_s):
            return judged
    until = add_seconds(min(judged.faults.values()), wait_s)
    return replace(judged, condition=NodeCondition.SUSPECT, until=until)


_CHECKED: Final = (NodePhase.VERIFYING, NodePhase.ACCEPTING)


def _exclude_mass_event(rec: NodeRecovery, facts: NodeFacts, why: str) -> NodeFacts:
    """Return the facts with what the mass event that `why` describes means for this one."""
    if why and rec.rule in OWN_HARDWARE:
        return facts
    return replace(facts, correlated=why or explain_recovered_node(rec, facts))


def _has_gate_held_remedy(rec: NodeRecovery, view: PlanningView, now: datetime) -> bool:
    """Return whether a gate has held the remedy of a recovery since its phase began, until now."""
    hold = view.state.holds.get(rec.node)
    if hold is None or hold.gate not in HOLDS_REMEDY or hold.at < rec.since:
        return False
    # The clock may have been set back, and the hold is lifted only at the end of a cycle.
    last = rec.trail[-1] if rec.trail else None
    return last is None or (last.signal, last.at) != (NodeSignal.REMEDY_ALLOWED, now)

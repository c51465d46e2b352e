"""All open recoveries against one view: the moves they make, the steps they want, the waits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from hpctl.core import change_advance, job_advance, node_advance, node_recovery
from hpctl.core.capacity import change_facts
from hpctl.core.gates import approved, correlated_rule, tally
from hpctl.core.journal import SignalSeen
from hpctl.core.model import Attempt, RecoveryId
from hpctl.core.policy import Mode, Policy
from hpctl.core.recovery import Do, Move, Wait
from hpctl.core.view import View, job_facts, jobs_on, node_facts


@dataclass(frozen=True, slots=True)
class Due:
    """A step that a recovery wants now. `attempt`: of the job, for a job's step."""

    recovery: RecoveryId
    do: Do
    attempt: Attempt | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """One pass over all open recoveries. While there are `moves`, another pass is needed."""

    moves: tuple[SignalSeen, ...] = ()
    due: tuple[Due, ...] = ()
    waits: tuple[Wait, ...] = ()


def advance_all(view: View, policy: Policy, now: datetime) -> Progress:
    """What each open recovery does next. Nothing moves on a view that was not just read."""
    if not view.current:
        return Progress()
    state = view.state
    moves: list[SignalSeen] = []
    due: list[Due] = []
    waits: list[Wait] = []
    here = jobs_on(list(state.open_nodes), view.scheduler.jobs)
    correlated = _correlated(view, policy, now)
    for node, rid in state.open_nodes.items():
        rec = state.nodes[rid]
        facts = node_facts(rec, view, here[node], policy, now)
        if rid in correlated:
            facts = replace(facts, correlated=correlated[rid])
        answer = node_advance.advance(rec, facts, policy, now)
        if isinstance(answer, Move):
            fresh = None
            if answer.signal is node_recovery.Signal.NEW_GENERATION_SEEN:
                fresh = node_advance.new_generation(rec, facts)
            moves.append(SignalSeen(now, rid, answer.signal, answer.why, fresh))
        elif isinstance(answer, Do):
            due.append(Due(rid, answer))
        else:
            waits.append(answer)
    for rid in state.open_jobs.values():
        job = state.jobs[rid]
        step = job_advance.advance(job, job_facts(job, view, policy), policy, now)
        if isinstance(step, Move):
            moves.append(SignalSeen(now, rid, step.signal, step.why))
        elif isinstance(step, Do):
            due.append(Due(rid, step, job.attempt))
        else:
            waits.append(step)
    for rid in state.open_changes.values():
        change = state.changes[rid]
        facts_now = change_facts(change, view, policy, now)
        answer = change_advance.advance(change, facts_now, policy, now)
        if isinstance(answer, Move):
            moves.append(SignalSeen(now, rid, answer.signal, answer.why))
        elif isinstance(answer, Do):
            due.append(Due(rid, answer))
        else:
            waits.append(answer)
    # A pause stops effects, not looking: what is observed meanwhile still moves a recovery. So does
    # mode observe, in which recoveries are open where it was set while they were.
    stopped = bool(view.stopped or state.paused_by) or policy.mode is Mode.OBSERVE
    return Progress(tuple(moves), () if stopped else tuple(due), tuple(waits))


def _correlated(view: View, policy: Policy, now: datetime) -> dict[RecoveryId, str]:
    """Open recoveries whose rule has turned out to be a mass event since, and how many nodes.

    The first nodes of a mass event look like single faults. As long as no instance has been
    touched it is not too late for them.
    """
    state = view.state
    open_now = [state.nodes[i] for i in state.open_nodes.values()]
    early = [r for r in open_now if not (r.by or r.remedied or node_recovery.goes_anyway(r.ladder))]
    if not early:
        return {}
    counts = tally(view, (), policy, now)
    found = {}
    for rec in early:
        why = correlated_rule(rec.rule, rec.node, rec.opened, counts, policy)
        # An approval's hour is for opening: the jobs on the node may take days to end.
        if why and not approved(rec.node, view, policy, rec.opened):
            found[rec.id] = why
    return found

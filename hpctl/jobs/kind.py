"""The recoveries of jobs as the engine drives them: see `hpctl.engine.kinds`."""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from hpctl.engine.journal.events import GateBlocked, JobRecoveryOpened
from hpctl.engine.kinds import Answers, JobsByNode, Plan, RecoveryAnswer, RecoveryKind
from hpctl.engine.pauses import find_able_since
from hpctl.engine.view import View
from hpctl.jobs import advance
from hpctl.jobs.exclusions import lift_decisions
from hpctl.jobs.facts import job_facts
from hpctl.jobs.launches import add_launches, find_launches, hold_launches
from hpctl.jobs.plan import job_of, run_decisions
from hpctl.jobs.plan_hits import job_decisions
from hpctl.jobs.preemptions import preemption_decisions
from hpctl.toolkit.bounds import parse_count
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.isolation import InconsistentState, isolate_each
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.policy import Policy


def advance_jobs(
    view: View,
    policy: Policy,
    here: JobsByNode,  # noqa: ARG001
    now: datetime,
) -> Answers:
    """Return what each open recovery of a job does next."""
    state = view.state

    def answer_job(rec: JobRecovery) -> RecoveryAnswer:
        able_since = find_able_since(rec.id, view, now)
        facts = replace(job_facts(rec, view, policy), able_since=able_since)
        answer = advance.advance(rec, facts, policy, now)
        return RecoveryAnswer(rec.id, answer, rec.attempt)

    jobs = [state.jobs[i] for j, i in state.open_jobs.items() if not view.is_quarantined(j)]
    return isolate_each("advance", jobs, lambda rec: rec.attempt.job, answer_job)


def plan_jobs(view: View, policy: Policy, here: JobsByNode, now: datetime) -> Plan:
    """Decide on the jobs that a node under treatment has hit, on the runs that went wrong, on
    exclusions that have outlived their cause, and on runs that were preempted."""
    launches = find_launches(view)
    hit, of_hit = job_decisions(view, policy, add_launches(here, launches), now)
    explained = _list_decided_jobs(hit, of_hit)
    runs, of_runs = run_decisions(view, policy, explained, now)
    held = list(hold_launches(view, explained, now))
    taken = explained | _list_decided_jobs([*runs, *held], of_runs)
    lifts, of_lifts = lift_decisions(view, policy, taken, now)
    preempted, of_preempted = preemption_decisions(
        view, policy, taken | _list_decided_jobs(lifts, of_lifts), now
    )
    decisions = [*hit, *runs, *held, *lifts, *preempted]
    return Plan(
        tuple(d for d in decisions if not isinstance(d, GateBlocked)),
        tuple(d for d in decisions if isinstance(d, GateBlocked)),
        (*of_hit, *of_runs, *of_lifts, *of_preempted),
    )


def _list_decided_jobs(
    decisions: Sequence[JobRecoveryOpened | GateBlocked], flaws: Sequence[InconsistentState]
) -> set[JobId]:
    """Return the jobs that are decided on, or whose decision failed."""
    return {job_of(d) for d in decisions} | {JobId(parse_count(flaw.target)) for flaw in flaws}


JOBS = RecoveryKind(advance=advance_jobs, plan=plan_jobs)

"""The recoveries of jobs as the engine drives them: see `hpctl.engine.kinds`."""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from hpctl.engine.journal.events import GateBlocked, JobRecoveryOpened
from hpctl.engine.kinds import Answers, JobsByNode, RecoveryAnswer, RecoveryKind, RecoveryPlan
from hpctl.engine.pauses import find_unpaused_start_time
from hpctl.engine.view import PlanningView
from hpctl.jobs import advance
from hpctl.jobs.exclusions import plan_node_exclusion_lifts
from hpctl.jobs.facts import collect_job_facts
from hpctl.jobs.launches import (
    add_failed_launches,
    find_failed_launches,
    report_jobs_held_at_launch,
)
from hpctl.jobs.plan import find_decision_job, plan_failed_runs
from hpctl.jobs.plan_hits import plan_affected_jobs
from hpctl.jobs.preemptions import plan_preempted_jobs
from hpctl.toolkit.bounds import parse_count
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.isolation import InconsistentState, isolate_each_call
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.policy import RecoveryPolicy


def advance_job_recoveries(
    view: PlanningView,
    policy: RecoveryPolicy,
    here: JobsByNode,  # noqa: ARG001
    now: datetime,
) -> Answers:
    """Return what each open recovery of a job does next."""
    state = view.state

    def advance_recovery(rec: JobRecovery) -> RecoveryAnswer:
        able_since = find_unpaused_start_time(rec.id, view, now)
        facts = replace(collect_job_facts(rec, view, policy), able_since=able_since)
        answer = advance.advance_job_recovery(rec, facts, policy, now)
        return RecoveryAnswer(rec.id, answer, rec.attempt)

    jobs = [state.jobs[i] for j, i in state.open_jobs.items() if not view.is_quarantined(j)]
    return isolate_each_call("advance", jobs, lambda rec: rec.attempt.job, advance_recovery)


def plan_job_recoveries(
    view: PlanningView, policy: RecoveryPolicy, here: JobsByNode, now: datetime
) -> RecoveryPlan:
    """Decide on the jobs that a node under treatment has hit, on the runs that went wrong, on
    exclusions that have outlived their cause, and on runs that were preempted."""
    launches = find_failed_launches(view)
    hit, of_hit = plan_affected_jobs(view, policy, add_failed_launches(here, launches), now)
    explained = _list_jobs_with_decision(hit, of_hit)
    runs, of_runs = plan_failed_runs(view, policy, explained, now)
    held = list(report_jobs_held_at_launch(view, explained, now))
    taken = explained | _list_jobs_with_decision([*runs, *held], of_runs)
    lifts, of_lifts = plan_node_exclusion_lifts(view, policy, taken, now)
    preempted, of_preempted = plan_preempted_jobs(
        view, policy, taken | _list_jobs_with_decision(lifts, of_lifts), now
    )
    decisions = [*hit, *runs, *held, *lifts, *preempted]
    return RecoveryPlan(
        tuple(d for d in decisions if not isinstance(d, GateBlocked)),
        tuple(d for d in decisions if isinstance(d, GateBlocked)),
        (*of_hit, *of_runs, *of_lifts, *of_preempted),
    )


def _list_jobs_with_decision(
    decisions: Sequence[JobRecoveryOpened | GateBlocked], flaws: Sequence[InconsistentState]
) -> set[JobId]:
    """Return the jobs that are decided on, or whose decision failed."""
    return {find_decision_job(d) for d in decisions} | {
        JobId(parse_count(flaw.target)) for flaw in flaws
    }


JOBS = RecoveryKind(advance=advance_job_recoveries, plan=plan_job_recoveries)

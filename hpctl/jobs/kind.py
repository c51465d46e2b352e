"""The recoveries of jobs as the engine drives them: see `hpctl.engine.kinds`."""

from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from hpctl.engine.journal.events import GateBlocked, JobRecoveryOpened
from hpctl.engine.kinds import (
    Answers,
    JobsByNode,
    RecoveryAdvanceResult,
    RecoveryKind,
    RecoveryPlan,
)
from hpctl.engine.pauses import find_recovery_operational_start_time
from hpctl.engine.view import PlanningView
from hpctl.jobs import advance
from hpctl.jobs.exclusions import plan_node_exclusion_removals
from hpctl.jobs.facts import collect_job_recovery_facts
from hpctl.jobs.launches import (
    add_jobs_with_failed_launch,
    find_jobs_with_failed_launch,
    report_jobs_held_after_launch_failure,
)
from hpctl.jobs.plan import get_job_of_recovery_decision, plan_failed_run_recoveries
from hpctl.jobs.plan_hits import plan_fault_affected_job_recoveries
from hpctl.jobs.preemptions import plan_preempted_job_recoveries
from hpctl.toolkit.bounds import parse_count
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.isolation import ItemProcessingFailure, process_items_capturing_failures
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

    def advance_recovery(rec: JobRecovery) -> RecoveryAdvanceResult:
        able_since = find_recovery_operational_start_time(rec.id, view, now)
        facts = replace(collect_job_recovery_facts(rec, view, policy), able_since=able_since)
        answer = advance.advance_job_recovery(rec, facts, policy, now)
        return RecoveryAdvanceResult(rec.id, answer, rec.attempt)

    jobs = [state.jobs[i] for j, i in state.open_jobs.items() if not view.is_quarantined(j)]
    return process_items_capturing_failures(
        "advance", jobs, lambda rec: rec.attempt.job, advance_recovery
    )


def plan_job_recoveries(
    view: PlanningView, policy: RecoveryPolicy, here: JobsByNode, now: datetime
) -> RecoveryPlan:
    """Decide on the jobs that a node under treatment has hit, on the runs that went wrong, on
    exclusions that have outlived their cause, and on runs that were preempted."""
    launches = find_jobs_with_failed_launch(view)
    hit, of_hit = plan_fault_affected_job_recoveries(
        view, policy, add_jobs_with_failed_launch(here, launches), now
    )
    explained = _list_jobs_with_recovery_decision(hit, of_hit)
    runs, of_runs = plan_failed_run_recoveries(view, policy, explained, now)
    held = list(report_jobs_held_after_launch_failure(view, explained, now))
    taken = explained | _list_jobs_with_recovery_decision([*runs, *held], of_runs)
    lifts, of_lifts = plan_node_exclusion_removals(view, policy, taken, now)
    preempted, of_preempted = plan_preempted_job_recoveries(
        view, policy, taken | _list_jobs_with_recovery_decision(lifts, of_lifts), now
    )
    decisions = [*hit, *runs, *held, *lifts, *preempted]
    return RecoveryPlan(
        tuple(d for d in decisions if not isinstance(d, GateBlocked)),
        tuple(d for d in decisions if isinstance(d, GateBlocked)),
        (*of_hit, *of_runs, *of_lifts, *of_preempted),
    )


def _list_jobs_with_recovery_decision(
    decisions: Sequence[JobRecoveryOpened | GateBlocked], flaws: Sequence[ItemProcessingFailure]
) -> set[JobId]:
    """Return the jobs that are decided on, or whose decision failed."""
    return {get_job_of_recovery_decision(d) for d in decisions} | {
        JobId(parse_count(flaw.target)) for flaw in flaws
    }


JOBS = RecoveryKind(advance=advance_job_recoveries, plan=plan_job_recoveries)

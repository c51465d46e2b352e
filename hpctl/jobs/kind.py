"""The recoveries of jobs as the engine drives them: see `hpctl.engine.kinds`."""

from datetime import datetime

from hpctl.engine.journal.events import HoldNoted
from hpctl.engine.kinds import Answer, Answers, JobsByNode, Kind, Plan
from hpctl.engine.view import View
from hpctl.jobs import advance
from hpctl.jobs.facts import job_facts
from hpctl.jobs.launches import add_launches, find_launches, hold_launches
from hpctl.jobs.plan import job_of, run_decisions
from hpctl.jobs.plan_hits import job_decisions
from hpctl.toolkit.bounds import natural
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.isolation import each
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.policy import Policy


def advance_jobs(
    view: View,
    policy: Policy,
    here: JobsByNode,  # noqa: ARG001
    now: datetime,
) -> Answers:
    """What each open recovery of a job does next."""
    state = view.state

    def job(rec: JobRecovery) -> Answer:
        answer = advance.advance(rec, job_facts(rec, view, policy), policy, now)
        return Answer(rec.id, answer, rec.attempt)

    jobs = [state.jobs[i] for j, i in state.open_jobs.items() if not view.aside(j)]
    return each("advance", jobs, lambda rec: rec.attempt.job, job)


def plan_jobs(view: View, policy: Policy, here: JobsByNode, now: datetime) -> Plan:
    """Decide on the jobs that a node under treatment has hit, and on the runs that went wrong."""
    launches = find_launches(view)
    hit, of_hit = job_decisions(view, policy, add_launches(here, launches), now)
    explained = {job_of(d) for d in hit} | {JobId(natural(flaw.target)) for flaw in of_hit}
    runs, of_runs = run_decisions(view, policy, explained, now)
    held = hold_launches(view, explained, now)
    decisions = [*hit, *runs, *held]
    return Plan(
        tuple(d for d in decisions if not isinstance(d, HoldNoted)),
        tuple(d for d in decisions if isinstance(d, HoldNoted)),
        (*of_hit, *of_runs),
    )


JOBS = Kind(advance=advance_jobs, plan=plan_jobs)

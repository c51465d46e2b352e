"""What `hpctl explain` and the page say of a job that runs or has ended."""

from typing import Final

from msgspec.structs import replace

from hpctl.engine.explain_view import FailureToExplain, JobToExplain
from hpctl.engine.journal.events import GateBlocked
from hpctl.engine.run_policies import RunPolicyMerger
from hpctl.jobs.decide import RestartResources, decide_job_failure_action
from hpctl.jobs.plan import list_past_job_failures
from hpctl.jobs.restart import choose_restart_method
from hpctl.jobs.run_cases import (
    explain_no_restart_after_time_limit,
    find_failure_treated_by_recovery,
)
from hpctl.jobs.run_failure import add_node_findings_to_failure
from hpctl.jobs.verdict import build_run_failure_verdict
from hpctl.vocabulary.failure import FailureVerdict
from hpctl.vocabulary.hang import ENDED_GATE
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.policy import OperatingMode
from hpctl.vocabulary.run_policy import RunAction, RunPolicy
from hpctl.vocabulary.slurm_facts import TIMED_OUT
from hpctl.vocabulary.trouble import Trouble, TroubleKind


def describe_policy_action_on_crash(asked: JobToExplain) -> str:
    """Return what the policy of a job answers to a crash now."""
    now, job = asked.world.now, asked.job
    if asked.world.policy.mode is OperatingMode.OBSERVE:
        return "nothing: hpctl is in mode observe"
    trouble = Trouble(TroubleKind.CRASH, now, "a rank crashes", "now")
    supervised = choose_restart_method(asked.registered).has_supervisor
    means = RestartResources(step=supervised, requeue=job.recoverable, nodes=len(job.nodes))
    answer = decide_job_failure_action(asked.policy, (), trouble, means, now)
    return f"{answer.action} ({answer.why})"


def explain_job_end_at_time_limit(asked: JobToExplain) -> str:
    """Return why a job that reached its time limit stays ended; "" for another end."""
    if asked.job.state != TIMED_OUT:
        return ""
    why = explain_no_restart_after_time_limit(asked.job, asked.registered, asked.policy)
    return f"it reached its time limit: {why}" if why else "it reached its time limit"


RULE_PREFIX: Final = "run-"
"""How the rules begin by which a run's own trouble is treated or held: `run-crash`."""
_REFUSALS: Final = frozenset({ENDED_GATE, "asked_not_to", "not_recoverable"})
"""Gates that no later cycle opens."""


def diagnose_failed_job_run(asked: FailureToExplain) -> FailureVerdict | None:
    """Return the verdict on a run that failed; None where nothing did."""
    trouble = _find_job_run_failure(asked)
    if trouble is None:
        return None
    world, ran_on = asked.world, asked.nodes
    trouble = add_node_findings_to_failure(trouble, ran_on, world.health, asked.job)
    past = [
        one
        for one in list_past_job_failures(world.state, asked.job, now=trouble)
        if one.trouble.at < trouble.at
    ]
    nodes = {name: world.assessments[name] for name in ran_on if name in world.assessments}
    answer = _find_action_decided_for_run(asked)
    return build_run_failure_verdict(
        trouble, past, nodes, _find_job_run_policy(asked), world.now, answer
    )


def _find_job_run_failure(asked: FailureToExplain) -> Trouble | None:
    """Return what went wrong with a run; for a node's fault, with the rule that found it."""
    rec, hold = asked.recovery, asked.hold
    if rec is not None:
        return None if rec.note or rec.lift else _find_failure_behind_recovery(asked, rec)
    if asked.trouble is not None or hold is None:
        return asked.trouble
    return _find_unreported_failure_behind_hold(hold)


def _find_failure_behind_recovery(asked: FailureToExplain, rec: JobRecovery) -> Trouble:
    trouble = find_failure_treated_by_recovery(rec)
    cause = asked.world.state.nodes.get(rec.cause)
    if cause is None:
        return trouble
    return replace(trouble, why=f"{rec.why} ({cause.rule})", signature=f"node {cause.rule}")


def _find_unreported_failure_behind_hold(hold: GateBlocked) -> Trouble | None:
    """Return the trouble of a run that neither its script nor a supervisor reported."""
    rule = str(hold.rule or "")
    kinds = {f"{RULE_PREFIX}{kind}": kind for kind in TroubleKind}
    return Trouble(kinds[rule], hold.at, hold.why) if rule in kinds else None


def _find_action_decided_for_run(asked: FailureToExplain) -> RunAction | None:
    """Return what was decided about a run; None where that is still open."""
    rec, hold = asked.recovery, asked.hold
    if rec is not None:
        return RunAction.REQUEUE if rec.trouble is None else rec.action
    return RunAction.END if hold is not None and hold.gate in _REFUSALS else None


def _find_job_run_policy(asked: FailureToExplain) -> RunPolicy:
    if asked.policy is not None:
        return asked.policy
    slurm = asked.world.slurm
    job = slurm.jobs.get(asked.job) if slurm is not None else None
    ruled = RunPolicyMerger().find_job_policy(job) if job is not None else None
    return ruled.policy if ruled is not None else RunPolicy()

"""What `hpctl explain` and the page say of a job that runs or has ended."""

from hpctl.engine.explain_view import JobQuestion
from hpctl.jobs.decide import RestartMeans, decide
from hpctl.jobs.restart import restart_of
from hpctl.jobs.run_cases import why_ends_at_limit
from hpctl.vocabulary.policy import Mode
from hpctl.vocabulary.slurm_facts import TIMED_OUT
from hpctl.vocabulary.trouble import Trouble, TroubleKind


def describe_crash(asked: JobQuestion) -> str:
    """Return what the policy of a job answers to a crash now."""
    now, job = asked.world.now, asked.job
    if asked.world.policy.mode is Mode.OBSERVE:
        return "nothing: hpctl is in mode observe"
    trouble = Trouble(TroubleKind.CRASH, now, "a rank crashes", "now")
    supervised = restart_of(asked.registered).has_supervisor
    means = RestartMeans(step=supervised, requeue=job.recoverable, nodes=len(job.nodes))
    answer = decide(asked.policy, (), trouble, means, now)
    return f"{answer.action} ({answer.why})"


def describe_end(asked: JobQuestion) -> str:
    """Return why a job that reached its time limit stays ended; "" for another end."""
    if asked.job.state != TIMED_OUT:
        return ""
    why = why_ends_at_limit(asked.job, asked.registered, asked.policy)
    return f"it reached its time limit: {why}" if why else "it reached its time limit"

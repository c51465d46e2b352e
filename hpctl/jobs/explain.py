"""What `hpctl explain` and the page say of a job that runs."""

from hpctl.engine.explain_view import JobQuestion
from hpctl.jobs.decide import Means, decide
from hpctl.jobs.restart import restart_of
from hpctl.vocabulary.policy import Mode
from hpctl.vocabulary.trouble import Kind, Trouble


def describe_crash(asked: JobQuestion) -> str:
    """Return what the policy of a job answers to a crash now."""
    now, job = asked.world.now, asked.job
    if asked.world.policy.mode is Mode.OBSERVE:
        return "nothing: hpctl is in mode observe"
    trouble = Trouble(Kind.CRASH, now, "a rank crashes", "now")
    supervised = restart_of(asked.registered).has_supervisor
    means = Means(step=supervised, requeue=job.recoverable, nodes=len(job.nodes))
    answer = decide(asked.policy, (), trouble, means, now)
    return f"{answer.action} ({answer.why})"

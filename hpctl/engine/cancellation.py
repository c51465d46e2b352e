"""Whether a job was canceled, when, and by whom, for `hpctl explain`. Pure."""

from msgspec.structs import replace

from hpctl.engine.explain_view import ExplainView
from hpctl.engine.named_jobs import find_jobs_by_id
from hpctl.engine.timeline import format_sentence_with_reason
from hpctl.engine.world import World
from hpctl.vocabulary.slurm_facts import SlurmJob


def find_canceled_target_job(w: World, target: str) -> SlurmJob | None:
    """Return the job that a target names where it ended as CANCELLED; None for any other."""
    named = find_jobs_by_id(w, target)
    job = w.slurm.jobs.get(named[0]) if w.slurm is not None and len(named) == 1 else None
    return job if job is not None and job.state == "CANCELLED" else None


def add_cancellation_details(view: ExplainView, job: SlurmJob, by: str) -> ExplainView:
    """Return the view of a canceled job with when it was canceled, and by which account.

    `by` is "" where nothing tells it.
    """
    end = f" at {job.end:%Y-%m-%d %H:%M:%S} UTC" if job.end is not None else ""
    whose = f"by {by}" if by else "Slurm tells by whom only where slurmdbd keeps its accounting"
    said = format_sentence_with_reason(
        f"Job {job.shown} was canceled{end}{' ' if by else '; '}{whose}"
    )
    return replace(view, headline=f"{view.headline} {said}")

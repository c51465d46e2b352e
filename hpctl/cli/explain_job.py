"""`hpctl explain JOB` for a job that nothing is done to: is it protected, and what would happen."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hpctl.cli.explain import ExplainView
from hpctl.cli.gather import World
from hpctl.core.bounds import at_stamp, natural
from hpctl.core.model import JobId, SlurmJob
from hpctl.core.policy import Mode
from hpctl.core.registration import Registration, registration
from hpctl.core.run_policy import Means, RunPolicy, decide
from hpctl.core.tell import report_line
from hpctl.core.tell_next import Awaited
from hpctl.core.trouble import Kind, Trouble
from hpctl.jobs import job_comment
from hpctl.jobs.checkpoints import search


def job_view(w: World, policies: Mapping[JobId, RunPolicy], target: str) -> ExplainView | None:
    """What is known of a job that Slurm knows; None for any other target."""
    number = JobId(natural(target))
    job = w.slurm.jobs.get(number) if w.slurm is not None else None
    if job is None:
        return None
    registered = registration(job.comment)
    said = [f"Job {target} ({job.name}, {job.user}) is {job.state}"]
    if registered is None:
        said.append(_unprotected(job))
        then = Awaited("nothing of you; to have it treated too, submit it with `hpctl sbatch`")
    else:
        said += [_protected(registered), checkpoint_text(job_comment.decode(job.comment), job)]
        said += [f"one thing is wrong: {registered.flaw}"] if registered.flaw else []
        then = Awaited(
            f"nothing of you. Were a rank to crash now: {_would(w, job, registered, policies)}"
        )
    told = w.state.reports.get(number, ())
    return ExplainView(
        as_of=w.now,
        target=target,
        kind="job",
        headline="; ".join(filter(None, said)) + ".",
        story=tuple(map(report_line, told)),
        next=then,
    )


def _unprotected(job: SlurmJob) -> str:
    if not job.recoverable:
        why = "Requeue=0" if job.batch else "not a batch job"
        return f"it is not protected: Slurm cannot start it again ({why})"
    return (
        "it is protected from faults of its nodes alone: hpctl requeues it away from them; it did"
        " not register, so its own crashes and hangs are its owner's"
    )


def _protected(registered: Registration) -> str:
    how = ["requeued away from faulty nodes", "restarted by its policy when it crashes"]
    if registered.supervised:
        how.append("restarted inside its allocation by its own supervisor")
    if registered.spares:
        how.append(f"{registered.spares} spare node(s)")
    return f"it is protected: {', '.join(how)}"


def checkpoint_text(registered: job_comment.JobRegistration | None, job: SlurmJob) -> str:
    """Which of its checkpoints is the newest whole one, and since when, as far as can be seen."""
    place = registered.ckpt if registered is not None else ""
    if not place:
        return "it named no directory of checkpoints: each run begins anew"
    filled = place.replace("{job_id}", str(job.id))
    if "{" in filled:
        return f"its checkpoints are in {place}, which only the job can fill in"
    if filled.startswith("s3://"):
        return f"its checkpoints are in {filled}: `hpctl checkpoint last {filled}` looks there"
    if os.geteuid() == 0 and job.uid != 0:  # what users own is not root's to open
        return (
            f"its checkpoints are in {filled}: `hpctl checkpoint last {filled}` looks, as its owner"
        )
    try:
        found = search.last_complete(Path(filled))
    except OSError as error:
        return f"its checkpoints in {filled} cannot be read here: {error.strerror or error}"
    newer = [p for p in found.passed_over if p.claimed]
    torn = f"; newer and not whole: {newer[0].path.name} ({newer[0].why})" if newer else ""
    if found.unknown:
        return f"there is no whole checkpoint yet, but {found.unknown}"
    if found.found is None:
        return f"there is no whole checkpoint in {filled} yet ({found.verdict}){torn}"
    path = found.found.path
    saved = at_stamp(os.stat(str(path)).st_mtime)
    when = f" of {saved:%Y-%m-%d %H:%M:%S} UTC" if saved else ""
    return f"its newest whole checkpoint is {path}{when}{torn}"


def _would(
    w: World, job: SlurmJob, registered: Registration, policies: Mapping[JobId, RunPolicy]
) -> str:
    """What its policy answers to a crash now."""
    if w.policy.mode is Mode.OBSERVE:
        return "nothing, for hpctl only observes"
    trouble = Trouble(Kind.CRASH, w.now, "a rank crashes", "now")
    means = Means(
        process=False, step=registered.supervised, requeue=job.recoverable, nodes=len(job.nodes)
    )
    answer = decide(policies.get(job.id, RunPolicy()), (), trouble, means, w.now)
    return f"{answer.action} ({answer.why})"

"""`hpctl resume`: have a job go on from an earlier checkpoint.

What the job has saved after the step is marked as poisoned (`hpctl.checkpoints.marks`), and the job
is requeued or released. Nothing is deleted, and the daemon is not asked: the owner's own rights in
the checkpoint directory and in Slurm decide. Root looks and writes with the owner's rights.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine import config_loading
from hpctl.engine.completion import complete_job
from hpctl.engine.config import Config
from hpctl.engine.named_jobs import is_job_matching_id
from hpctl.engine.request_client import find_invoking_user
from hpctl.engine.restart_time import CLOCK_MARGIN_S
from hpctl.nodes.orders_command import lift_all_pauses
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import ItemTextLines, JsonOnly, Layout
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.job_ids import parse_job_id
from hpctl.toolkit.output import ExitCode
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from hpctl.vocabulary.registration import JobRegistration, parse_registration_comment

if TYPE_CHECKING:
    from hpctl.checkpoints.marks import CheckpointMark
    from hpctl.checkpoints.search import CompleteCheckpoint
    from hpctl.slurm.cli import CliScheduler
    from hpctl.vocabulary.slurm_facts import SlurmJob

COMPLETING_S = 60.0
"""How long a job that ends is waited for."""
LOOK_S = 0.5
MOST_NAMED = 8


class ResumeView(Struct, frozen=True):
    """What `hpctl resume JOB` found and did. `later`: the checkpoints that are passed over.
    `action`: requeue, release or none. `mark`: the file, "" for a dry run."""

    job: str
    user: str
    from_step: int
    step: int
    checkpoint: str
    later: tuple[str, ...]
    skip: str
    by: str
    at: datetime
    why: str
    action: str
    mark: str = ""
    done: str = ""
    ok: bool = True

    layout: ClassVar[Layout] = (ItemTextLines("lines", "{}"),)
    json_only: ClassVar[JsonOnly] = (
        "job", "user", "from_step", "step", "checkpoint", "later", "skip", "by", "at", "why",
        "action", "mark", "done", "ok",
    )  # fmt: skip

    @property
    def lines(self) -> list[str]:
        """Return the same for a person."""
        before = f", the newest complete checkpoint at or before step {self.from_step}"
        found = [
            f"job {self.job}: its next run resumes from step {self.step}"
            f"{before if self.step != self.from_step else ''} ({self.checkpoint})",
            f"{_describe_skipped_checkpoints(self.later)}; nothing is deleted",
        ]
        if self.skip:
            found.append(
                f"its environment has HPCTL_SKIP={self.skip}: a program that does not read it takes"
                " these batches again"
            )
        return [*found, f"job {self.job}: {self.done}"] if self.done else found


def _describe_skipped_checkpoints(later: tuple[str, ...]) -> str:
    if not later:
        return "what its run saves before it ends is passed over"
    more = f" and {len(later) - MOST_NAMED} more" if later[MOST_NAMED:] else ""
    listed = ", ".join(os.path.basename(path) for path in later[:MOST_NAMED])
    return f"passed over, with what its run saves before it ends: {listed}{more}"


@click.command(short_help="Have a job go on from an earlier checkpoint.")
@click.argument("job", metavar="JOB", required=False, shell_complete=complete_job)
@click.option(
    "--from-step",
    type=click.IntRange(min=0),
    metavar="N",
    help="The next run resumes from the newest complete checkpoint at or before step N.",
)
@click.option("--why", default="", metavar="TEXT", help="The reason, for those who read it later.")
@click.option(
    "--skip-batches",
    type=click.IntRange(min=1),
    metavar="K",
    help="Have the program leave out K batches from N on: HPCTL_SKIP=N:N+K in its environment.",
)
@click.option("--dry-run", is_flag=True, help="Print what would happen; do nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--no-wait", is_flag=True, hidden=True)
@output.json_option
@output.config_option
def resume(
    job: str | None,
    from_step: int | None,
    why: str,
    skip_batches: int | None,
    dry_run: bool,
    yes: bool,
    no_wait: bool,
    config: str,
    as_json: bool,
) -> None:
    """Have a job go on from an earlier checkpoint.

    For the owner of JOB, or root. The next run resumes from the newest complete checkpoint at or
    before step N. What the job has saved after step N is marked as poisoned, and no run resumes
    from it (`hpctl checkpoint mark DIR STEP --clean` takes that back). A job that runs or has ended
    is requeued; a job that is held is released.
    """
    if job is None:
        if from_step is not None:
            raise click.UsageError(
                "the command names no job: write the JOB to resume from an older checkpoint"
            )
        output.echo("hpctl: to lift a pause, the command is now `hpctl unpause`", err=True)
        lift_all_pauses(config, no_wait=no_wait, as_json=as_json)
        return
    if from_step is None:
        raise click.UsageError(
            "the command names no step: write --from-step N to resume from step N. (To end a "
            "pause: hpctl unpause.)"
        )
    scheduler, found = _read_single_job(config, job)
    registered = _read_resumable_job_registration(found, job)
    directory = _expand_checkpoint_directory(found, registered)
    skip = "" if skip_batches is None else f"{from_step}:{from_step + skip_batches}"
    with act_as_user(found.uid):
        checkpoint, later = _find_resume_checkpoint(directory, registered, from_step)
    view = ResumeView(
        job=found.shown,
        user=found.user,
        from_step=from_step,
        step=checkpoint.step or 0,
        checkpoint=str(checkpoint.path),
        later=later,
        skip=skip,
        by=find_invoking_user(),
        at=output.get_current_utc_time(),
        why=why,
        action=_choose_requeue_or_release_action(found),
    )
    if dry_run:
        output.show_view("resume", view, as_json)
        if not as_json:
            output.echo(output.DRY_RUN)
        return
    if view.action == "requeue" and not yes:
        for line in view.lines:
            output.echo(line, err=True)
        state = found.state.lower()
        output.confirm(f"requeue job {found.shown}, which is {state}?", abort=True)
    view = _write_resume_mark_and_restart_job(view, scheduler, found, directory)
    output.show_view("resume", view, as_json)
    output.exit_with_code(ExitCode.FINE if view.ok else ExitCode.PROBLEM)


def _write_resume_mark_and_restart_job(
    view: ResumeView, scheduler: CliScheduler, job: SlurmJob, directory: Path
) -> ResumeView:
    """Write the mark, then requeue or release the job."""
    from hpctl.checkpoints.mark_command import write_checkpoint_mark

    with act_as_user(job.uid):
        path = write_checkpoint_mark(directory, _make_resume_mark(view))
    outcome, done = _restart_job(view.action, scheduler, job)
    ok = outcome.kind is OutcomeKind.ACCEPTED
    if not ok:
        verb = "requeue" if view.action == "requeue" else "release"
        done = (
            f"the {verb} was refused: {outcome.detail or outcome.code}. Its checkpoints are marked:"
            f" `scontrol {verb} {job.shown}` starts it from there"
        )
    return replace(view, mark=str(path), done=done, ok=ok)


def _make_resume_mark(view: ResumeView) -> CheckpointMark:
    from hpctl.checkpoints.marks import CheckpointMark

    return CheckpointMark(
        poisoned=True,
        first=view.from_step + 1,
        by=view.by,
        at=view.at,
        why=view.why,
        until_start=True,
        skip=view.skip,
    )


def _read_single_job(config: str, text: str) -> tuple[CliScheduler, SlurmJob]:
    """Return the one job that an id names. Raises HpctlError, UsageError, Unavailable."""
    from hpctl.engine.adapters import make_slurm_command_client

    asked = parse_job_id(text)
    if asked is None:
        raise click.UsageError(
            f"{text!r} is not a job id: write a number such as 12, or 12_3 for one task of an array"
        )
    # On a login node there is no configuration; the commands are on PATH there.
    loaded = config_loading.load_config(config) if Path(config).exists() else Config()
    scheduler = make_slurm_command_client(loaded)
    jobs = [job for job in scheduler.view().jobs.values() if is_job_matching_id(asked, job)]
    if not jobs:
        raise HpctlError(
            f"Slurm does not know job {text}: it does not exist, or ended too long ago",
            "Mark the bad checkpoint (`hpctl checkpoint mark DIR STEP`) and submit the job again.",
        )
    if jobs[1:] or (jobs[0].array_job and not jobs[0].array_task.isdigit()):
        raise HpctlError(
            f"job {text} is an array of several tasks, and hpctl resumes one task at a time",
            f"Name one task, such as {asked.number}_0.",
        )
    return scheduler, jobs[0]


def _read_resumable_job_registration(job: SlurmJob, text: str) -> JobRegistration:
    """Return how the job is registered. Raises HpctlError for a job that cannot go back, or may
    not."""
    if os.geteuid() not in (0, job.uid):
        raise HpctlError(
            f"job {text} belongs to {job.user or f'user {job.uid}'}: only its owner can resume it",
            "Ask its owner, or run the command as root.",
        )
    registered = parse_registration_comment(job.comment)
    if registered is None:
        raise HpctlError(
            f"cannot choose where job {text} resumes: it was not submitted with hpctl sbatch",
            "Submit the job again with `hpctl sbatch --checkpoint-dir DIR`.",
        )
    if not registered.ckpt:
        raise HpctlError(
            f"job {text} was submitted without --checkpoint-dir: each run starts at step 0",
            "Submit the job again with `hpctl sbatch --checkpoint-dir DIR`.",
        )
    if not (job.requeue and job.batch) and _choose_requeue_or_release_action(job) == "requeue":
        raise HpctlError(
            f"Slurm cannot run job {text} again: it was submitted with --no-requeue",
            "Mark the bad checkpoint (`hpctl checkpoint mark DIR STEP`) and submit the job again.",
        )
    return registered


def _choose_requeue_or_release_action(job: SlurmJob) -> str:
    from hpctl.slurm.records import SlurmJobRecord
    from hpctl.slurm.rules import is_job_held

    if job.state != "PENDING":
        return "requeue"
    by_slurm = job.is_held_after_requeue or job.is_held_at_launch or job.has_launch_failed
    return "release" if by_slurm or is_job_held(SlurmJobRecord(job)) else "none"


def _expand_checkpoint_directory(job: SlurmJob, registered: JobRegistration) -> Path:
    values = {"{job_id}": str(job.array_job or job.id), "{array_task_id}": job.array_task or "0"}
    directory = registered.ckpt
    for name, value in values.items():
        directory = directory.replace(name, value)
    return Path(directory)


def _find_resume_checkpoint(
    directory: Path, registered: JobRegistration, step: int
) -> tuple[CompleteCheckpoint, tuple[str, ...]]:
    """Return the checkpoint to resume from, and those after it. Raises HpctlError."""
    from hpctl.checkpoints import search
    from hpctl.checkpoints.mark_command import describe_available_steps
    from hpctl.checkpoints.patterns import parse_checkpoint_file_patterns
    from hpctl.checkpoints.remote import open_local_or_s3_checkpoint_path

    declared = parse_checkpoint_file_patterns(registered.files)
    named = [str(directory), *(t for t in registered.tiers if not t.startswith("local:"))]
    tiers, unseen = search.parse_checkpoint_storage_tiers(named, open_local_or_s3_checkpoint_path)
    found = search.find_newest_complete_checkpoint_in_tiers(tiers, declared=declared, most=step)
    for away in (*unseen, *found.unseen):
        output.echo(f"hpctl: cannot read {away.place}: {away.why}", err=True)
    for flaw in found.marks.flaws:
        output.echo(f"hpctl: {flaw}", err=True)
    try:
        rows = search.list_checkpoints(directory, declared=declared)
    except OSError as error:
        raise ServiceUnavailable(
            f"cannot read the checkpoint directory {directory}: {error.strerror or error}",
            "Run the command on a machine that mounts the checkpoint directory.",
        ) from error
    if found.found is None or found.found.step is None:
        raise HpctlError(
            f"there is no complete checkpoint at or before step {step} in {directory}",
            describe_available_steps(rows),
        )
    later = [
        str(row.path)
        for row in rows
        if isinstance(row, search.CompleteCheckpoint) and row.step is not None and row.step > step
    ]
    return found.found, tuple(later)


def _restart_job(action: str, scheduler: CliScheduler, job: SlurmJob) -> tuple[Outcome, str]:
    """Requeue or release a job, and return what came of it."""
    if action == "none":
        return Outcome.accepted(), "it waits in the queue, and resumes from there when it starts"
    if action == "release":
        released = scheduler.order("scontrol", "release", job.shown)
        if released.kind is OutcomeKind.ACCEPTED:
            _wait_for_next_second()
            scheduler.start_pending_job(job.id, ())  # without the delay of a requeue
        return released, "released; it resumes from there when it starts"
    until = time.monotonic() + COMPLETING_S
    outcome = scheduler.requeue(job.attempt)
    while outcome.code == "completing" and time.monotonic() < until:
        time.sleep(LOOK_S)
        outcome = scheduler.requeue(job.attempt)
    if outcome.kind is not OutcomeKind.ACCEPTED:
        return outcome, ""
    # A requeued job waits for two minutes unless it is ordered to start once its last run is over.
    output.echo(f"hpctl: job {job.shown} is requeued; waiting until its run has ended", err=True)
    while _is_job_completing(scheduler, job) and time.monotonic() < until:
        time.sleep(LOOK_S)
    _wait_for_next_second()
    started = scheduler.start_pending_job(job.id, ())
    while started.code in ("completing", "not_pending") and time.monotonic() < until:
        if _has_job_started_again(scheduler, job):
            break
        time.sleep(LOOK_S)
        started = scheduler.start_pending_job(job.id, ())
    return outcome, "requeued; it starts when Slurm has nodes for it"


def _wait_for_next_second() -> None:
    """Let the second pass in which a run may have ended: its nodes refuse a credential of that
    second, and slurmctld then ends the job (hpctl/slurm/rules.py).
    """
    time.sleep(1.0 - time.time() % 1.0 + CLOCK_MARGIN_S)


def _is_job_completing(scheduler: CliScheduler, job: SlurmJob) -> bool:
    record = scheduler.job(job.id)
    return record is not None and record.job.completing


def _has_job_started_again(scheduler: CliScheduler, job: SlurmJob) -> bool:
    record = scheduler.job(job.id)
    return record is None or (record.job.restarts > job.restarts and record.job.running)


@contextlib.contextmanager
def act_as_user(uid: int | None) -> Iterator[None]:
    """Look and write with a user's rights, where the caller is root: what users own is not root's
    to open. Raises HpctlError for a user that this machine does not know."""
    if os.geteuid() != 0 or uid in (0, None):
        yield
        return
    assert uid is not None
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise HpctlError(
            f"cannot act as the job's owner: this machine has no user with uid {uid}",
            "Run the command as the job's owner, on a machine that has the account.",
        ) from None
    groups = os.getgroups()
    gid = os.getegid()
    os.setgroups(os.getgrouplist(entry.pw_name, entry.pw_gid))
    os.setegid(entry.pw_gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(gid)
        os.setgroups(groups)

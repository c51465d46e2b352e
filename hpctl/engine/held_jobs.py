"""Registered jobs that Slurm holds, and that only a person starts again. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from msgspec import Struct

from hpctl.engine.world import World
from hpctl.vocabulary.registration import parse_registration_comment
from hpctl.vocabulary.slurm_facts import SlurmJob

_ENDED_BY_SIGNAL: Final = ("0", "137", "143")
"""The exit codes of a script that Slurm ended: by SIGKILL and SIGTERM where it traps them."""


class SlurmHeldJob(Struct, frozen=True):
    """A job that Slurm holds. `why`: since when or for what, as the end of a sentence."""

    job: SlurmJob
    why: str

    @property
    def since(self) -> datetime:
        """Return when it was last submitted or requeued."""
        return self.job.submit


def find_slurm_held_jobs(w: World) -> list[SlurmHeldJob]:
    """Return the registered jobs that Slurm holds, by id, but those under a gate of hpctl's or in
    recovery. An operator who runs `scontrol hold` or `scontrol requeuehold` knows of the hold."""
    found = []
    for job in w.slurm.jobs.values() if w.slurm else ():
        why = _find_slurm_hold_cause(job)
        if not why or str(job.id) in w.state.holds or job.id in w.state.open_jobs:
            continue
        if parse_registration_comment(job.comment) is not None:
            found.append(SlurmHeldJob(job, why))
    return sorted(found, key=lambda one: one.job.id)


def _find_slurm_hold_cause(job: SlurmJob) -> str:
    """Return why Slurm holds a job; "" where it does not, or where a person has asked for it."""
    if job.is_held_after_requeue and _has_nonsignal_exit_code(job):
        return "since its last run ended"
    if job.is_held_as_unable_to_start:
        return f"because it could not start it as it is ({job.reason})"
    return ""


def _has_nonsignal_exit_code(job: SlurmJob) -> bool:
    return job.exit_code.partition(":")[0] not in ("", *_ENDED_BY_SIGNAL)


def describe_release_command(job: SlurmJob) -> str:
    """Say what a person runs so that a held job starts, or ends.

    slurmctld 22.05.8 looks again at a job of Reason BadConstraints after a hold and a release; a
    release without the hold may leave it as it is (seen live).
    """
    shown = job.shown
    if job.is_held_as_unable_to_start:
        return (
            f"a person to find in `scontrol show job {shown}` what it asks for and no node has;"
            f" then `scontrol hold {shown}` and `scontrol release {shown}` make Slurm try again, or"
            f" `scancel {shown}`"
        )
    return f"`scontrol release {shown}` to run it again, or `scancel {shown}`"

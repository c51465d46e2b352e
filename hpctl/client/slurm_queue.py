"""Read the states of jobs from Slurm: squeue, and sacct for those that slurmctld has forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable

from . import command
from .errors import ClientError

ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }
)
_FIELDS = (("JobArrayID", 40), ("State", 24), ("exit_code", 12), ("RestartCnt", 12), ("Reason", 40))
"""Fields of `squeue -O` that no user can write into, and the width of each."""
_ANSWER_S = 60.0


@dataclass(frozen=True)
class QueuedJob:
    """One job as Slurm shows it. `exit_code`: None where Slurm says none."""

    id: str
    state: str
    exit_code: int | None
    signal: int
    restarts: int
    reason: str

    @property
    def has_ended(self) -> bool:
        """Return whether this run of the job has ended; it may be started again."""
        return self.state in ENDED


def read_queued_jobs(ids: Iterable[str]) -> dict[str, QueuedJob]:
    """Return the jobs by id; those that Slurm does not know are left out. Raises ClientError.

    It takes one RPC to slurmctld, and one to slurmdbd where slurmctld has forgotten some.
    """
    wanted = set(ids)
    arrays = sorted({each.partition("_")[0] for each in wanted})
    form = ",".join(f"{name}:{width}" for name, width in _FIELDS)
    squeue = [command.find_slurm_command("squeue"), "--states=all", "--noheader", "--array"]
    done = command.run_command_with_timeout(
        [*squeue, f"--Format={form}", "--jobs=" + ",".join(arrays)], _ANSWER_S
    )
    if done.returncode != 0 and "Invalid job id" not in done.stderr:
        raise command.make_command_error(["squeue"], done.returncode, done.stderr)
    jobs = {job.id: job for job in map(_parse_squeue_line, done.stdout.splitlines())}
    found = {each: jobs[each] for each in wanted if each in jobs}
    forgotten = wanted - set(found)
    if forgotten:
        found.update(_read_sacct_jobs(forgotten))
    return found


def parse_exit_status(text: str) -> tuple[int, int]:
    """Return exit code and signal of a status word: a wait status, or `CODE:SIGNAL`."""
    code, colon, signal = text.partition(":")
    if colon:
        return int(code), int(signal)
    status = int(code or 0)
    return status >> 8, status & 0x7F


def _parse_squeue_line(line: str) -> QueuedJob:
    values: list[str] = []
    for _, width in _FIELDS:
        values.append(line[:width].strip())
        line = line[width:]
    name, state, status, restarts, reason = values
    code, signal = parse_exit_status(status)
    exit_code = code if state in ENDED else None
    return QueuedJob(name, state, exit_code, signal, int(restarts or 0), reason)


def _read_sacct_jobs(ids: Iterable[str]) -> dict[str, QueuedJob]:
    """Return ended jobs from slurmdbd; nothing where the cluster has none."""
    found: dict[str, QueuedJob] = {}
    try:
        sacct = [command.find_slurm_command("sacct"), "--allocations", "--noheader", "--parsable2"]
        form = "--format=JobID,State,ExitCode"
        done = command.run_command_with_timeout(
            [*sacct, form, "--jobs=" + ",".join(sorted(ids))], _ANSWER_S
        )
    except ClientError:
        return found
    for line in done.stdout.splitlines():
        name, state, status = line.split("|")
        code, signal = parse_exit_status(status)
        word = state.split(" ")[0]  # CANCELLED by 1000
        found[name] = QueuedJob(name, word, code if word in ENDED else None, signal, 0, "")
    return found

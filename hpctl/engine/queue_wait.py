"""Whether a job waits its turn in Slurm's queue, and behind what. Pure.

A job that was requeued takes its place by Slurm's priorities, not where it was. The waiting tasks
of an array are one record with a lower number than any task that has run, so with equal priorities
all of them start before a requeued one. That may take days, and nothing is wrong meanwhile.
"""

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from hpctl.toolkit.bounds import parse_count
from hpctl.toolkit.job_ids import parse_array_task_ranges
from hpctl.vocabulary.slurm_facts import SlurmJob

_QUEUED: Final = re.compile(
    r"Priority|Resources|Licenses|Reservation|JobArrayTaskLimit|(?:Assoc|QOS)\w*Limit"
)
"""Reasons of a job that other jobs, or a limit on running ones, keep waiting: it starts without
any act on it (`slurm_job_reason_string`)."""
MOST_TASKS: Final = 1_000_000
"""Tasks of one array that are counted; Slurm's MaxArraySize is at most 4,000,001."""


def is_job_queued(job: SlurmJob, now: datetime) -> bool:
    """Return whether Slurm starts a job once it is its turn."""
    if job.state != "PENDING" or job.completing:
        return False
    begun = job.eligible is None or job.eligible <= now
    return begun and _QUEUED.fullmatch(job.reason) is not None


def describe_queue_wait(job: SlurmJob, jobs: Iterable[SlurmJob]) -> str:
    """Say what a job waits for that `is_job_queued`, with Slurm's reason and, of a task, how many
    others of its array wait."""
    text = f"its turn in Slurm's queue, where other jobs are before it (Slurm: {job.reason})"
    others = _count_waiting_array_tasks(job, jobs)
    if others:
        tasks = "1 other task" if others == 1 else f"{others} other tasks"
        text = f"{text}; {tasks} of array {job.array_job} wait, too"
    return text


def _count_waiting_array_tasks(job: SlurmJob, jobs: Iterable[SlurmJob]) -> int:
    """Return how many other tasks of a task's array wait. squeue lists them, the task too, as one
    job."""
    if not job.array_job:
        return 0
    waiting = set[int]()
    for other in jobs:
        if other.array_job != job.array_job or other.state != "PENDING":
            continue
        for tasks in parse_array_task_ranges(other.array_task):
            waiting.update(tasks[:MOST_TASKS])
    return len(waiting - {parse_count(job.array_task)} if job.array_task.isdecimal() else waiting)

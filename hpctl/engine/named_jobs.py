"""Which jobs a user means by an id: `12`, `12_3`, `12+1`, or slurmctld's own number of a task.

An array's id names all of its tasks, as it does to scontrol and scancel. A component of a
heterogeneous job names the whole job. Slurm is asked first; of jobs that slurmctld has forgotten
the journal knows how they were called.
"""

from collections.abc import Iterator

from hpctl.engine.journal.state import EngineState
from hpctl.engine.world import World
from hpctl.toolkit.job_ids import ParsedJobId, parse_array_task_ranges, parse_job_id
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.slurm_facts import SlurmJob


def find_jobs_by_id(w: World, text: str) -> tuple[JobId, ...]:
    """Return slurmctld's numbers of the jobs that an id names; none where it is unknown."""
    asked = parse_job_id(text)
    if asked is None:
        return ()
    jobs = list(w.slurm.jobs.values()) if w.slurm is not None else []
    own = [job.id for job in jobs if _is_requested_array_task(asked, job)]
    if own:
        # squeue lists a task that was requeued in the record of those that wait, too.
        return tuple(sorted(own))
    found = dict.fromkeys(job.id for job in jobs if is_job_matching_id(asked, job))
    found |= dict.fromkeys(_find_matching_journaled_jobs(asked, w.state))
    number = JobId(asked.number)
    plain = asked.task is None and asked.component is None
    if not found and plain and (number in w.state.reports or str(number) in w.state.holds):
        return (number,)
    return tuple(sorted(found))


def is_job_matching_id(asked: ParsedJobId, job: SlurmJob) -> bool:
    """Return whether an id names this job, or a task that waits in its record."""
    if asked.task is not None:
        ranges = parse_array_task_ranges(job.array_task)
        return job.array_job == asked.number and any(asked.task in tasks for tasks in ranges)
    if asked.component is not None:
        return job.id == asked.number and asked.component < len(job.components)
    return asked.number in (job.id, job.array_job, *job.components)


def _is_requested_array_task(asked: ParsedJobId, job: SlurmJob) -> bool:
    """Return whether an id is that of a task with its own record, which this job is."""
    if asked.task is None or job.array_job != asked.number:
        return False
    return job.array_task == str(asked.task)


def _find_matching_journaled_jobs(asked: ParsedJobId, state: EngineState) -> Iterator[JobId]:
    """Yield the jobs of that id that hpctl has treated."""
    for rec in state.jobs.values():
        own = parse_job_id(rec.shown)
        if own is None:
            continue
        same = (own.number, own.task) == (asked.number, asked.task)
        of_array = own.number == asked.number and asked.task is None
        plain = asked.task is None and asked.component is None
        if same or of_array or (plain and rec.attempt.job == asked.number):
            yield rec.attempt.job

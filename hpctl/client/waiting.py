"""Wait for a job's last end.

A run that Slurm shows as ended is not the end of a job that hpctl starts again. What decides:

- COMPLETED and CANCELLED are last at once: hpctl starts neither again.
- `hpctl jobs` lists an open recovery of the job: it continues.
- `hpctl jobs` lists it under `holds` with the gate `ended`: the daemon has decided to leave it.
- Else it is the last one after `SETTLE_S` without a change, also where no daemon answers.

A job that hpctl holds for a person is waiting in the queue; `hpctl jobs` shows its recovery `held`.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Iterable, Mapping

from . import calls, command, slurm_queue
from .errors import ClientError, CommandNotFoundError, JobNotFoundError, WaitTimeoutError
from .slurm_queue import QueuedJob
from .values import AnyJob, Job, JobEnd

FIRST_S, FACTOR, LONGEST_S = 2.0, 1.5, 15.0
"""How long `wait` pauses after its first look at Slurm, how the pause grows, and its most."""
SETTLE_S = 60.0
"""How long a failed run stays as it ended before its end is the last one, where hpctl's daemon does
not say so itself: it reads Slurm at least twice in that time."""
_AT_ONCE = frozenset({"COMPLETED", "CANCELLED"})
HELD = "HELD"


def wait(job: AnyJob, timeout: float | None = None) -> JobEnd:
    """Wait until a job has ended for good, or hpctl holds it, and return how.

    A job that hpctl, Slurm or its owner starts again has not ended. Of an array, wait for each
    task: `wait(job.task(0))`. `timeout` is in seconds; None: none. Slurm is asked at once, after
    2 s, then less and less often, down to once in 15 s. Raises WaitTimeoutError, JobNotFoundError,
    and ClientError where Slurm has not answered for ten minutes.
    """
    waiter = _JobEndWaiter(job if isinstance(job, Job) else Job(str(job)), timeout)
    pause_s = FIRST_S
    while True:
        end = waiter.look()
        if end is not None:
            return end
        waiter.pause(pause_s)
        pause_s = min(LONGEST_S, pause_s * FACTOR)


class FinalJobStateReader:
    """Tells the last end of a job from one after which it is started again.

    `ask` returns the object of `hpctl jobs --all --json`, or raises ClientError.
    """

    def __init__(
        self, ask: Callable[[], Mapping[str, Any]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._since: dict[tuple[str, str, int], float] = {}

    def find_final_states(self, jobs: Iterable[QueuedJob]) -> dict[str, str]:
        """Return those that do not go on: by job id, the state in which they stay."""
        last: dict[str, str] = {}
        doubtful = []
        for job in jobs:
            if job.state in _AT_ONCE:
                last[job.id] = job.state
            elif job.has_ended or _is_job_held(job):
                doubtful.append(job)
        if not doubtful:
            return last
        try:
            answer = self._ask()
        except ClientError:
            answer = {"jobs": (), "holds": ()}
        for job in doubtful:
            state = self._find_final_state(job, answer)
            if state:
                last[job.id] = state
        return last

    def _find_final_state(self, job: QueuedJob, answer: Mapping[str, Any]) -> str:
        """Return the state in which a job stays; empty where it runs on or its state is open."""
        phases = [
            each["phase"] for each in _list_job_recoveries_newest_first(answer["jobs"], job.id)
        ]
        if _is_job_held(job):
            return HELD if phases[:1] == ["held"] else ""
        ends = {hold["shown"] for hold in answer["holds"] if hold["gate"] == "ended"}
        if job.id in ends:
            return job.state
        going = [each for each in answer["jobs"] if each["shown"] == job.id and not each["ended"]]
        if going:
            return ""
        since = self._since.setdefault((job.id, job.state, job.restarts), self._clock())
        return job.state if self._clock() - since >= SETTLE_S else ""


def read_job_recoveries() -> dict[str, Any]:
    """Return the object of `hpctl jobs --all --json`. Raises ClientError."""
    return command.run_hpctl_json("jobs", "--all")


class _JobEndWaiter:
    """One wait for one job."""

    def __init__(self, job: Job, timeout: float | None) -> None:
        self._job = job
        self._timeout = timeout
        self._began = time.monotonic()
        self._answered = self._began
        self._seen: QueuedJob | None = None
        self._ends = FinalJobStateReader(read_job_recoveries)

    def pause(self, for_s: float) -> None:
        """Sleep, at most until the timeout. Raises WaitTimeoutError where it has passed."""
        left = for_s
        if self._timeout is not None:
            left = min(for_s, self._began + self._timeout - time.monotonic())
        if left <= 0:
            state = self._seen.state if self._seen is not None else "not known"
            raise WaitTimeoutError(
                f"job {self._job} has not ended within {self._timeout:g} s: its state is {state}",
                "It continues: wait again, or ask explain() what it does",
            )
        time.sleep(left)

    def look(self) -> JobEnd | None:
        """Return how the job ended; None where it continues."""
        try:
            jobs = slurm_queue.read_queued_jobs([self._job.id])
        except CommandNotFoundError:
            raise
        except ClientError:
            if time.monotonic() - self._answered > _SILENCE_S:
                raise
            return None
        self._answered = time.monotonic()
        job = jobs.get(self._job.id)
        if job is None:
            return self._make_purged_job_end()
        self._seen = job
        state = self._ends.find_final_states([job]).get(job.id)
        return None if state is None else _make_job_end(self._job, job, state)

    def _make_purged_job_end(self) -> JobEnd:
        """Return the end of a job that Slurm has forgotten. Raises JobNotFoundError."""
        if self._seen is not None and self._seen.has_ended:
            return _make_job_end(self._job, self._seen, self._seen.state)
        raise JobNotFoundError(
            f"Slurm does not know job {self._job}",
            "Of an array, wait for each task (job.task(0)). A job that ended more than MinJobAge"
            " ago is known to Slurm's accounting alone, where the cluster has it",
        )


_SILENCE_S = 600.0
"""How long `wait` continues while Slurm does not answer."""


def _is_job_held(job: QueuedJob) -> bool:
    return job.state == "PENDING" and job.reason.startswith("JobHeld")


def _list_job_recoveries_newest_first(
    recoveries: Iterable[Mapping[str, Any]], job: str
) -> list[Mapping[str, Any]]:
    of_job = [each for each in recoveries if each["shown"] == job]
    return sorted(of_job, key=lambda each: str(each["opened"]), reverse=True)


def _make_job_end(job: Job, seen: QueuedJob, state: str) -> JobEnd:
    """Return a job's end, with the cause that hpctl knows."""
    cause, todo = "", ""
    if state != "COMPLETED":
        try:
            said = calls.explain(job)
            cause = said.trouble.why if said.trouble is not None else said.headline
            todo = said.next
        except ClientError:
            pass
    return JobEnd(job, state, seen.exit_code, seen.signal, seen.restarts, cause, todo)

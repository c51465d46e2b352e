"""After which exit codes Slurm itself requeues a job, read where a job may have been requeued so.

A job that waits for another run keeps the exit code of the run that ended: slurmctld writes it at
the end of a batch script that it has not ended, and clears it at the next start. A requeue of a
running job, by an operator or by preemption, leaves 0:0 (seen on 22.05.8 and 24.11.5). One of a job
that had ended leaves its code as well; were that in RequeueExit, the job would not have ended.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from hpctl.vocabulary.ports import Clock
from hpctl.vocabulary.slurm_facts import SlurmJob

KNOWN_S: Final = 600.0
"""How long what was read is taken to hold, in seconds, where no event says otherwise."""
_NO_CODE: Final = ("", "0:0")


class RequeueExitCodeSource(Protocol):
    """Slurm, as far as RequeueExit goes."""

    def requeue_exit_codes(self) -> frozenset[int]:
        """Return the codes of RequeueExit. Raises Unavailable."""


class RequeueExitCodeCache:
    """Keeps the codes that were read last. For one thread."""

    def __init__(self, source: RequeueExitCodeSource, clock: Clock) -> None:
        self._source, self._clock = source, clock
        self._codes: frozenset[int] = frozenset()
        self._due = float("-inf")

    def look(self, jobs: Iterable[SlurmJob]) -> frozenset[int]:
        """Return what is known; read it first where one of these jobs asks for it. Raises
        Unavailable."""
        if self._clock.monotonic() >= self._due and any(map(_is_requeued_with_exit_code, jobs)):
            self._codes = self._source.requeue_exit_codes()
            self._due = self._clock.monotonic() + KNOWN_S
        return self._codes

    def forget(self) -> None:
        """Take what was read for changed: slurmctld has read its configuration again."""
        self._due = float("-inf")


def _is_requeued_with_exit_code(job: SlurmJob) -> bool:
    """Return whether a job waits for another run with the exit code of the last."""
    return job.state == "PENDING" and job.restarts > 0 and job.exit_code not in _NO_CODE

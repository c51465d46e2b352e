"""What the supervisors inside jobs tell, on its way into the journal (see job_route.py)."""

from __future__ import annotations

import logging
import queue
import shutil
import threading
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final

from hpctl.core.job_report import JobReport, Wish
from hpctl.core.journal import JobReported
from hpctl.core.model import JobId, SchedulerView, SlurmJob
from hpctl.core.run_policy import Action
from hpctl.daemon.refusal import Refusal
from hpctl.errors import Unavailable
from hpctl.ports import Clock, Journal
from hpctl.protocol import job_reports as job_wire

log = logging.getLogger(__name__)

LOW_DISK: Final = 256 * 1024 * 1024
"""Bytes that must be free for words; what hpctl itself does is written down until the very end."""
LOOK_S: Final = 1.0
"""How often the disk is looked at."""
LIFE_S: Final = 600.0
"""How often a sign of life of one job is kept for good."""
REMEMBERED: Final = 10_000
"""Jobs whose last word is remembered."""
_SEEN_AGO: Final = 2
"""A word may be on its way while Slurm already counts the next run: so many runs back are taken."""


class Desk:
    """Takes job reports in: each is in the journal before its sender hears so.

    `take` is the intake's, on its threads; `news` the loop's. The journal has one more writer in
    this, of the same process and lease, whose events depend on none but themselves. A word that
    was told already is not written again, and of mere signs of life one in LIFE_S is: the rest is
    in memory, where a restart of the daemon loses it.
    """

    def __init__(
        self,
        journal: Journal,
        slurm: Callable[[], SchedulerView],
        shut: Callable[[SlurmJob], str],
        poke: Callable[[], None],
        clock: Clock,
        disk: Path | None = None,
    ) -> None:
        """`slurm`: what Slurm said last; raises Unavailable until it was read once. `shut`: why
        the daemon would not act on a job now, empty where it would. `disk`: where the journal is,
        if it is on one of ours. `poke` should wake the loop once a second at most."""
        self._journal, self._slurm, self._shut = journal, slurm, shut
        self._poke, self._clock, self._disk = poke, clock, disk
        self._news: queue.SimpleQueue[JobReported] = queue.SimpleQueue()
        self._last: dict[JobId, tuple[JobReported, float]] = {}
        self._lock = threading.Lock()
        self._room = (True, 0.0)

    def take(self, report: JobReport, uid: int, asked: datetime) -> job_wire.Taken:
        """Take in one report of a believed user, which came at `asked`. Raises Refusal."""
        job = self._job(report, asked)
        if uid not in (0, job.uid):
            raise Refusal(
                403,
                "forbidden_uid",
                f"uid {uid} does not own job {job.id} ({job.user or 'unknown'}, uid {job.uid})",
                "only the job's owner and root may speak for it",
            )
        with self._lock:
            self._keep(JobReported(self._clock.now(), report, uid))
        why = self._shut(job)
        return job_wire.Taken(int(job.id), not why, why)

    @property
    def trouble(self) -> str:
        """For `hpctl status`."""
        return "" if self._has_room() else "the disk is nearly full: words of jobs are refused"

    def _keep(self, told: JobReported) -> None:
        """In the journal where it is news, else in memory; what was the last word, nowhere."""
        now, job = time.monotonic(), told.report.job
        last, stored = self._last.pop(job, (None, 0.0))
        if last is None or (told.report, told.uid) != (last.report, last.uid):
            if last is None or not _is_life(told.report, last.report) or now - stored > LIFE_S:
                self._store(told)
                stored = now
            self._news.put(told)
            self._poke()
        if len(self._last) >= REMEMBERED:
            del self._last[next(iter(self._last))]
        self._last[job] = (told, stored)

    def _store(self, told: JobReported) -> None:
        if not self._has_room():
            hint = "Make room where state_dir is; the supervisor sees to its job itself."
            raise Refusal(503, "low_disk", "the head node's disk is nearly full", hint)
        try:
            self._journal.append([told])
        except (OSError, Unavailable) as error:
            raise Refusal(503, "journal_unavailable", f"not stored: {error}", "") from error

    def _has_room(self) -> bool:
        room, until = self._room
        if self._disk is None or time.monotonic() < until:
            return room
        try:
            room = shutil.disk_usage(self._disk).free >= LOW_DISK
        except OSError as error:
            log.warning("how much room %s has cannot be read: %s", self._disk, error)
        self._room = (room, time.monotonic() + LOOK_S)
        return room

    def news(self) -> list[JobReported]:
        """What was told since the last time: in the journal already, and not yet in memory."""
        found = []
        while not self._news.empty():
            found.append(self._news.get())
        return found

    def _job(self, report: JobReport, asked: datetime) -> SlurmJob:
        view = self._view()
        job = view.jobs.get(report.job)
        if view.as_of < asked and (job is None or report.restarts > job.restarts + 1):
            # It has just begun, and Slurm was read before that: have it read again.
            self._poke()
            text = f"job {report.job} is not in what Slurm said at {view.as_of:%H:%M:%S}"
            raise Refusal(503, "slurm_behind", text, "try again")
        if job is None:
            raise Refusal(404, "unknown_job", f"Slurm has no job {report.job}")
        if not job.restarts - _SEEN_AGO <= report.restarts <= job.restarts + 1:
            text = f"restart {report.restarts} of job {job.id}; Slurm counts {job.restarts}"
            raise Refusal(409, "other_run", text)
        return job

    def _view(self) -> SchedulerView:
        try:
            return self._slurm()
        except Unavailable as error:
            raise Refusal(503, "slurm_unavailable", str(error), error.hint) from error


def _is_life(report: JobReport, last: JobReport) -> bool:
    """Whether it says of the same run no more than that it goes on."""
    plain = (None, Action.NONE, Wish.NONE, ())
    said = (report.trouble, report.action, report.wish, report.exclude)
    return said == plain and report.restarts == last.restarts

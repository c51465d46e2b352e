"""`POST /v1/jobs`: reports of the supervisors inside jobs, authenticated by MUNGE.

Answers 200 `{"job": id, "acts": bool, "why": ...}` once the report is in the journal (a sign of
life: in memory), or `{"error": code, "message": ..., "hint": ...}`:

| status | code | meaning |
|---|---|---|
| 401, 408, 409, 413, 503 | see intake.py | no proof, or no body within its bounds |
| 400, 422 | malformed, unsupported_version, invalid_report | not a job report |
| 404 | unknown_job | Slurm has no such job |
| 403 | forbidden_uid | neither the job's owner in Slurm nor root |
| 409 | other_run | the job's restart count is another by now |
| 429 | too_many | more reports, or bytes, of this user than AT_ONCE and so many a second allow |
| 503 | slurm_behind | Slurm was not read since the report came, and knew no such job before |
| 503 | low_disk | the rest of the disk is kept for the events of recoveries |
| 503 | slurm_unavailable, journal_unavailable | no fault of the sender's: try again |
"""

from __future__ import annotations

import asyncio
import logging
import queue
import shutil
import threading
import time
from collections import Counter as Counted
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from hpctl.engine.journal.events import JobReported
from hpctl.engine.journal.port import Journal
from hpctl.engine.state_disk import LOW as LOW_DISK
from hpctl.jobs.former_run import describe_previous_run_end
from hpctl.jobs.run_gates import explain_job_gate_block
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.toolkit.rate_limiter import RateLimiter
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.job_recovery import JobReport, RequestedAction
from hpctl.vocabulary.pause import find_active_pause_covering_targets
from hpctl.vocabulary.ports import Clock
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.slurm_facts import SlurmJob
from hpctl.wire import job_reports as job_wire
from hpctl.wire import munge
from hpctl.wire.authentication import (
    IntakeAuthenticationSettings,
    RequestRefusal,
    decode_request_body,
)
from hpctl.wire.proved_route import RequestRefusalCounter, make_authenticated_post_route

if TYPE_CHECKING:  # the intake's process has neither
    from hpctl.engine.live_config import LiveConfig
    from hpctl.engine.loop_port import RecoveryLoopAccess

PATIENCE_S: Final = 1.2
"""How long a report of a job that is not known yet waits for Slurm to be read again: its sender
gives up after two seconds."""
AGAIN_S: Final = 0.1
WAITING: Final = 16
"""Reports of one user that wait so at once."""
AT_ONCE, A_SECOND = 600, 2.0
"""Reports of one user: a node's loss may end hundreds of jobs at once, but not every minute."""
BYTES_AT_ONCE, BYTES_A_SECOND = 8 * 1024 * 1024, 4096.0

Take = Callable[[JobReport, int, datetime], job_wire.JobReportAck]
"""Takes an authenticated user's report, which came at a time, in. Raises Refusal; may block."""


def make_job_report_route(
    take: Take, settings: IntakeAuthenticationSettings, clock: Clock, registry: CollectorRegistry
) -> Route:
    """Return the route for the intake's application."""
    jobs = _JobReportEndpoint(take, clock, registry)
    refused = RequestRefusalCounter("hpctl_job_reports_refused", "Job reports refused.", registry)
    return make_authenticated_post_route(
        path=job_wire.PATH,
        most=job_wire.MAX_BODY,
        settings=settings,
        answer_to=jobs.event,
        refused=refused,
    )


class _JobReportEndpoint:
    """How much of what authenticated users report is taken."""

    def __init__(self, take: Take, clock: Clock, registry: CollectorRegistry) -> None:
        self._take, self._clock = take, clock
        self._reports = RateLimiter(AT_ONCE, A_SECOND)
        self._bytes = RateLimiter(BYTES_AT_ONCE, BYTES_A_SECOND)
        self._waiting: Counted[int] = Counted()
        self._taken = Counter("hpctl_job_reports", "Job reports taken.", registry=registry)

    async def event(self, body: bytes, credential: munge.Credential) -> bytes:
        """Return the answer to one report. Raises Refusal."""
        taken = await self._handle_job_report(
            decode_request_body(job_wire.decode_job_report, body), len(body), credential.uid
        )
        self._taken.inc()
        return job_wire.encode_job_report_ack(taken)

    async def _handle_job_report(
        self, report: JobReport, size: int, uid: int
    ) -> job_wire.JobReportAck:
        """Handle a report. A job that has just begun is waited for, until Slurm was read again."""
        if not self._reports.take(uid) or not self._bytes.take(uid, size):
            hint = "The supervisor handles its job itself."
            raise RequestRefusal(429, "too_many", f"too many reports of uid {uid}", hint)
        asked, patience = self._clock.now(), time.monotonic() + PATIENCE_S
        while True:
            try:
                return await run_in_threadpool(self._take, report, uid, asked)
            except RequestRefusal as refusal:
                late = time.monotonic() > patience or self._waiting[uid] >= WAITING
                if refusal.code != "slurm_behind" or late:
                    raise
            self._waiting[uid] += 1
            try:
                await asyncio.sleep(AGAIN_S)
            finally:
                self._waiting[uid] -= 1
                self._waiting += Counted()  # which leaves out those that are zero


log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""How often the disk is looked at."""
LIFE_S: Final = 600.0
"""How often a sign of life of one job is written to the journal."""
KEPT: Final = 10_000
"""Jobs whose last report is kept in memory."""
_SEEN_AGO: Final = 2
"""A report may be under way while Slurm counts the next run: so many runs back are taken."""


class JobReportHandler:
    """Takes job reports in: each is in the journal before its sender is answered.

    `take` is called on the intake's threads, `news` on the loop's. This is a second writer of the
    journal, of the same process and lease, whose events depend on none but themselves. A report
    that only repeats the last one is not written, and of mere signs of life one in LIFE_S is: the
    rest is in memory, where a restart of the daemon loses it.
    """

    def __init__(
        self, journal: Journal, loop: RecoveryLoopAccess, live: LiveConfig, disk: Path | None = None
    ) -> None:
        """`disk`: where the journal is, if it is on a disk of this host. `loop` is woken once for
        each report that is news: its `poke` limits the rate."""
        self._journal, self._loop, self._live, self._disk = journal, loop, live, disk
        self._news: queue.SimpleQueue[JobReported] = queue.SimpleQueue()
        self._last: dict[JobId, tuple[JobReported, float]] = {}
        self._lock = threading.Lock()
        self._room = (True, 0.0)

    def take(self, report: JobReport, uid: int, asked: datetime) -> job_wire.JobReportAck:
        """Take in one report of an authenticated user, which came at `asked`. Raises Refusal."""
        job = self._find_job_of_report(report, asked)
        if uid not in (0, job.uid):
            raise RequestRefusal(
                403,
                "forbidden_uid",
                f"uid {uid} does not own job {job.id} ({job.user or 'unknown'}, uid {job.uid})",
                "only the job's owner and root may speak for it",
            )
        with self._lock:
            self._store_report_event_if_new(JobReported(self._loop.clock.now(), report, uid))
        pauses, now = self._loop.memory.state.pauses, self._loop.clock.now()
        pause = find_active_pause_covering_targets(pauses, now, job.nodes, job.partition.split(","))
        why = explain_job_gate_block(
            job, self._live.policy, self._loop.observer.find_kill_switch_reason(), pause
        )
        layers = [f.compact() for f in self._live.config.list_run_policy_layers(job.partition)]
        state = self._loop.memory.state
        former = (
            describe_previous_run_end(state, job.id, report.restarts) if report.restarts else ""
        )
        return job_wire.JobReportAck(int(job.id), not why, why, tuple(filter(None, layers)), former)

    @property
    def trouble(self) -> str:
        """Return the trouble for `hpctl status`."""
        return (
            "" if self._has_disk_space() else "the disk is nearly full: reports of jobs are refused"
        )

    def _store_report_event_if_new(self, event: JobReported) -> None:
        """Keep an event in the journal where it is news, else in memory; a repeated report,
        nowhere."""
        now, job = time.monotonic(), event.report.job
        last, stored = self._last.pop(job, (None, 0.0))
        if last is None or (event.report, event.uid) != (last.report, last.uid):
            if (
                last is None
                or not _is_heartbeat_report(event.report, last.report)
                or now - stored > LIFE_S
            ):
                self._append_report_event_to_journal(event)
                stored = now
            self._news.put(event)
            self._loop.poke()
        if len(self._last) >= KEPT:
            del self._last[next(iter(self._last))]
        self._last[job] = (event, stored)

    def _append_report_event_to_journal(self, event: JobReported) -> None:
        if not self._has_disk_space():
            hint = "Make room where state_dir is; the supervisor sees to its job itself."
            raise RequestRefusal(503, "low_disk", "the head node's disk is nearly full", hint)
        try:
            self._journal.append([event])
        except (OSError, ServiceUnavailable) as error:
            raise RequestRefusal(503, "journal_unavailable", f"not stored: {error}", "") from error

    def _has_disk_space(self) -> bool:
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
        """Return the reports since the last time: in the journal already, not yet in the loop's
        state."""
        found = []
        while not self._news.empty():
            found.append(self._news.get())
        return found

    def _find_job_of_report(self, report: JobReport, asked: datetime) -> SlurmJob:
        try:
            view = self._loop.observer.get_latest_slurm_view()
        except ServiceUnavailable as error:
            raise RequestRefusal(503, "slurm_unavailable", str(error), error.hint) from error
        job = view.jobs.get(report.job)
        if view.as_of < asked and (job is None or report.restarts > job.restarts + 1):
            # It has just begun, and Slurm was read before that: have it read again.
            self._loop.poke()
            text = f"job {report.job} is not in what Slurm said at {view.as_of:%H:%M:%S}"
            raise RequestRefusal(503, "slurm_behind", text, "try again")
        if job is None:
            raise RequestRefusal(404, "unknown_job", f"Slurm has no job {report.job}")
        if not job.restarts - _SEEN_AGO <= report.restarts <= job.restarts + 1:
            text = f"restart {report.restarts} of job {job.id}; Slurm counts {job.restarts}"
            raise RequestRefusal(409, "other_run", text)
        return job


def _is_heartbeat_report(report: JobReport, last: JobReport) -> bool:
    """Return whether the report says of the same run only that it continues."""
    plain = (None, RunAction.NONE, RequestedAction.NONE, (), "")
    content = (report.trouble, report.action, report.wish, report.exclude, report.why)
    return content == plain and report.restarts == last.restarts

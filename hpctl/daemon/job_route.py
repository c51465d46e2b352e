"""`POST /v1/jobs`: what the supervisors inside jobs tell, believed by their MUNGE credentials.

Answers 200 `{"job": id, "acts": bool, "why": ...}` once the report is in the journal (a sign of
life: in memory), or `{"error": code, "message": ..., "hint": ...}`:

| status | code | meaning |
|---|---|---|
| 401, 408, 409, 413, 503 | see proved_route.py | no proof, or no body within its bounds |
| 400, 422 | malformed, unsupported_version, invalid_report | not a job report |
| 404 | unknown_job | Slurm has no such job |
| 403 | forbidden_uid | neither the job's owner in Slurm nor root |
| 409 | other_run | the job's restart count is another by now |
| 429 | too_many | more reports, or bytes, of this user than AT_ONCE and so many a second allow |
| 503 | slurm_behind | Slurm was not read since the report came, and knew no such job before |
| 503 | low_disk | so little room is left that words are refused, for what hpctl does itself |
| 503 | slurm_unavailable, journal_unavailable | ours to mend: try again |
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Counted
from collections.abc import Callable
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from hpctl.core.job_report import JobReport
from hpctl.daemon.allowance import Allowance
from hpctl.daemon.gatekeeper import IntakeSettings
from hpctl.daemon.proved_route import proved_route
from hpctl.daemon.refusal import Refusal
from hpctl.ports import Clock
from hpctl.protocol import job_reports as job_wire
from hpctl.protocol import munge
from hpctl.protocol import reports as wire

PATIENCE_S: Final = 1.2
"""How long a report of a job that is not known yet waits for Slurm to be read again: its sender
gives up after two seconds."""
AGAIN_S: Final = 0.1
WAITING: Final = 16
"""Reports of one user that wait so at once."""
AT_ONCE, A_SECOND = 600, 2.0
"""Reports of one user: a node's loss may end hundreds of jobs at once, but not every minute."""
BYTES_AT_ONCE, BYTES_A_SECOND = 8 * 1024 * 1024, 4096.0

Take = Callable[[JobReport, int, datetime], job_wire.Taken]
"""Takes a believed user's report, which came at a time, in. Raises Refusal; may block."""


def routes(
    take: Take, settings: IntakeSettings, clock: Clock, registry: CollectorRegistry | None = None
) -> list[Route]:
    """The route for the intake's application."""
    registry = registry or CollectorRegistry()
    refused = Counter(
        "hpctl_job_reports_refused", "Job reports not believed.", ["code"], registry=registry
    )
    jobs = _Jobs(take, clock, registry)
    return [proved_route(job_wire.PATH, job_wire.MAX_BODY, settings, jobs.told, refused)]


class _Jobs:
    """How much of what believed users say is taken."""

    def __init__(self, take: Take, clock: Clock, registry: CollectorRegistry) -> None:
        self._take, self._clock = take, clock
        self._words = Allowance(AT_ONCE, A_SECOND)
        self._bytes = Allowance(BYTES_AT_ONCE, BYTES_A_SECOND)
        self._waiting: Counted[int] = Counted()
        self._taken = Counter("hpctl_job_reports", "Job reports taken.", registry=registry)

    async def told(self, body: bytes, credential: munge.Credential) -> bytes:
        """The answer to one report. Raises Refusal."""
        taken = await self._told(_read(body), len(body), credential.uid)
        self._taken.inc()
        return job_wire.encode_taken(taken)

    async def _told(self, report: JobReport, size: int, uid: int) -> job_wire.Taken:
        """Taken in; a job that has just begun is waited for, until Slurm was read again."""
        if not self._words.take(uid) or not self._bytes.take(uid, size):
            hint = "The supervisor sees to its job itself."
            raise Refusal(429, "too_many", f"too many reports of uid {uid}", hint)
        asked, patience = self._clock.now(), time.monotonic() + PATIENCE_S
        while True:
            try:
                return await run_in_threadpool(self._take, report, uid, asked)
            except Refusal as refusal:
                late = time.monotonic() > patience or self._waiting[uid] >= WAITING
                if refusal.code != "slurm_behind" or late:
                    raise
            self._waiting[uid] += 1
            try:
                await asyncio.sleep(AGAIN_S)
            finally:
                self._waiting[uid] -= 1
                self._waiting += Counted()  # which leaves out those that are zero


def _read(body: bytes) -> JobReport:
    try:
        return job_wire.decode(body)
    except wire.MalformedReportError as error:
        status = 422 if isinstance(error, wire.InvalidReportError) else 400
        raise Refusal(status, error.code, str(error), error.hint) from error

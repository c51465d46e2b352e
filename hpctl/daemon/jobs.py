"""`POST /v1/jobs`: what the supervisors inside jobs tell, believed by their MUNGE credentials.

Answers 200 `{"job": id, "acts": bool, "why": ...}` once the report is in the journal, or
`{"error": code, "message": ..., "hint": ...}`:

| status | code | meaning |
|---|---|---|
| 401, 409, 503 | as for `/v1/reports` | the credential, or munged (see gatekeeper.py) |
| 413, 408 | too_large, slow_body | more than job_wire.MAX_BODY bytes, or not here within 5 s |
| 400, 422 | malformed, unsupported_version, invalid_report | not a job report |
| 404 | unknown_job | Slurm has no such job |
| 403 | forbidden_uid | neither the job's owner in Slurm nor root |
| 409 | other_run | the job's restart count is another by now |
| 429 | too_many | more than PER_MINUTE reports of this job within a minute |
| 503 | slurm_unavailable, journal_unavailable | ours to mend: try again |
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hpctl import job_wire, wire
from hpctl.core.job_report import JobReport
from hpctl.core.journal import JobReported
from hpctl.core.model import JobId, SchedulerView, SlurmJob
from hpctl.daemon.body import read_body
from hpctl.daemon.gatekeeper import verified
from hpctl.daemon.refusal import Refusal
from hpctl.ports import Clock, Journal, Unavailable

BODY_TIMEOUT_S = 5.0
PATIENCE_S: Final = 1.2
"""How long a report of a job that is not known yet waits for Slurm to be read again: its sender
gives up after two seconds."""
PER_MINUTE: Final = 60
_SEEN_AGO: Final = 2
"""A word may be on its way while Slurm already counts the next run: so many runs back are taken."""


class Desk:
    """Takes job reports in: each is in the journal before its sender hears so.

    `take` is the intake's, on its threads; `news` the loop's. The journal has one more writer in
    this, of the same process and lease, whose events depend on none but themselves.
    """

    def __init__(
        self,
        journal: Journal,
        slurm: Callable[[], SchedulerView],
        shut: Callable[[SlurmJob], str],
        poke: Callable[[], None],
        clock: Clock,
    ) -> None:
        """`slurm`: what Slurm said last; raises Unavailable until it was read once. `shut`: why
        the daemon would not act on a job now, empty where it would."""
        self._journal, self._slurm, self._shut = journal, slurm, shut
        self._poke, self._clock = poke, clock
        self._news: queue.SimpleQueue[JobReported] = queue.SimpleQueue()
        self._lately: dict[JobId, deque[float]] = {}
        self._lock = threading.Lock()

    def take(self, report: JobReport, uid: int) -> job_wire.Taken:
        """Store one report of a believed user. Raises Refusal."""
        job = self._job(report)
        if uid not in (0, job.uid):
            raise Refusal(
                403,
                "forbidden_uid",
                f"uid {uid} does not own job {job.id} ({job.user or 'unknown'}, uid {job.uid})",
                "only the job's owner and root may speak for it",
            )
        self._check_pace(report.job)
        told = JobReported(self._clock.now(), report, uid)
        try:
            self._journal.append([told])
        except (OSError, Unavailable) as error:
            raise Refusal(503, "journal_unavailable", f"not stored: {error}", "") from error
        self._news.put(told)
        self._poke()
        why = self._shut(job)
        return job_wire.Taken(int(job.id), not why, why)

    def news(self) -> list[JobReported]:
        """What was told since the last time: in the journal already, and not yet in memory."""
        found = []
        while not self._news.empty():
            found.append(self._news.get())
        return found

    def _job(self, report: JobReport) -> SlurmJob:
        asked = self._clock.now()
        view = self._view()
        if not _knows(view, report):
            # It has just begun, and Slurm was read before that: have it read again.
            self._poke()
            patience = time.monotonic() + PATIENCE_S
            while view.as_of < asked and time.monotonic() < patience:
                time.sleep(0.02)
                view = self._view()
        job = view.jobs.get(report.job)
        if job is None and view.as_of < asked:
            text = f"job {report.job} is not in what Slurm said at {view.as_of:%H:%M:%S}"
            raise Refusal(503, "slurm_unavailable", text, "try again")
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

    def _check_pace(self, job: JobId) -> None:
        now = time.monotonic()
        with self._lock:
            times = self._lately.setdefault(job, deque())
            while times and now - times[0] > 60:
                times.popleft()
            if len(times) >= PER_MINUTE:
                raise Refusal(429, "too_many", f"{PER_MINUTE} reports of job {job} in a minute")
            times.append(now)
            if len(self._lately) > 10_000:
                self._lately = {j: t for j, t in self._lately.items() if t and now - t[-1] < 60}


def _knows(view: SchedulerView, report: JobReport) -> bool:
    job = view.jobs.get(report.job)
    return job is not None and job.restarts >= report.restarts


def routes(
    desk: Desk, munge_socket: Path | None, registry: CollectorRegistry | None = None
) -> list[Route]:
    """The route for the intake's application."""
    registry = registry or CollectorRegistry()
    taken = Counter("hpctl_job_reports", "Job reports stored.", registry=registry)
    refused = Counter(
        "hpctl_job_reports_refused", "Job reports not believed.", ["code"], registry=registry
    )

    def take(authorization: str, body: bytes) -> job_wire.Taken:
        credential = verified(authorization, body, munge_socket)
        return desk.take(_read(body), credential.uid)

    async def jobs(request: Request) -> Response:
        try:
            body = await _body(request)
            answer = await run_in_threadpool(take, request.headers.get("authorization", ""), body)
        except Refusal as refusal:
            refused.labels(refusal.code).inc()
            close = {"connection": "close"} if refusal.status in (408, 413) else None
            return JSONResponse(refusal.said, refusal.status, headers=close)
        taken.inc()
        return Response(job_wire.encode_taken(answer), media_type="application/json")

    return [Route(job_wire.PATH, jobs, methods=["POST"])]


def _read(body: bytes) -> JobReport:
    try:
        return job_wire.decode(body)
    except wire.MalformedReportError as error:
        status = 422 if isinstance(error, wire.InvalidReportError) else 400
        raise Refusal(status, error.code, str(error), error.hint) from error


def _body(request: Request) -> Awaitable[bytes]:
    most = job_wire.MAX_BODY
    too_large = Refusal(413, "too_large", f"a job report has at most {most} bytes")
    announced = request.headers.get("content-length", "0")
    return read_body(
        announced, request.receive, most=most, within_s=BODY_TIMEOUT_S, too_large=too_large
    )

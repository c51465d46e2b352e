"""`POST /v1/jobs`: what the supervisors inside jobs tell, believed by their MUNGE credentials.

Answers 200 `{"job": id, "acts": bool, "why": ...}` once the report is in the journal (a sign of
life: in memory), or `{"error": code, "message": ..., "hint": ...}`:

| status | code | meaning |
|---|---|---|
| 401, 409, 503 | as for `/v1/reports` | the credential, or munged (see gatekeeper.py) |
| 413, 408 | too_large, slow_body | more than job_wire.MAX_BODY bytes, or not here within 5 s |
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
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hpctl import job_wire, munge, wire
from hpctl.core.job_report import JobReport
from hpctl.daemon.allowance import Allowance
from hpctl.daemon.body import read_body
from hpctl.daemon.gatekeeper import IntakeSettings, verified
from hpctl.daemon.refusal import Refusal
from hpctl.ports import Clock

BODY_TIMEOUT_S = 5.0
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
    return [Route(job_wire.PATH, _Jobs(take, settings, clock, registry).post, methods=["POST"])]


class _Jobs:
    """Whom to believe, and how much of what they say."""

    def __init__(
        self,
        take: Take,
        settings: IntakeSettings,
        clock: Clock,
        registry: CollectorRegistry | None,
    ) -> None:
        registry = registry or CollectorRegistry()
        self._take, self._settings, self._clock = take, settings, clock
        self._words = Allowance(AT_ONCE, A_SECOND)
        self._bytes = Allowance(BYTES_AT_ONCE, BYTES_A_SECOND)
        self._waiting: Counted[int] = Counted()
        self._taken = Counter("hpctl_job_reports", "Job reports taken.", registry=registry)
        self._refused = Counter(
            "hpctl_job_reports_refused", "Job reports not believed.", ["code"], registry=registry
        )

    async def post(self, request: Request) -> Response:
        """One report."""
        authorization = request.headers.get("authorization", "")
        credential: munge.Credential | None = None
        headers = {}
        try:
            body = await _body(request)
            credential = await run_in_threadpool(
                verified, authorization, body, self._settings.munge_socket
            )
            taken = await self._told(_read(body), len(body), credential.uid)
            status, answer = 200, job_wire.encode_taken(taken)
            self._taken.inc()
        except Refusal as refusal:
            self._refused.labels(refusal.code).inc()
            status, answer = refusal.status, refusal.as_json
            if status in (408, 413):
                headers["connection"] = "close"
        if credential is not None:
            said = wire.answered(authorization, status, answer)
            prove = partial(self._settings.prove, credential.uid)
            headers[wire.PROOF_HEADER] = await run_in_threadpool(prove, said)
        return Response(answer, status, headers, "application/json")

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


def _body(request: Request) -> Awaitable[bytes]:
    most = job_wire.MAX_BODY
    too_large = Refusal(413, "too_large", f"a job report has at most {most} bytes")
    announced = request.headers.get("content-length", "0")
    return read_body(
        announced, request.receive, most=most, within_s=BODY_TIMEOUT_S, too_large=too_large
    )

"""`POST /v1/requests`: what operators ask for, believed by their MUNGE credentials.

Answers 200 `{"request": id}` once the request is stored for the loop, or `{"error": code,
"message": ..., "hint": ...}`:

| status | code | meaning |
|---|---|---|
| 401, 409, 503 | as for `/v1/reports` | the credential, or munged (see gatekeeper.py) |
| 413, 408 | too_large, slow_body | more than wire.MAX_REQUEST bytes, or not here within 5 s |
| 400, 422 | malformed, unsupported_version, invalid_request | not a request |
| 403 | forbidden_uid | not in the group that `access.group` names, nor the job's owner, nor root |
| 429 | too_many | more than PER_MINUTE requests of this user within a minute |
| 503 | journal_unavailable | ours to mend: try again |
"""

from __future__ import annotations

import grp
import os
import pwd
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hpctl import munge, wire
from hpctl.core.journal import State
from hpctl.core.model import JobId, RecoveryId, SchedulerView
from hpctl.core.view import Request
from hpctl.daemon.body import read_body
from hpctl.daemon.gatekeeper import verified
from hpctl.daemon.refusal import Refusal
from hpctl.ports import Clock, HpctlError, Unavailable
from hpctl.store.sql import Store

BODY_TIMEOUT_S: Final = 5.0
PER_MINUTE: Final = 60
OWNERS_VERBS: Final = frozenset({"approve", "cancel"})
"""What a job's owner may ask about that job."""


class RequestDesk:
    """Takes requests in on the intake's threads (`take`) and hands them to the loop (`pending`).

    A row that came by another way has no proof in a database that several hosts write to: the
    loop refuses it. In a SQLite file it was written by root or by the daemon's own user.
    """

    def __init__(
        self,
        store: Store,
        slurm: Callable[[], SchedulerView],
        state: Callable[[], State],
        group: Callable[[], str],
        poke: Callable[[], None],
        clock: Clock,
    ) -> None:
        """`group`: the Unix group whose members may ask for everything; empty: root alone."""
        self._store, self._slurm, self._state = store, slurm, state
        self._group, self._poke, self._clock = group, poke, clock
        self._proofs: dict[int, str] = {}
        self._lately: dict[int, deque[float]] = {}
        self._lock = threading.Lock()

    def take(self, asked: wire.Asked, credential: munge.Credential) -> int:
        """Store one request of a proved user; answers its number. Raises Refusal."""
        uid = credential.uid
        if not (self._operator(uid) or self._owner(uid, asked)):
            raise Refusal(
                403,
                "forbidden_uid",
                f"{_name(uid)} may not ask to {asked.verb} {asked.target}".rstrip(),
                f"members of {self._group() or 'no group yet (access.group)'} and root may ask for"
                " everything, a job's owner to approve or cancel what is done to that job",
            )
        by = asked.by if asked.by and uid in (0, os.geteuid()) else _name(uid)
        proof = f"MUNGE uid {uid} from {credential.address}"
        with self._lock:
            self._check_pace(uid)
            try:
                number = self._store.ask(asked.verb, asked.target, by, self._clock.now())
            except HpctlError as error:
                raise Refusal(503, "journal_unavailable", f"not stored: {error}") from error
            self._proofs[number] = proof
        self._poke()
        return number

    def pending(self) -> list[Request]:
        """The requests that nobody has taken yet, each with what proves who asked.

        Raises Unavailable, JournalCorrupt.
        """
        with self._lock:
            rows = self._store.requests()
            self._proofs = {r.id: self._proofs[r.id] for r in rows if r.id in self._proofs}
            return [replace(r, proof=self._proofs.get(r.id, r.proof)) for r in rows]

    def _operator(self, uid: int) -> bool:
        if uid in (0, os.geteuid()):
            return True
        group = self._group()
        if not group:
            return False
        try:
            user = pwd.getpwuid(uid)
            return grp.getgrnam(group).gr_gid in os.getgrouplist(user.pw_name, user.pw_gid)
        except (KeyError, OSError):
            return False

    def _owner(self, uid: int, asked: wire.Asked) -> bool:
        """Whether the target is a job of this user's, or the recovery of one."""
        if asked.verb not in OWNERS_VERBS:
            return False
        recovery = self._state().jobs.get(RecoveryId(asked.target))
        if recovery is not None:
            number = recovery.attempt.job
        elif asked.target.isdecimal() and len(asked.target) <= 10:
            number = JobId(int(asked.target))
        else:
            return False
        try:
            job = self._slurm().jobs.get(number)
        except Unavailable:
            return False
        return job is not None and job.uid == uid

    def _check_pace(self, uid: int) -> None:
        now = self._clock.monotonic()
        times = self._lately.setdefault(uid, deque(maxlen=PER_MINUTE))
        if len(times) == PER_MINUTE and now - times[0] <= 60:
            raise Refusal(429, "too_many", f"{PER_MINUTE} requests of {_name(uid)} in a minute")
        times.append(now)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def routes(
    desk: RequestDesk, munge_socket: Path | None, registry: CollectorRegistry | None = None
) -> list[Route]:
    """The route for the intake's application."""
    refused = Counter(
        "hpctl_requests_refused",
        "Operators' requests not taken.",
        ["code"],
        registry=registry or CollectorRegistry(),
    )
    too_large = Refusal(413, "too_large", f"a request has at most {wire.MAX_REQUEST} bytes")

    def take(authorization: str, body: bytes) -> int:
        return desk.take(_read(body), verified(authorization, body, munge_socket))

    async def requests(request: HttpRequest) -> Response:
        announced = request.headers.get("content-length", "0")
        try:
            body = await read_body(
                announced,
                request.receive,
                most=wire.MAX_REQUEST,
                within_s=BODY_TIMEOUT_S,
                too_large=too_large,
            )
            number = await run_in_threadpool(take, request.headers.get("authorization", ""), body)
        except Refusal as refusal:
            refused.labels(refusal.code).inc()
            close = {"connection": "close"} if refusal.status in (408, 413) else None
            return JSONResponse(refusal.said, refusal.status, headers=close)
        return JSONResponse({"request": number})

    return [Route(wire.REQUESTS_PATH, requests, methods=["POST"])]


def _read(body: bytes) -> wire.Asked:
    try:
        return wire.read_request(body)
    except wire.MalformedReportError as error:
        status = 422 if isinstance(error, wire.InvalidReportError) else 400
        code = "invalid_request" if status == 422 else error.code
        raise Refusal(status, code, str(error), error.hint) from error

"""`POST /v1/requests`: what operators ask for, authenticated by MUNGE.

Answers 200 `{"request": id}` once the request is stored for the loop, or `{"error": code,
"message": ..., "hint": ...}`:

| status | code | meaning |
|---|---|---|
| 401, 408, 409, 413, 503 | see intake.py | no proof, or no body within its bounds |
| 400, 422 | malformed, unsupported_version, invalid_request | not a request |
| 403 | forbidden_uid | not in the group that `access.group` names, nor the job's owner, nor root |
| 429 | too_many | more than PER_MINUTE requests of this user within a minute |
| 503 | journal_unavailable | no fault of the sender's: try again |
"""

from __future__ import annotations

import grp
import logging
import os
import pwd
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route

from hpctl.engine.journal.events import COMMANDS
from hpctl.engine.journal.store import JournalStore
from hpctl.engine.requests import NOW
from hpctl.engine.view import Request
from hpctl.toolkit.bounds import parse_count
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.vocabulary.identity import JobId, RecoveryId
from hpctl.wire import munge
from hpctl.wire import reports as wire
from hpctl.wire.authentication import (
    IntakeAuthenticationSettings,
    RequestRefusal,
    decode_request_body,
)
from hpctl.wire.proved_route import RequestRefusalCounter, make_authenticated_post_route

if TYPE_CHECKING:  # the intake's process has neither
    from hpctl.engine.leadership import Leadership
    from hpctl.engine.live_config import LiveConfig
    from hpctl.engine.loop_port import RecoveryLoopAccess

log = logging.getLogger(__name__)

PER_MINUTE: Final = 60
FAILOVER: Final = "failover"
OWNERS_VERBS: Final = frozenset({"approve", "cancel"})
"""What a job's owner may ask about that job."""


class OperatorRequestHandler:
    """Takes requests in on the intake's threads (`take`) and hands them to the loop (`pending`).

    In a database that several hosts write to a row alone proves nothing, and the loop refuses it.
    With it lies a MUNGE credential of the daemon that took it, by which the next leader believes
    it. In a SQLite file a row was written by root or by the daemon's own user.
    """

    def __init__(
        self,
        store: JournalStore,
        loop: RecoveryLoopAccess,
        live: LiveConfig,
        leadership: Leadership | None = None,
        munge_socket: Path | None = None,
    ) -> None:
        """Members of the Unix group `access.group` may ask for everything; where it is empty,
        root alone."""
        self._store, self._loop, self._live = store, loop, live
        self._leadership, self._munge_socket = leadership, munge_socket
        self._proofs: dict[int, str] = {}
        self._lately: dict[int, deque[float]] = {}
        self._lock = threading.Lock()

    def take(self, asked: wire.OperatorRequest, uid: int, address: str) -> int:
        """Store one request of a proved user on the host of that address; answers its number.
        Raises Refusal."""
        if not (self._is_user_operator(uid) or self._is_user_job_owner(uid, asked)):
            group = self._live.config.access.group or "no group yet (access.group)"
            verb = asked.verb.removesuffix(NOW)
            what = f"{COMMANDS.get(verb, verb)} {asked.target}".rstrip()
            raise RequestRefusal(
                403,
                "forbidden_uid",
                f"{_find_user_name(uid)} may not ask to {what}",
                f"members of {group} and root may ask for everything,"
                " a job's owner to approve or cancel what is done to that job",
            )
        by = asked.by if asked.by and uid in (0, os.geteuid()) else _find_user_name(uid)
        proof, socket = f"MUNGE uid {uid} from {address}", self._munge_socket
        said = _join_request_target_and_detail(asked.target, asked.detail)
        with self._lock:
            self._check_request_rate(uid)
            try:
                number = self._store.ask(
                    asked.verb,
                    asked.target,
                    by,
                    self._loop.clock.now(),
                    lambda number: munge.encode_munge_credential(
                        _make_request_credential_payload(number, asked.verb, said, by, proof),
                        socket,
                    ),
                    detail=asked.detail,
                )
            except HpctlError as error:
                raise RequestRefusal(503, "journal_unavailable", f"not stored: {error}") from error
            self._proofs[number] = proof
        self._loop.poke()
        return number

    def pending(self) -> list[Request]:
        """Return the requests not taken yet, each with the proof of its sender. Those to hand
        over are answered here. Raises Unavailable, CorruptJournalError, LeaseLostError, OSError.
        """
        with self._lock:
            rows = self._store.requests()
            self._proofs = {r.id: self._proofs[r.id] for r in rows if r.id in self._proofs}
            unknown = [r for r in rows if not r.proof and r.id not in self._proofs]
            if unknown:
                self._recover_request_sender_proofs(unknown)
            known = {r.id: r.proof for r in rows if r.proof} | self._proofs
            waiting = [replace(r, proof=known[r.id]) for r in rows if r.id in known]
        if self._leadership is None:
            return waiting
        for request in waiting:
            if request.verb == FAILOVER:
                self._leadership.take(request, self._loop.memory)
        return [r for r in waiting if r.verb != FAILOVER]

    def _recover_request_sender_proofs(self, requests: Sequence[Request]) -> None:
        """Find what proved these to a former leader; nothing is known of any while munged is
        away. Raises Unavailable, CorruptJournalError."""
        credentials = self._store.proofs()
        for one in requests:
            fields, proof = (
                _make_request_credential_payload(
                    one.id,
                    one.verb,
                    _join_request_target_and_detail(one.target, one.detail),
                    one.by,
                ),
                b"",
            )
            try:
                made = munge.decode_munge_credential(
                    credentials.get(one.id, ""), self._munge_socket
                )
                if made.uid in (0, os.geteuid()) and made.payload.startswith(fields):
                    proof = made.payload[len(fields) :]
            except munge.MungeCredentialError as error:
                log.warning("request %d: %s", one.id, error)
            except munge.MungeUnavailable as error:
                log.warning("request %d waits: %s", one.id, error)
                return
            self._proofs[one.id] = proof.decode(errors="replace")

    def _is_user_operator(self, uid: int) -> bool:
        if uid in (0, os.geteuid()):
            return True
        group = self._live.config.access.group
        if not group:
            return False
        try:
            user = pwd.getpwuid(uid)
            return grp.getgrnam(group).gr_gid in os.getgrouplist(user.pw_name, user.pw_gid)
        except (KeyError, OSError):
            return False

    def _is_user_job_owner(self, uid: int, asked: wire.OperatorRequest) -> bool:
        """Return whether the target is a job of this user's, or the recovery of one."""
        if asked.verb not in OWNERS_VERBS:
            return False
        recovery = self._loop.memory.state.jobs.get(RecoveryId(asked.target))
        number = recovery.attempt.job if recovery else JobId(parse_count(asked.target))
        try:
            job = self._loop.observer.get_latest_slurm_view().jobs.get(number)
        except ServiceUnavailable:
            return False
        return job is not None and job.uid == uid

    def _check_request_rate(self, uid: int) -> None:
        now = self._loop.clock.monotonic()
        times = self._lately.setdefault(uid, deque(maxlen=PER_MINUTE))
        if len(times) == PER_MINUTE and now - times[0] <= 60:
            raise RequestRefusal(
                429, "too_many", f"{PER_MINUTE} requests of {_find_user_name(uid)} in a minute"
            )
        times.append(now)


def _join_request_target_and_detail(target: str, detail: str) -> str:
    """Return a request's target and detail as its credential covers them."""
    return f"{target}\n{detail}" if detail else target


def _make_request_credential_payload(
    number: int, verb: str, target: str, by: str, proof: str = ""
) -> bytes:
    """Return what the credential says that is kept with a request: first the request, then the
    proof."""
    return msgspec.json.encode(("hpctl request", number, verb, target, by)) + proof.encode()


def _find_user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def make_operator_request_route(
    take: Callable[[wire.OperatorRequest, int, str], int],
    settings: IntakeAuthenticationSettings,
    registry: CollectorRegistry,
) -> Route:
    """Return the route for the intake's application. `take`: that of an OperatorRequestHandler,
    here or in the daemon."""

    async def handle_operator_request(body: bytes, credential: munge.Credential) -> bytes:
        asked = decode_request_body(wire.decode_operator_request, body, "invalid_request")
        address = str(credential.address)
        number = await run_in_threadpool(take, asked, credential.uid, address)
        return msgspec.json.encode({"request": number})

    refused = RequestRefusalCounter(
        "hpctl_requests_refused", "Operators' requests not taken.", registry
    )
    return make_authenticated_post_route(
        path=wire.REQUESTS_PATH,
        most=wire.MAX_REQUEST,
        settings=settings,
        answer_to=handle_operator_request,
        refused=refused,
    )

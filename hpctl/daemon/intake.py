"""The daemon's HTTP intake: reports of agents, and what it says of itself.

`POST /v1/reports` answers 200 `{"ack": seq}` after what was sent is stored (a heartbeat: noted), or
`{"error": code, "message": ..., "hint": ...}`. An answer to somebody who proved himself carries our
own proof (docs/adr/0042). Every refusal is counted by its code and never
reaches `accept`; the codes are in gatekeeper.py. `GET /healthz`, `GET /metrics` and whatever
routes the daemon adds are Starlette's. Reports do not pass through it: ten thousand agents are
heard on one thread, and half of its time would be spent on choosing among three routes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hpctl.core.model import Report
from hpctl.daemon.body import read_body
from hpctl.daemon.gatekeeper import AddressOf, Gatekeeper, IntakeSettings
from hpctl.daemon.inbox import Accept, Heard, Inbox
from hpctl.daemon.refusal import Refusal
from hpctl.daemon.server import IntakeServer
from hpctl.daemon.sessions import Session
from hpctl.protocol import reports as wire

__all__ = ["IntakeServer", "IntakeSettings", "intake_app"]

BODY_TIMEOUT_S = 10.0
_SESSION = wire.SESSION_SCHEME + " "
_PROOF = wire.PROOF_HEADER.lower().encode()
_Prove = Callable[[bytes], Awaitable[str]]
_T = TypeVar("_T")
_JSON = (b"content-type", b"application/json")


def intake_app(
    settings: IntakeSettings,
    accept: Accept,
    address_of: AddressOf,
    registry: CollectorRegistry | None = None,
    *,
    heard: Heard = lambda _: False,
    routes: Sequence[BaseRoute] = (),
    scrape: Callable[[], bytes] = bytes,
) -> ASGIApp:
    """The ASGI application: POST /v1/reports, GET /healthz, GET /metrics, and `routes`.

    `accept` is called from the app's own threads; `address_of` from these and, like `heard`,
    from the event loop, where they must not block. By default every heartbeat is answered by
    asking for the findings. `registry` is what /metrics prints, the intake's counters among it, and
    after that what `scrape` answers, which may block and is asked once a second at most.
    """
    registry = registry or CollectorRegistry()

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    more = _Scraped(scrape)

    async def metrics(_: Request) -> Response:
        text = generate_latest(registry) + await more.now()
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    others = Starlette(routes=[Route("/healthz", healthz), Route("/metrics", metrics), *routes])
    # A redirect would name whatever host the client said in its Host header.
    others.router.redirect_slashes = False
    reports = _Reports(settings, address_of, Inbox(accept, heard), registry)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        hot = scope["type"] == "http" and scope["path"] == wire.PATH and scope["method"] == "POST"
        await (reports if hot else others)(scope, receive, send)

    return app


class _Scraped:
    """What somebody else adds to /metrics: whoever may ask for it may ask for it all day."""

    def __init__(self, scrape: Callable[[], bytes]) -> None:
        self._scrape, self._lock = scrape, asyncio.Lock()
        self._text, self._until = b"", 0.0

    async def now(self) -> bytes:
        async with self._lock:
            if time.monotonic() >= self._until:
                self._text = await asyncio.to_thread(self._scrape)
                self._until = time.monotonic() + 1.0
            return self._text


class _Reports:
    """POST /v1/reports."""

    def __init__(
        self,
        settings: IntakeSettings,
        address_of: AddressOf,
        inbox: Inbox,
        registry: CollectorRegistry,
    ) -> None:
        self._settings, self._inbox = settings, inbox
        self._keeper = Gatekeeper(settings, address_of)
        self._accepted = Counter("hpctl_reports", "Reports believed and stored.", registry=registry)
        self._heartbeats = Counter("hpctl_heartbeats", "Heartbeats believed.", registry=registry)
        self._refused = Counter(
            "hpctl_reports_refused", "Reports not believed.", ["code"], registry=registry
        )
        # munged and the resolver may block: never on the event loop.
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="intake")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        prove: _Prove = _unproved
        status, close = 200, False
        try:
            body = await _read_body(headers.get(b"content-length", b"0"), receive)
            peer = scope["client"][0] if scope["client"] else ""
            if authorization.startswith(_SESSION):
                session = self._keeper.session(authorization, body, peer)
                prove = _signed(session)
                said = self._keeper.within_session(session, body).said
                ack = await self._believe(said)
            else:
                credential = await self._run(self._keeper.verified, authorization, body)
                prove = partial(self._run, self._settings.prove, credential.uid)
                proved = await self._run(self._keeper.by_credential, credential, body, peer)
                said = proved.message.said
                ack = await self._believe(said)
                if proved.message.open_session:
                    granted = await self._run(self._keeper.open_session, proved, peer)
                    ack = wire.Ack(ack.ack, granted)
            scope["state"]["node"] = said.node
            answer = wire.encode_ack(ack)
        except Refusal as refusal:
            self._refused.labels(refusal.code).inc()
            # What is left of an unread body must not be taken for the next request.
            status, close = refusal.status, refusal.status in (408, 413)
            answer = refusal.as_json
        proof = await prove(wire.answered(authorization, status, answer))
        await _answer(send, status, answer, proof, close=close)

    async def _run(self, blocking: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, blocking, *arguments)

    async def _believe(self, said: Report | wire.Heartbeat) -> wire.Ack:
        if isinstance(said, Report):
            await self._inbox.store(said)
            self._accepted.inc()
        else:
            self._inbox.hear(said)
            self._heartbeats.inc()
        return wire.Ack(said.seq)


async def _unproved(_: bytes) -> str:
    return ""


def _signed(session: Session) -> _Prove:
    async def prove(said: bytes) -> str:
        return session.proof(said)

    return prove


async def _answer(send: Send, status: int, body: bytes, proof: str, *, close: bool) -> None:
    headers = [_JSON, (b"content-length", str(len(body)).encode())]
    if proof:
        headers.append((_PROOF, proof.encode()))
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _read_body(announced: bytes, receive: Receive) -> Awaitable[bytes]:
    most = wire.MAX_BODY
    too_large = Refusal(413, "too_large", f"a report has at most {most} bytes")
    size = announced.decode("latin-1")
    return read_body(size, receive, most=most, within_s=BODY_TIMEOUT_S, too_large=too_large)

"""The daemon's HTTP intake: reports of agents, and what it says of itself.

`POST /v1/reports` answers 200 `{"ack": seq}` after what was sent is stored (a heartbeat: noted), or
`{"error": code, "message": ..., "hint": ...}`. Every refusal is counted by its code and never
reaches `accept`; the codes are in gatekeeper.py. `GET /healthz`, `GET /metrics` and whatever
routes the daemon adds are Starlette's. Reports do not pass through it: ten thousand agents are
heard on one thread, and half of its time would be spent on choosing among three routes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hpctl import wire
from hpctl.core.model import Report
from hpctl.daemon.body import read_body
from hpctl.daemon.gatekeeper import AddressOf, Gatekeeper, IntakeSettings
from hpctl.daemon.inbox import Accept, Heard, Inbox
from hpctl.daemon.refusal import Refusal
from hpctl.daemon.server import IntakeServer

__all__ = ["IntakeServer", "IntakeSettings", "intake_app"]

BODY_TIMEOUT_S = 10.0
_SESSION = wire.SESSION_SCHEME + " "
_JSON = (b"content-type", b"application/json")


def intake_app(
    settings: IntakeSettings,
    accept: Accept,
    address_of: AddressOf,
    registry: CollectorRegistry | None = None,
    *,
    heard: Heard = lambda _: False,
    routes: Sequence[BaseRoute] = (),
) -> ASGIApp:
    """The ASGI application: POST /v1/reports, GET /healthz, GET /metrics, and `routes`.

    `accept` is called from the app's own threads; `address_of` from these and, like `heard`,
    from the event loop, where they must not block. By default every heartbeat is answered by
    asking for the findings. `registry` is what /metrics prints; the intake's counters are added.
    """
    registry = registry or CollectorRegistry()

    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    others = Starlette(routes=[Route("/healthz", healthz), Route("/metrics", metrics), *routes])
    keeper, inbox = Gatekeeper(settings, address_of), Inbox(accept, heard)
    reports = _Reports(keeper, inbox, settings.threads, registry)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        hot = scope["type"] == "http" and scope["path"] == wire.PATH and scope["method"] == "POST"
        await (reports if hot else others)(scope, receive, send)

    return app


class _Reports:
    """POST /v1/reports."""

    def __init__(
        self, keeper: Gatekeeper, inbox: Inbox, threads: int, registry: CollectorRegistry
    ) -> None:
        self._keeper, self._inbox = keeper, inbox
        self._accepted = Counter("hpctl_reports", "Reports believed and stored.", registry=registry)
        self._heartbeats = Counter("hpctl_heartbeats", "Heartbeats believed.", registry=registry)
        self._refused = Counter(
            "hpctl_reports_refused", "Reports not believed.", ["code"], registry=registry
        )
        # munged and the resolver may block: never on the event loop.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="intake")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers: dict[bytes, bytes] = dict(scope["headers"])
            body = await _read_body(headers.get(b"content-length", b"0"), receive)
            authorization = headers.get(b"authorization", b"").decode("latin-1")
            peer = scope["client"][0] if scope["client"] else ""
            ack = await self._take(authorization, body, peer)
        except Refusal as refusal:
            self._refused.labels(refusal.code).inc()
            # What is left of an unread body must not be taken for the next request.
            unread = refusal.status in (408, 413)
            await _answer(send, refusal.status, json.dumps(refusal.said).encode(), close=unread)
            return
        await _answer(send, 200, wire.encode_ack(ack))

    async def _take(self, authorization: str, body: bytes, peer: str) -> wire.Ack:
        if authorization.startswith(_SESSION):
            message = self._keeper.within_session(authorization, body, peer)
            return await self._believe(message.said)
        run = asyncio.get_running_loop().run_in_executor
        proved = await run(self._pool, self._keeper.by_credential, authorization, body)
        ack = await self._believe(proved.message.said)
        if not proved.message.open_session:
            return ack
        return wire.Ack(ack.ack, await run(self._pool, self._keeper.open_session, proved, peer))

    async def _believe(self, said: Report | wire.Heartbeat) -> wire.Ack:
        if isinstance(said, Report):
            await self._inbox.store(said)
            self._accepted.inc()
        else:
            self._inbox.hear(said)
            self._heartbeats.inc()
        return wire.Ack(said.seq)


async def _answer(send: Send, status: int, body: bytes, *, close: bool = False) -> None:
    headers = [_JSON, (b"content-length", str(len(body)).encode())]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _read_body(announced: bytes, receive: Receive) -> Awaitable[bytes]:
    most = wire.MAX_BODY
    too_large = Refusal(413, "too_large", f"a report has at most {most} bytes")
    size = announced.decode("latin-1")
    return read_body(size, receive, most=most, within_s=BODY_TIMEOUT_S, too_large=too_large)

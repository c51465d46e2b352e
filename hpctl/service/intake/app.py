"""The daemon's HTTP intake: reports of agents, and the routes of others.

`POST /v1/reports` answers 200 `{"ack": seq}` after what was sent is stored (a heartbeat: noted), or
`{"error": code, "message": ..., "hint": ...}`. An answer to a proved sender carries our own proof
(docs/adr/0042). Every refusal is counted by its code and never reaches the `ReportSink`; the codes
are in authentication.py. `GET /healthz`, `GET /metrics` and the routes that the daemon adds are
Starlette's. Reports do not pass through it: ten thousand agents are served on one thread, and half
of its time would be spent on choosing among three routes.

`make_authenticated_post_route` makes the other routes, whose sender MUNGE proves, and whose answer
the daemon proves in turn:

| status | code | meaning |
|---|---|---|
| 401, 409, 503 | as for `/v1/reports` | the credential, or munged (see authentication.py) |
| 413, 408 | too_large, slow_body | more bytes than the route takes, or not here within 5 s |
| 421 | not_leader | as for `/v1/reports` |
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Protocol

from msgspec.structs import replace
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.model import AgentReport
from hpctl.wire import munge
from hpctl.wire import reports as wire
from hpctl.wire.authentication import (
    AddressOf,
    AgentSession,
    Authenticator,
    IntakeAuthenticationSettings,
    RequestBodyLimits,
    RequestRefusal,
    read_request_body,
)
from hpctl.wire.proved_route import (
    BODY_TIMEOUT_S,
    AnswerT,
    RequestRefusalCounter,
    send_asgi_response,
)

log = logging.getLogger(__name__)


_SESSION = wire.SESSION_SCHEME + " "


WRITERS = 2
"""Writes at once. The journal takes them in turn, but one that hangs does not stop the others."""


MOST = 128
"""Reports of one write: each may have a quarter of a megabyte."""


class ReportSink(Protocol):
    """Where authenticated reports and heartbeats go."""

    def accept(self, *reports: AgentReport) -> None:
        """Store them durably, all or none, and wake the loop; no two of one node at a time.

        Called on threads of the intake. Whatever it raises is answered with 503.
        """

    def heard(self, heartbeat: wire.Heartbeat) -> bool:
        """Note that a node lives; False where the digest is not that of the findings held of it.

        Called on the event loop: it must not block.
        """


class ReportQueue:
    """Authenticated reports on their way to the journal: in order for each node, many in one write.

    All of it runs on the event loop, so it needs no locks; only the writing itself happens on
    threads. What arrives while those are busy waits and is then written together: a thousand nodes
    that report at once cost a few transactions.
    """

    def __init__(self, sink: ReportSink) -> None:
        self._sink = sink
        self._newest: dict[NodeName, tuple[datetime, int]] = {}
        self._waiting: list[tuple[AgentReport, asyncio.Future[None]]] = []
        self._busy: set[NodeName] = set()
        self._writes = 0
        self._pool = ThreadPoolExecutor(WRITERS, thread_name_prefix="intake-store")

    def hear(self, heartbeat: wire.Heartbeat) -> None:
        """Note a heartbeat. Raises Refusal.

        It does not wait for a report of the same node that is being stored: it changes no
        finding, so a report that ends after it loses nothing.
        """
        self._check_message_is_newer(heartbeat)
        if not self._sink.heard(heartbeat):
            hint = "Send the findings: agents do so at once."
            raise RequestRefusal(409, "unknown_digest", "these findings are not held here", hint)
        self._record_newest_message(heartbeat)

    async def store(self, report: AgentReport) -> None:
        """Have a report stored after those of its node that came before. Raises Refusal."""
        stored = asyncio.get_running_loop().create_future()
        self._waiting.append((report, stored))
        self._start_report_batch_write()
        await stored

    def _start_report_batch_write(self) -> None:
        """Start writing what may be written now."""
        if self._writes >= WRITERS:
            return
        batch: list[tuple[AgentReport, asyncio.Future[None]]] = []
        later = []
        for report, stored in self._waiting:
            if report.node in self._busy or len(batch) >= MOST:
                later.append((report, stored))
                continue
            try:
                self._check_message_is_newer(report)
            except RequestRefusal as refusal:
                _resolve_report_request(stored, refusal)
                continue
            self._busy.add(report.node)
            batch.append((report, stored))
        self._waiting = later
        if batch:
            self._writes += 1
            reports = [report for report, _ in batch]
            writing = asyncio.get_running_loop().run_in_executor(
                self._pool, self._sink.accept, *reports
            )
            writing.add_done_callback(
                lambda done: self._finish_report_batch(batch, done.exception())
            )

    def _finish_report_batch(
        self, batch: list[tuple[AgentReport, asyncio.Future[None]]], error: BaseException | None
    ) -> None:
        self._writes -= 1
        refusal = None
        if error is not None:
            # Whatever broke, nothing of it was stored: the agents must hear that.
            log.error("%d reports could not be stored", len(batch), exc_info=error)
            text = f"not stored: {error}"
            refusal = RequestRefusal(503, "journal_unavailable", text, "See the daemon's log.")
        for report, stored in batch:
            self._busy.discard(report.node)
            if refusal is None:
                self._record_newest_message(report)
            _resolve_report_request(stored, refusal)
        self._start_report_batch_write()

    def _check_message_is_newer(self, message: AgentReport | wire.Heartbeat) -> None:
        newest = self._newest.get(NodeName(message.node))
        if newest is not None and (message.agent_start, message.seq) <= newest:
            raise RequestRefusal(
                409,
                "stale_report",
                f"report {message.seq} of the agent started {message.agent_start.isoformat()} is "
                f"not newer than {newest[1]} of the one started {newest[0].isoformat()}",
            )

    def _record_newest_message(self, message: AgentReport | wire.Heartbeat) -> None:
        """A report may end after a later heartbeat: what was taken never grows older."""
        node, now = NodeName(message.node), (message.agent_start, message.seq)
        self._newest[node] = max(now, self._newest.get(node, now))


def _resolve_report_request(stored: asyncio.Future[None], refusal: RequestRefusal | None) -> None:
    """Tell the request that waits, if it still does: a client may have gone."""
    if stored.cancelled():
        return
    if refusal is None:
        stored.set_result(None)
    else:
        stored.set_exception(refusal)


def make_agent_intake_app(  # noqa: PLR0913 -- what the application serves, by keyword with defaults
    settings: IntakeAuthenticationSettings,
    sink: ReportSink,
    address_of: AddressOf,
    registry: CollectorRegistry | None = None,
    *,
    routes: Sequence[BaseRoute] = (),
    scrape: Callable[[], bytes] = bytes,
    order_for: Callable[[NodeName], str] = lambda _: "",
) -> ASGIApp:
    """Return the ASGI application: POST /v1/reports, GET /healthz, GET /metrics, and `routes`.

    `address_of` is called from the app's own threads and from the event loop, where it must not
    block. `registry` is what /metrics prints, the intake's counters among it, and
    after that what `scrape` answers, which may block and is asked once a second at most.
    `order_for`: the credential that a node's agent gets with the answer.
    """
    registry = registry or CollectorRegistry()

    async def answer_healthz(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    more = _CachedDaemonAnswer(scrape)

    async def answer_metrics(_: Request) -> Response:
        text = generate_latest(registry) + await more.now()
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    others = Starlette(
        routes=[Route("/healthz", answer_healthz), Route("/metrics", answer_metrics), *routes]
    )
    # A redirect would name whatever host the client said in its Host header.
    others.router.redirect_slashes = False
    reports = _ReportEndpoint(settings, address_of, ReportQueue(sink), registry, order_for)

    async def route_intake_request(scope: Scope, receive: Receive, send: Send) -> None:
        hot = scope["type"] == "http" and scope["path"] == wire.PATH and scope["method"] == "POST"
        await (reports if hot else others)(scope, receive, send)

    return route_intake_request


def make_discovery_route(discover: Callable[[], bytes]) -> Route:
    """GET /sd: https://prometheus.io/docs/prometheus/latest/http_sd. Asked once a second at most;
    Prometheus keeps what it had where there is no answer."""
    known = _CachedDaemonAnswer(discover)

    async def answer_discovery(_: Request) -> Response:
        try:
            return Response(await known.now(), media_type="application/json")
        except RequestRefusal as refusal:
            return Response(refusal.as_json, refusal.status, media_type="application/json")

    return Route("/sd", answer_discovery)


class _CachedDaemonAnswer:
    """What another process adds to /metrics. A client that may read it may read it all day."""

    def __init__(self, scrape: Callable[[], bytes]) -> None:
        self._scrape, self._lock = scrape, asyncio.Lock()
        self._text, self._until = b"", 0.0

    async def now(self) -> bytes:
        async with self._lock:
            if time.monotonic() >= self._until:
                self._text = await asyncio.to_thread(self._scrape)
                self._until = time.monotonic() + 1.0
            return self._text


class _ReportEndpoint:
    """POST /v1/reports."""

    def __init__(
        self,
        settings: IntakeAuthenticationSettings,
        address_of: AddressOf,
        queue: ReportQueue,
        registry: CollectorRegistry,
        order_for: Callable[[NodeName], str],
    ) -> None:
        self._settings, self._queue, self._order_for = settings, queue, order_for
        self._authenticator = Authenticator(settings, address_of)
        self._accepted = Counter(
            "hpctl_reports", "Reports authenticated and stored.", registry=registry
        )
        self._heartbeats = Counter(
            "hpctl_heartbeats", "Heartbeats authenticated.", registry=registry
        )
        self._refused = RequestRefusalCounter("hpctl_reports_refused", "Reports refused.", registry)
        # munged and the resolver may block: never on the event loop.
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="intake")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        authorization = headers.get(b"authorization", b"").decode("latin-1")
        session: AgentSession | None = None
        credential: munge.Credential | None = None
        status, close = 200, False
        try:
            body = await read_request_body(
                headers.get(b"content-length", b"0").decode("latin-1"),
                receive,
                RequestBodyLimits(
                    most=wire.MAX_BODY,
                    within_s=BODY_TIMEOUT_S,
                    too_large=f"a report has at most {wire.MAX_BODY} bytes",
                ),
            )
            self._settings.leading.check()
            peer = scope["client"][0] if scope["client"] else ""
            if authorization.startswith(_SESSION):
                session = self._authenticator.session(authorization, body, peer)
                message = self._authenticator.decode_session_message(session, body).content
                ack = await self._store_agent_message(message)
            else:
                credential = await self._run_in_thread_pool(
                    self._authenticator.verify, authorization, body
                )
                proved = await self._run_in_thread_pool(
                    self._authenticator.authenticate_report, credential, body, peer
                )
                message = proved.message.content
                ack = await self._store_agent_message(message)
                if proved.message.open_session:
                    granted = await self._run_in_thread_pool(
                        self._authenticator.open_session, proved, peer
                    )
                    ack = replace(ack, session=granted)
            scope["state"]["node"] = message.node
            answer = wire.encode_report_ack(ack)
        except RequestRefusal as refusal:
            self._refused.add(refusal.code)
            # What is left of an unread body must not be taken for the next request, and a client
            # that is sent to the leader has nothing further to say here.
            status, close = refusal.status, refusal.status in (408, 413, 421)
            answer = refusal.as_json
        answered, proof = wire.make_answer_proof_payload(authorization, status, answer), ""
        if session is not None:
            proof = session.proof(answered)
        elif credential is not None:
            proof = await self._run_in_thread_pool(self._settings.prove, credential.uid, answered)
        await send_asgi_response(send, status, answer, proof, close=close)

    async def _run_in_thread_pool(
        self, blocking: Callable[..., AnswerT], *arguments: object
    ) -> AnswerT:
        return await asyncio.get_running_loop().run_in_executor(self._pool, blocking, *arguments)

    async def _store_agent_message(self, message: AgentReport | wire.Heartbeat) -> wire.ReportAck:
        if isinstance(message, AgentReport):
            await self._queue.store(message)
            self._accepted.inc()
        else:
            self._queue.hear(message)
            self._heartbeats.inc()
        node = NodeName(message.node)
        return wire.ReportAck(
            message.seq, stacks=self._settings.asks.get(node), order=self._order_for(node)
        )

"""The page over HTTP: pages, and streams of what changed.

It answers GET only, from clients that `StatusPageAccess` allows.

One thread reads and renders, for all readers; it rests while there is none. Each answer, a stream
too, ends within the time that the server gives an answer, so that who reads too slowly is dropped;
a browser opens its next stream automatically and names the last change that it has.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hpctl.engine.explain_view import NO_PARTS, ExplainExtensions
from hpctl.service.intake.server import REQUEST_S, ConnectionLimits
from hpctl.service.page.access import SESSION_S, StatusPageAccess
from hpctl.service.page.follow import StatusPagePoller
from hpctl.service.page.render import PagePart, StatusPageRenderer
from hpctl.toolkit.bounds import parse_count
from hpctl.wire.authentication import RequestRefusal

T = TypeVar("T")

BOUNDS = ConnectionLimits(
    in_all=256, waiting=64, waiting_of_address=64, busy_of_address=128, oldest_busy_goes=True
)
"""All browsers that come through a tunnel or a Unix socket share one address, and each keeps a
stream for each of its tabs: a new request takes the place of the oldest stream, which its browser
opens again."""
EVERY_S = 1.0
"""How often the journal is read while the page has a reader."""
STREAM_S, IDLE_S = REQUEST_S - 5, REQUEST_S + 5
"""How long a stream lasts, and after how long without another one its reader counts as gone."""
FEEDS = 64
"""Paths that are kept ready."""
COOKIE = "hpctl_page"
HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src "
    "'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
NOT_HERE = "Nothing is known of this here. `hpctl explain` looks into the past, too.\n"
NOT_OURS = "The Host of this request is not this server's: see page.hosts in hpctl.yaml.\n"
SIGN_IN = (
    "You are not signed in, or no longer, or this link was used before or is old.\n\n"
    "On the head node, `hpctl page --link` prints a link that lets one browser in.\n"
)


class PageChangeFeed:
    """One path: its parts, each with the version at which it last changed.

    Versions are milliseconds of the clock and grow: those of a former process are older.
    """

    def __init__(self) -> None:
        self.parts: dict[str, PagePart] = {}
        self.version = self.of = 0
        self.lock = asyncio.Lock()
        self._stamps: dict[str, int] = {}

    def take(self, parts: dict[str, PagePart], of: int) -> None:
        """The path as it is now, made `of` the newest look."""
        self.of, old, self.parts = of, self.parts, parts
        news = [n for n, part in parts.items() if n not in old or old[n].key != part.key]
        news = [*news, *(old.keys() - parts)]
        if news:
            self.version = max(int(time.time() * 1000), self.version + 1)
            self._stamps |= dict.fromkeys(news, self.version)

    def since(self, version: int) -> dict[str, str]:
        """Return the HTML of all parts that changed after a version; empty for those that are
        gone."""
        news = (name for name, at in self._stamps.items() if at > version)
        return {name: self.parts[name].html if name in self.parts else "" for name in news}


class StatusPageStreamer:
    """The follower and the feeds, for the event loop; the work is done on one thread."""

    def __init__(
        self, follower: StatusPagePoller, explain_parts: ExplainExtensions = NO_PARTS
    ) -> None:
        self._look_at, self._renderer = follower.look, StatusPageRenderer(follower, explain_parts)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="page-render")
        self._feeds: dict[str, PageChangeFeed] = {}
        self._look, self._asked = 1, 0.0
        self._following: asyncio.Task[None] | None = None
        self.closed = False

    def close(self) -> None:
        """Have the streams end soon."""
        self.closed = True

    async def feed(self, path: str) -> PageChangeFeed:
        """Return the newest parts of a path."""
        before, self._asked = self._asked, time.monotonic()
        if self._asked - before > IDLE_S:
            await self._read_world()
        if path not in self._feeds and len(self._feeds) >= FEEDS:
            self._feeds.clear()
        feed = self._feeds.setdefault(path, PageChangeFeed())
        async with feed.lock:
            look = self._look
            if feed.of != look:
                feed.take(await self._run_on_render_thread(lambda: self._renderer.page(path)), look)
        return feed

    async def document(self, path: str) -> str:
        """Return a whole page; empty where there is none."""
        feed = await self.feed(path)
        parts, version = feed.parts, feed.version
        return await self._run_on_render_thread(
            lambda: self._renderer.document(parts, path, version)
        ) * bool(parts)

    async def stream(self, path: str, since: int) -> AsyncIterator[str]:
        """Yield what changes at a path, as server-sent events, until it is time for another
        stream."""
        yield "retry: 500\n\n"
        end = time.monotonic() + STREAM_S
        while (left := end - time.monotonic()) > 0 and not self.closed:
            feed = await self.feed(path)
            changes = feed.since(since)
            if changes:
                since = feed.version
                yield f"id: {since}\ndata: {json.dumps(changes)}\n\n"
            if feed.of == self._look:
                if self._following is None or self._following.done():
                    self._following = asyncio.create_task(self._poll_status_until_changed())
                await asyncio.wait([self._following], timeout=left)

    async def _poll_status_until_changed(self) -> None:
        """Look again and again while anybody does, until there is news."""
        look = self._look
        while look == self._look and time.monotonic() - self._asked < IDLE_S and not self.closed:
            await asyncio.sleep(EVERY_S)
            await self._read_world()

    async def _read_world(self) -> None:
        self._look += await self._run_on_render_thread(self._look_at)

    async def _run_on_render_thread(self, do: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, do)


class HttpRequestGuard:
    """Check each request first: the method, the Host and the right to look; and every header."""

    def __init__(self, app: ASGIApp, access: StatusPageAccess) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or let the application do so."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await (self._make_refusal_response(HTTPConnection(scope)) or self._app)(
            scope, receive, send_with_headers
        )

    def _make_refusal_response(self, asked: HTTPConnection) -> Response | None:
        if asked.scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This page only shows.\n", 405, {"allow": "GET, HEAD"})
        if not self._access.is_allowed_host(asked.headers.get("host", "")):
            return PlainTextResponse(NOT_OURS, 421)
        shown = asked.headers.get("authorization", ""), asked.cookies.get(COOKIE, "")
        try:
            if asked.scope["path"].startswith("/enter/") or self._access.allows(*shown):
                return None
        except RequestRefusal as refusal:
            return PlainTextResponse(f"{refusal}\n{refusal.hint}\n", refusal.status)
        return PlainTextResponse(SIGN_IN, 401, {"www-authenticate": "Bearer"})


def make_status_page_application(hub: StatusPageStreamer, access: StatusPageAccess) -> ASGIApp:
    """Return the whole server's ASGI application."""

    async def serve_page(request: Request) -> Response:
        html = await hub.document(request.scope["path"])
        return (
            Response(html, 200, media_type="text/html")
            if html
            else PlainTextResponse(NOT_HERE, 404)
        )

    async def serve_event_stream(request: Request) -> Response:
        path, since = request.query_params.get("path", "/"), request.query_params.get("since", "")
        known = parse_count(request.headers.get("last-event-id", since))
        return StreamingResponse(hub.stream(path, known), media_type="text/event-stream")

    async def serve_login(request: Request) -> Response:
        session = access.enter(request.path_params["code"])
        if session is None:
            return PlainTextResponse(SIGN_IN, 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(COOKIE, session, SESSION_S, httponly=True, samesite="lax")
        return answer

    small = [Middleware(GZipMiddleware, compresslevel=5)]
    pages = ("/", "/jobs", "/history", "/explain/{target:path}")
    routes = [
        *(Route(path, serve_page, middleware=small) for path in pages),
        Route("/live", serve_event_stream),
        Route("/enter/{code}", serve_login),
        Mount("/static", StaticFiles(directory=Path(__file__).parent / "static")),
    ]
    return Starlette(routes=routes, middleware=[Middleware(HttpRequestGuard, access=access)])

"""uvicorn on a listening socket of ours, in a separate thread, within bounds for peers.

An accept filter precedes it: the server sees a connection once the head of its request is
whole. FreeBSD has one in its kernel (accf_http(9)), Linux has none. A peer that never finishes a
head costs a descriptor and the bytes that it sent; the transport, the parser and the tasks of a
connection, which take ten times the work, are made for those that ask something.

A connection is *waiting* until a request is whole, *busy* until it is answered, and *kept* between
the requests of a node that has proved itself. What waits is bounded in number, by address and in
all, in bytes, and in time; where there is no room the oldest that waits goes, so that a client that
sends a whole request at once, as agents and supervisors do, gets in while others sit on theirs.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Hashable
from functools import partial
from typing import Any, cast

import uvicorn
from msgspec import Struct
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.wire.systemd import get_systemd_passed_sockets

log = logging.getLogger(__name__)

ACCEPTS, EVERY_S = 4, 0.002
"""So many are taken at once, and then those that are open are heard again: two thousand a second at
most, which keeps a crowd that comes again and again from being all that there is to do."""
_END = b"\r\n\r\n"

Serve = Callable[[socket.socket, bytes], Awaitable[object]]
"""Takes a connection over, with what came on it. Raises OSError where it is gone."""


class PacedConnectionAcceptor:
    """Accepts at a pace, within the bounds of `Connections`. For the event loop alone."""

    def __init__(
        self, listener: socket.socket, connections: PeerConnectionTracker, serve: Serve
    ) -> None:
        self._listener, self._crowd, self._serve = listener, connections, serve
        self._loop = asyncio.get_running_loop()
        self._left = ACCEPTS
        self._held: dict[socket.socket, bytearray] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._resume_accepting_connections()

    def close(self) -> None:
        """Accept nothing further, and drop each peer that has not finished a head."""
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._listener)
        for client in [*self._held]:
            self._close_client_connection(client)

    def _resume_accepting_connections(self) -> None:
        self._left = ACCEPTS
        self._loop.add_reader(self._listener, self._accept_connections)

    def _accept_connections(self) -> None:
        while self._left:
            self._left -= 1
            try:
                client, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # gone already, or no descriptors for a moment
                log.debug("a connection was not taken: %s", error)
            else:
                self.take(client, str(address[0]) if address else "")
        self._loop.remove_reader(self._listener)
        self._paused = self._loop.call_later(EVERY_S, self._resume_accepting_connections)

    def take(self, client: socket.socket, address: str) -> None:
        """Hold a connection until its first head is here."""
        client.setblocking(False)
        peer = ConnectedPeer(address, partial(self._close_client_connection, client))
        self._held[client] = bytearray()
        self._crowd.made(peer)
        if client in self._held:
            self._loop.add_reader(client, self._read_request_head, client, peer)

    def _read_request_head(self, client: socket.socket, peer: ConnectedPeer) -> None:
        held = self._held[client]
        try:
            came = client.recv(MAX_HEAD)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            came = b""
        held += came
        self._crowd.holds(peer, len(came))
        if client not in self._held:
            return
        whole = held.find(_END, max(0, len(held) - len(came) - len(_END))) >= 0
        if came and not whole and len(held) <= MAX_HEAD:
            return
        self._crowd.lost(peer)
        if whole:
            del self._held[client]
            self._loop.remove_reader(client)
            task = self._loop.create_task(self._serve_accepted_connection(client, bytes(held)))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        else:
            self._close_client_connection(client)

    async def _serve_accepted_connection(self, client: socket.socket, came: bytes) -> None:
        try:
            await self._serve(client, came)
        except OSError as error:
            log.debug("a connection was not taken: %s", error)
            client.close()

    def _close_client_connection(self, client: socket.socket) -> None:
        if self._held.pop(client, None) is not None:
            self._loop.remove_reader(client)
            client.close()


BACKLOG = 2048
"""Connections that wait in the kernel."""
TICK_S = 0.25


def tune_garbage_collection() -> None:
    """Set Python's own clockwork for ten thousand connections beside a thread that computes.

    Reading, writing and waiting each give the interpreter away, and to get it back from another
    thread takes up to the switch interval: at Python's 5 ms, three times for each of a thousand
    heartbeats a second. A full garbage collection stops every thread for some tenths of a second
    where that many connections are open, and by default comes about once a minute: the young
    generations, which hold nearly all that is ever garbage, are collected as ever, the old one a
    hundred times less often.
    """
    sys.setswitchinterval(0.0002)
    gc.set_threshold(2_000, 20, 500)


class _ResponseHeadBufferingTransport:
    """A transport that keeps the head of an answer back until its body is there.

    uvicorn writes the two apart: two system calls, two packets, and twice the interpreter given
    away to a thread that computes.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send it, or keep it where it is the head of an answer."""
        if data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 100"):
            self._head += data
        else:
            head, self._head = self._head, b""
            self._transport.write(head + data)

    def flush(self) -> None:
        """Send the head of an answer that has no body."""
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Close after what was written."""
        self.flush()
        self._transport.close()


class _RequestLimitedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol on the C parser, within the bounds of `Connections`.

    A peer that sends more than MAX_HEAD bytes before a body, a second request before the first is
    answered, or a body that is not read, is dropped. Where the application has put a `node` into
    the scope's state, that node has proved itself.
    """

    def __init__(
        self, *args: Any, connections: PeerConnectionTracker, came: bytes = b"", **more: Any
    ) -> None:
        super().__init__(*args, **more)
        self._crowd = connections
        # What was read before the server saw the connection.
        self._first = came
        # Of the head: bytes that have come, and those of them that the parser has understood.
        self._come = self._parsed = 0
        self._in_head = True
        self._unread = self._ended = self._idle = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        plain = cast(asyncio.Transport, transport)
        self._joined = _ResponseHeadBufferingTransport(plain)
        super().connection_made(cast(asyncio.Transport, self._joined))
        self._peer = ConnectedPeer(self.client[0] if self.client else "", plain.abort)
        self._crowd.made(self._peer)
        first, self._first = self._first, b""
        if first and not plain.is_closing():
            self.data_received(first)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        self._crowd.lost(self._peer)

    def data_received(self, data: bytes) -> None:
        """Count what comes before the body, and what is held of it."""
        if self._idle:
            self._idle = False
            self._crowd.waits(self._peer)
        self._crowd.holds(self._peer, len(data))
        if self.transport.is_closing():
            return
        self._ended = False
        super().data_received(data)
        if self._in_head and not self._ended:
            self._come += len(data)
            if self._come > MAX_HEAD:
                self._joined.abort()

    def on_message_begin(self) -> None:
        """A request's first byte."""
        if self.cycle is not None and not self.cycle.response_complete:
            raise ValueError("a request before the last one is answered")
        super().on_message_begin()
        self._come = self._parsed = 0

    def on_url(self, url: bytes) -> None:
        """The request's target, or a part of it."""
        self._count_request_head_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One whole header."""
        self._count_request_head_bytes(len(name) + len(value))
        super().on_header(name, value)

    def _count_request_head_bytes(self, size: int) -> None:
        self._parsed += size
        if self._parsed > MAX_HEAD:
            raise ValueError("the head of the request is too large")

    def on_headers_complete(self) -> None:
        """The body begins, which the application bounds."""
        self._unread, self._in_head = True, False
        self._crowd.mark_request_head_received(self._peer)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is here."""
        self._unread, self._in_head, self._ended, self._come = False, True, True, 0
        self._crowd.whole(self._peer)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is whole, with a body or without."""
        self._joined.flush()
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._unread:
            # What is left of an unread body must not be taken for the next request.
            self.transport.close()
        elif node := self.cycle.scope["state"].get("node"):
            self._idle = True
            self._crowd.kept(self._peer, node)
        else:
            self._crowd.waits(self._peer)


def open_listening_socket(host: str, port: int) -> socket.socket:
    """Return the socket to listen on: systemd's, where it passes one, else a new one.

    Raises Unavailable where the address cannot be had, or systemd's is another.
    """
    for given in get_systemd_passed_sockets():
        if given.getsockname()[1] != port:
            raise ServiceUnavailable(
                f"systemd opened port {given.getsockname()[1]} for agents' reports, but "
                f"intake.listen in hpctl.yaml names port {port}",
                "Set the same port in both: systemctl edit hpctl-daemon.socket, or intake.listen",
            )
        return given
    # asyncio turns Nagle off only where the protocol is named: without it, each answer waits
    # 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ServiceUnavailable(
            f"the daemon cannot listen on {host}:{port} for agents' reports: {error.strerror}",
            "Check which program uses the port (ss -ltnp): another hpctl daemon may run",
        ) from error
    return listener


class UvicornServerThread:
    """uvicorn in a separate thread.

    `start` returns once connections are accepted, with the bound `port` known (0 asks for any);
    it raises Unavailable where the address cannot be had. `stop` is bounded to a few seconds.
    `tick` is called four times a second on the event loop, where it must not block.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str = "0.0.0.0",  # noqa: S104 - nodes must reach it; MUNGE decides who is accepted
        port: int = 0,
        bounds: ConnectionLimits | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self.host, self.port = host, port
        self.connections = PeerConnectionTracker(bounds or ConnectionLimits())
        self._tick = tick
        # A line in the log for each request that is none would be the peers' to write.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        config = uvicorn.Config(
            app,
            # The pure Python parser takes more time for a heartbeat than everything else does.
            http=cast(Any, partial(_RequestLimitedHttpProtocol, connections=self.connections)),
            ws="none",
            access_log=False,
            log_config=None,
            lifespan="off",
            # Longer than a heartbeat, so that an agent keeps its connection.
            timeout_keep_alive=30,
            timeout_graceful_shutdown=2,
            server_header=False,
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Return where a client on this host reaches it."""
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host  # noqa: S104
        return f"http://{host}:{self.port}"

    def start(self, timeout_s: float = 10.0, listener: socket.socket | None = None) -> None:
        """Listen, or take what listens already; serve, and wait until it does."""
        tune_garbage_collection()
        ours = listener or open_listening_socket(self.host, self.port)
        self.port = 0 if ours.family == socket.AF_UNIX else ours.getsockname()[1]
        ready = threading.Event()

        def run_server() -> None:
            try:
                asyncio.run(self._serve(ours, ready))
            finally:
                ready.set()
                ours.close()

        self._thread = threading.Thread(target=run_server, name="intake-http", daemon=True)
        self._thread.start()
        if not ready.wait(timeout_s) or not self._server.started:
            raise ServiceUnavailable(
                "the daemon's server for agents' reports (the intake) did not start on "
                f"{self.host}:{self.port}",
                "The log lines before this one say why.",
            )

    async def _serve(self, listener: socket.socket, ready: threading.Event) -> None:
        serving = asyncio.create_task(self._server.serve(sockets=[]))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.005)
        accepting = PacedConnectionAcceptor(
            listener, self.connections, self._pass_connection_to_uvicorn
        )
        ready.set()
        while not serving.done():
            self.connections.sweep()
            self._tick()
            if self._server.should_exit:
                accepting.close()
            await asyncio.wait([serving], timeout=TICK_S)
        accepting.close()
        await serving
        # uvicorn does not look after those that came while it shut down.
        for late in [*self._server.server_state.connections]:
            cast(Any, late).transport.abort()
        await asyncio.sleep(0)

    async def _pass_connection_to_uvicorn(self, client: socket.socket, came: bytes) -> None:
        """Serve a connection on which something has come. Raises OSError."""
        server = self._server
        make = partial(
            cast(Any, server.config.http_protocol_class),
            config=server.config,
            server_state=server.server_state,
            app_state=server.lifespan.state,
            came=came,
        )
        await asyncio.get_running_loop().connect_accepted_socket(make, client)

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop accepting, let answers in flight finish, and join the thread."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._server.force_exit = True
                self._thread.join(1.0)
            self._thread = None


MAX_HEAD = 16 * 1024
"""Bytes of a request before its body."""
HEAD_S = 5.0
"""From the first byte, or the connection, to the end of the head."""
REQUEST_S = 30.0
"""From the head to the end of the answer, as slowly as it may be read."""
RESERVED = 48
"""Descriptors that no connection may have: munged, the channel to the daemon, the resolver."""


class ConnectionLimits(Struct, frozen=True):
    """How many connections, and how much of unproved requests, are kept in memory."""

    in_all: int = 16_384
    waiting: int = 512
    waiting_of_address: int = 64
    busy_of_address: int = 256
    oldest_busy_goes: bool = False
    """Whether the oldest request that is answered makes room for a new one, of its address or where
    there are too many in all: it is a stream or a reader that takes its time. False: the new one is
    dropped."""
    kept_of_node: int = 4
    waiting_bytes: int = 32 * 1024 * 1024


class ConnectedPeer:
    """One connection. `drop` ends it at once and leads to `Connections.lost`."""

    def __init__(self, address: str, drop: Callable[[], None]) -> None:
        self.address, self.drop = address, drop
        self.until = math.inf
        self.held = 0
        self.node: str = ""
        """Whose it is, once proved."""
        self.group: Hashable = None
        """What it is at present, and of whom: its bound is that of this group."""


class PeerConnectionTracker:
    """All connections of one intake."""

    def __init__(
        self, bounds: ConnectionLimits, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._bounds, self._monotonic = bounds, monotonic
        self._all: dict[ConnectedPeer, None] = {}
        self._waiting: dict[ConnectedPeer, None] = {}
        self._groups: dict[Hashable, dict[ConnectedPeer, None]] = {}
        self._bytes = 0
        self.dropped = 0
        """How many were ended for want of room or time."""

    def __len__(self) -> int:
        return len(self._all)

    def made(self, peer: ConnectedPeer) -> None:
        """A peer has connected; it, or an older one that waits, is dropped where room is out."""
        self._all[peer] = None
        bounds = self._bounds
        crowded = self._find_oldest_peer_over_limit(
            ("waiting", peer.address), bounds.waiting_of_address
        )
        if crowded is not None:
            self._drop_peer(crowded)
        elif len(self._waiting) >= bounds.waiting or len(self._all) > bounds.in_all:
            self._drop_peer(self._choose_peer_to_drop(peer))
        if peer in self._all:
            self.waits(peer)

    def _choose_peer_to_drop(self, newest: ConnectedPeer) -> ConnectedPeer:
        """Return which peer is dropped where there are too many in all, or too many that wait."""
        bounds, has_room = self._bounds, len(self._waiting) < self._bounds.waiting
        if bounds.oldest_busy_goes and has_room and len(self._all) > bounds.in_all:
            busy = (peer for peer in self._all if peer not in self._waiting)
            return next(busy, newest)
        return next(iter(self._waiting), newest)

    def lost(self, peer: ConnectedPeer) -> None:
        """Forget a connection that is over, whichever side ended it."""
        self._all.pop(peer, None)
        self._remove_peer_from_limit_groups(peer)

    def waits(self, peer: ConnectedPeer) -> None:
        """A request is expected, or has begun: its head must be here in time."""
        self._remove_peer_from_limit_groups(peer)
        peer.until = self._monotonic() + HEAD_S
        if not peer.node:
            self._waiting[peer] = None
            self._add_peer_to_limit_group(peer, "waiting", peer.address)
        else:
            self._add_peer_to_limit_group(peer, "kept", peer.node)

    def holds(self, peer: ConnectedPeer, size: int) -> None:
        """Count so many bytes of a request in memory, whose sender has not proved itself."""
        if peer not in self._waiting:
            return
        peer.held += size
        self._bytes += size
        while self._bytes > self._bounds.waiting_bytes and self._waiting:
            self._drop_peer(next(iter(self._waiting)))

    def mark_request_head_received(self, peer: ConnectedPeer) -> None:
        """The body is next, which the application bounds in size and time."""
        peer.until = self._monotonic() + REQUEST_S

    def whole(self, peer: ConnectedPeer) -> None:
        """The request is here; no peer is dropped while it is handled."""
        self._remove_peer_from_limit_groups(peer)
        peer.until = self._monotonic() + REQUEST_S
        crowded = self._find_oldest_peer_over_limit(
            ("busy", peer.address), self._bounds.busy_of_address
        )
        if crowded is not None:
            self._drop_peer(crowded if self._bounds.oldest_busy_goes else peer)
        if peer in self._all:
            self._add_peer_to_limit_group(peer, "busy", peer.address)

    def kept(self, peer: ConnectedPeer, node: str) -> None:
        """A node has proved itself and is answered: its connection is kept, its oldest goes."""
        self._remove_peer_from_limit_groups(peer)
        peer.node, peer.until = node, math.inf
        crowded = self._find_oldest_peer_over_limit(("kept", node), self._bounds.kept_of_node)
        if crowded:
            self._drop_peer(crowded)
        self._add_peer_to_limit_group(peer, "kept", node)

    def sweep(self) -> None:
        """Drop each peer that is out of time. To be called once a second or so."""
        now = self._monotonic()
        for peer in [peer for peer in self._all if peer.until < now]:
            self._drop_peer(peer)

    def _drop_peer(self, peer: ConnectedPeer) -> None:
        self.dropped += 1
        self.lost(peer)
        peer.drop()

    def _add_peer_to_limit_group(self, peer: ConnectedPeer, what: str, whose: str) -> None:
        peer.group = (what, whose)
        self._groups.setdefault(peer.group, {})[peer] = None

    def _find_oldest_peer_over_limit(self, group: Hashable, most: int) -> ConnectedPeer | None:
        """Return the oldest of a group that has `most` or more."""
        peers = self._groups.get(group, {})
        return next(iter(peers)) if len(peers) >= most else None

    def _remove_peer_from_limit_groups(self, peer: ConnectedPeer) -> None:
        """It is no longer what it was."""
        self._waiting.pop(peer, None)
        peers = self._groups.get(peer.group, {})
        peers.pop(peer, None)
        if not peers:
            self._groups.pop(peer.group, None)
        self._bytes -= peer.held
        peer.held = 0

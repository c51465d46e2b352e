"""uvicorn on a listening socket of ours, in a thread of its own."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys
import threading
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hpctl.ports import Unavailable

MAX_HEAD = 64 * 1024
"""Bytes of a request before its body; httptools itself would keep any number of headers."""


def tune_interpreter() -> None:
    """Set Python's own clockwork for ten thousand connections beside a thread that computes.

    Reading, writing and waiting each give the interpreter away, and to get it back from the loop's
    thread takes up to the switch interval: at Python's 5 ms, three times for each of a thousand
    heartbeats a second, they would wait for as long as the loop reads Slurm. A full garbage
    collection stops every thread for some tenths of a second where that many connections are open,
    and by default comes about once a minute: the young generations, which hold nearly all that is
    ever garbage, are collected as ever, the old one a hundred times less often.
    """
    sys.setswitchinterval(0.0002)
    gc.set_threshold(2_000, 20, 500)


class _Joined:
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


class _Bounded(HttpToolsProtocol):
    """uvicorn's protocol on the C parser, which drops a client whose headers never end."""

    _head = 0
    _in_head = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._joined = _Joined(cast(asyncio.Transport, transport))
        super().connection_made(cast(asyncio.Transport, self._joined))

    def data_received(self, data: bytes) -> None:
        """Count what comes before the body."""
        super().data_received(data)
        if self._in_head:
            self._head += len(data)
            if self._head > MAX_HEAD:
                self.transport.close()

    def on_message_begin(self) -> None:
        """A request's first byte."""
        super().on_message_begin()
        self._in_head = True

    def on_response_complete(self) -> None:
        """The answer is whole, with a body or without."""
        self._joined.flush()
        super().on_response_complete()

    def on_headers_complete(self) -> None:
        """The body begins, which the application bounds."""
        super().on_headers_complete()
        self._in_head, self._head = False, 0


class IntakeServer:
    """uvicorn in a thread of its own.

    `start` returns once connections are accepted, with the bound `port` known (0 asks for any);
    it raises Unavailable where the address cannot be had. `stop` is bounded to a few seconds.
    """

    def __init__(self, app: ASGIApp, host: str = "0.0.0.0", port: int = 0) -> None:  # noqa: S104 - nodes must reach it; MUNGE decides who is believed
        self.host, self.port = host, port
        config = uvicorn.Config(
            app,
            # The pure Python parser takes more time for a heartbeat than everything else does.
            http=_Bounded,
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
        """Where a client on this host reaches it."""
        host = "127.0.0.1" if self.host == "0.0.0.0" else self.host  # noqa: S104
        return f"http://{host}:{self.port}"

    def start(self, timeout_s: float = 10.0) -> None:
        """Bind, serve, and wait until it does."""
        tune_interpreter()
        # asyncio turns Nagle off only where the protocol is named: without it, each answer waits
        # 40 ms for the client's delayed acknowledgement.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((self.host, self.port))
        except OSError as error:
            listener.close()
            raise Unavailable(
                f"the intake cannot listen on {self.host}:{self.port}: {error.strerror}",
                "Is another hpctl daemon running? Look with: ss -ltnp",
            ) from error
        self.port = listener.getsockname()[1]
        ready = threading.Event()

        def serve() -> None:
            try:
                asyncio.run(self._serve(listener, ready))
            finally:
                ready.set()
                listener.close()

        self._thread = threading.Thread(target=serve, name="intake-http", daemon=True)
        self._thread.start()
        if not ready.wait(timeout_s) or not self._server.started:
            raise Unavailable(f"the intake did not start on {self.host}:{self.port}")

    async def _serve(self, listener: socket.socket, ready: threading.Event) -> None:
        serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started and not serving.done():
            await asyncio.sleep(0.005)
        ready.set()
        await serving

    def stop(self, timeout_s: float = 5.0) -> None:
        """Stop accepting, let answers in flight finish, and join the thread."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._server.force_exit = True
                self._thread.join(1.0)
            self._thread = None

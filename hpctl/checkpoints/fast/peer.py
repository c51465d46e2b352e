"""Requests between the helpers of one job: a message each way, and the sealed bytes of files.

Each helper listens on a port of a range that follows from the job's secret; its TLS identity names
its host. `hpctl.wire.job_channel` authenticates and encrypts. A port on which a program of another
user listens counts as closed: the next one is tried, and at the same time, so that a silent one
costs no time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import FileIO
from typing import Any, BinaryIO, TypeAlias

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import MsgspecError, Struct
from xxhash import xxh3_64

from hpctl.checkpoints.fast.spec import FastCheckpointSaveSpec
from hpctl.toolkit.token_bucket import TokenBucket
from hpctl.wire.admission import HandshakeLimiter, create_signed_peer_name
from hpctl.wire.job_channel import PIECE, JobChannel, JobChannelError
from hpctl.wire.job_identity import create_client_tls_context, create_server_tls_context
from hpctl.wire.job_ports import PORTS, choose_rendezvous_port

HANDSHAKE_S = 5.0
ANSWER_S = 60.0
PING_S = 5.0
"""A helper that does not answer a ping for so long is left out until it does."""
STAGGER_S = 0.1
"""Time after which the next port is tried in parallel with one that has not answered."""
_QUICK = "ping", "changed", "bye"
DEAD_S = 10
"""A node without power closes no connection: keepalive probes are sent, and the connection is
dropped after this."""
LAST_ANSWERS_S = 2.0
"""How long a helper that ends still answers pending requests."""
ACCEPT_PAUSE_S = 0.05
"""Wait before the next accept where one failed for lack of descriptors or memory."""
_LINE = 64 << 20
"""Bytes of the longest answer: 300,000 files."""
_PROVEN = 256
"""Connections of this job's own helpers, and four more for each of its hosts."""
_KEY_BITS = 256
_BACKLOG = 1024
"""Connections that wait in the kernel: where it has no room, a peer waits for a second."""

Answer: TypeAlias = "dict[str, Any] | FileAnswerBody"
Handler: TypeAlias = Callable[[dict[str, Any]], Answer]


class FileAnswerBody:
    """An answer that consists of bytes: of a file, which is closed afterwards, or of memory.

    `digest` is the expected digest of the file, where known: a disk may have damaged it since.
    """

    def __init__(
        self, content: BinaryIO | bytes, size: int | None = None, digest: int | None = None
    ) -> None:
        self.content, self.digest = content, digest
        self.size = len(content) if isinstance(content, bytes) else size or 0

    def send(self, send_piece: Callable[[memoryview], None]) -> int:
        """Send all of it and return its digest. Raises OSError, and PeerError where the file ends
        too early."""
        digest = xxh3_64()
        if isinstance(self.content, bytes):
            whole = memoryview(self.content)
            for at in range(0, self.size, PIECE):
                send_piece(whole[at : at + PIECE])
            digest.update(self.content)
            return digest.intdigest()
        with self.content as file:
            buffer = memoryview(bytearray(min(self.size, PIECE)))
            for at in range(0, self.size, PIECE):
                piece = buffer[: self.size - at]
                _read_into_buffer(file.fileno(), piece, at)
                digest.update(piece)
                send_piece(piece)
        return digest.intdigest()


class PeerError(OSError):
    """An error of a helper that does not answer, is not of this job, or refused."""


class NoHelperListeningError(PeerError):
    """An error of a host where no helper runs: its node has refused every port immediately."""


class PeerServer:
    """The server that answers this job's helpers on threads, as the helper of `host`.

    `handler` may raise OSError and ValueError.
    """

    def __init__(self, spec: FastCheckpointSaveSpec, host: str, handler: Handler) -> None:
        self._handler = handler
        self._context = create_server_tls_context(
            spec.secret, _make_server_name(spec, host), _CLIENT
        )
        self._unproven = HandshakeLimiter(spec.secret, len(spec.hosts))
        self._proven = threading.BoundedSemaphore(_PROVEN + 4 * len(spec.hosts))
        self._answering = 0
        self._idle = threading.Condition()
        self._closed = False
        self._socket = open_helper_listener(spec.address(host), list_helper_ports(spec))
        threading.Thread(target=self._accept_connections, daemon=True).start()

    def close(self) -> None:
        """Accept no further connections, and let pending answers end: the process may exit
        immediately afterwards. Blocks for LAST_ANSWERS_S at most."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # a thread that waits in accept() returns
        self._socket.close()
        with self._idle:
            self._idle.wait_for(lambda: not self._answering, LAST_ANSWERS_S)

    def _accept_connections(self) -> None:
        while not self._closed:
            try:
                connection, address = self._socket.accept()
            except OSError:
                # Out of descriptors or memory, or the peer is already gone: the next connection may
                # work.
                self._unproven.drop_oldest_connection()
                time.sleep(ACCEPT_PAUSE_S)
                continue
            try:
                self._unproven.admit(connection, str(address[0]))
                threading.Thread(
                    target=self._serve_connection, args=(connection,), daemon=True
                ).start()
            except (OSError, RuntimeError):  # it is gone, or no thread can be made now
                self._close_unauthenticated_connection(connection)
                time.sleep(ACCEPT_PAUSE_S)

    def _close_unauthenticated_connection(self, connection: socket.socket) -> None:
        self._unproven.release(connection)
        connection.close()

    def _serve_connection(self, connection: socket.socket) -> None:
        try:
            # An unknown or vanished peer affects only its connection.
            with suppress(OSError, ValueError):
                _enable_tcp_keepalive(connection)
                connection.settimeout(HANDSHAKE_S)
                connection.recv(1, socket.MSG_PEEK)
                self._unproven.hear(connection)
                channel = JobChannel(
                    connection,
                    self._context,
                    seconds=HANDSHAKE_S,
                    on_proven=lambda: self._unproven.release(connection),
                )
                self._answer_requests(channel)
        finally:
            self._close_unauthenticated_connection(connection)

    def _answer_requests(self, channel: JobChannel) -> None:
        """Answer a proven peer until it closes its connection."""
        if not self._proven.acquire(blocking=False):
            return
        try:
            while True:
                request = channel.receive(_LINE)
                self._change_active_count(1)
                try:
                    self._answer_request(channel, request)
                finally:
                    self._change_active_count(-1)
        finally:
            self._proven.release()

    def _change_active_count(self, more: int) -> None:
        """Count one more, or one less, request that is being answered."""
        with self._idle:
            self._answering += more
            self._idle.notify_all()

    def _answer_request(self, channel: JobChannel, request: dict[str, Any]) -> None:
        try:
            answer = self._handler(request)
        except (OSError, ValueError, KeyError, TypeError, MsgspecError) as error:
            channel.send({"error": str(getattr(error, "strerror", None) or error)})
            return
        if isinstance(answer, dict):
            channel.send(answer)
            return
        key = AESGCM.generate_key(_KEY_BITS)
        channel.send({"size": answer.size, "key": key.hex()})
        digest = answer.send(channel.create_encrypted_body_sender(key))
        if answer.digest not in (None, digest):
            channel.send({"error": "the disk has damaged it"})
        else:
            channel.send({"digest": digest})


_BURST_S = 0.05
"""The burst that may pass without a wait, as a time at the full rate."""


class TransferRateLimiter:
    """A limiter that sleeps, so that at most `rate` bytes a second pass on average."""

    def __init__(self, rate: int) -> None:
        self._bytes = TokenBucket(rate * _BURST_S, rate)

    def __call__(self, count: int) -> None:
        """Count `count` bytes that have come."""
        now = time.monotonic()
        self._bytes.spend(now, count)
        wait_s = self._bytes.wait_s(now, 0)
        if wait_s:
            time.sleep(wait_s)


class PeerConnection:
    """One connection to the helper of `host`, one request at a time. Safe to use from several
    threads."""

    def __init__(
        self, spec: FastCheckpointSaveSpec, host: str, connect_s: float = HANDSHAKE_S
    ) -> None:
        self._lock = threading.Lock()
        self._channel = _HelperPortSearch(spec, host, connect_s).run()
        self._channel.set_timeout(ANSWER_S)

    def ask(self, what: str, **given: Any) -> dict[str, Any]:
        """Send a request and return its answer. Raises PeerError."""
        with self._lock:
            return self._exchange_request(what, given)

    def read(self, what: str, **given: Any) -> bytes:
        """Send a request and return the bytes that the helper sends. Raises PeerError."""
        content = bytearray()
        self.receive_file(content.extend, lambda _: None, what, **given)
        return bytes(content)

    def receive_file(
        self,
        write: Callable[[memoryview], object],
        pace: Callable[[int], None],
        what: str,
        **given: Any,
    ) -> int:
        """Pass the file that the helper sends to `write`, in page-aligned pieces; return its
        digest.

        Raises PeerError, and what `write` does.
        """
        with self._lock:
            head = self._exchange_request(what, given)
            for piece in self._receive_body(head):
                write(piece)
                pace(len(piece))
            answer = self._receive_answer()
            if "error" in answer:
                raise PeerError(str(answer["error"]))
            return int(answer["digest"])

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def _exchange_request(self, what: str, given: dict[str, Any]) -> dict[str, Any]:
        self._channel.set_timeout(PING_S if what in _QUICK else ANSWER_S)
        try:
            self._channel.send({"do": what, **given})
        except JobChannelError as error:
            raise PeerError(str(error)) from error
        answer = self._receive_answer()
        if "error" in answer:
            raise PeerError(str(answer["error"]))
        return answer

    def _receive_answer(self) -> dict[str, Any]:
        try:
            return self._channel.receive(_LINE)
        except JobChannelError as error:
            raise PeerError(str(error)) from error

    def _receive_body(self, head: dict[str, Any]) -> Iterator[memoryview]:
        key, size = bytes.fromhex(str(head["key"])), int(head["size"])
        pieces = self._channel.receive_encrypted_body(key, size)
        while True:
            # What `write` raises passes through: only an error of the channel is the peer's.
            try:
                piece = next(pieces, None)
            except JobChannelError as error:
                raise PeerError(f"lost within a file: {error}") from error
            if piece is None:
                return
            yield piece


class _PortConnectResult(Struct):
    """The result of one port: a channel, an error, or neither where the port is closed."""

    channel: JobChannel | None = None
    error: OSError | None = None
    fatal: bool = False


class _HelperPortSearch:
    """A search for the port on which the helper of a host listens.

    The ports are tried in order, the next as soon as one is closed or has been silent for
    STAGGER_S; the first that authenticates counts, and the other connections are closed.
    """

    def __init__(self, spec: FastCheckpointSaveSpec, host: str, connect_s: float) -> None:
        self._address, self._connect_s = spec.address(host), connect_s
        self._ports = list_helper_ports(spec)
        self._secret = spec.secret
        self._context = create_peer_tls_context(spec, host)
        self._done = threading.Lock()
        self._over = False
        self._came: queue.Queue[_PortConnectResult] = queue.Queue()
        self._running = 0
        self._why: OSError | None = None

    def run(self) -> JobChannel:
        """Return the connection. Raises PeerError; NoHelperListeningError where every port is
        closed."""
        try:
            channel = self._find_channel()
        except RuntimeError as error:  # no thread can be made now
            raise PeerError(f"{self._address}: {error}") from error
        finally:
            self._close_attempts()
        if channel is not None:
            return channel
        if self._why is None:
            raise NoHelperListeningError(f"{self._address}: no process answers")
        raise PeerError(f"{self._address}: {self._why}") from self._why

    def _find_channel(self) -> JobChannel | None:
        for port in self._ports:
            threading.Thread(
                target=self._try_port_and_queue_result, args=(port,), daemon=True
            ).start()
            self._running += 1
            attempt = self._await_finished_connect_attempt(STAGGER_S)
            if attempt is not None and (attempt.channel is not None or attempt.fatal):
                return attempt.channel
        while self._running:
            attempt = self._await_finished_connect_attempt(None)
            if attempt is not None and attempt.channel is not None:
                return attempt.channel
        return None

    def _await_finished_connect_attempt(self, seconds: float | None) -> _PortConnectResult | None:
        """Return the next attempt that ended, None where none does in so many seconds. Each ends
        within twice `connect_s`."""
        try:
            attempt = self._came.get(timeout=seconds)
        except queue.Empty:
            return None
        self._running -= 1
        self._why = attempt.error or self._why
        return attempt

    def _close_attempts(self) -> None:
        """Close connections that authenticate from now on, and those that have done so
        unnoticed."""
        with self._done:
            self._over = True
        while not self._came.empty():
            attempt = self._came.get()
            if attempt.channel is not None:
                attempt.channel.close()

    def _try_port_and_queue_result(self, port: int) -> None:
        try:
            attempt = self._connect_and_authenticate_port(port)
        except (
            ValueError,
            MemoryError,
            RuntimeError,
        ) as error:  # `_await_finished_connect_attempt` waits for each attempt
            attempt = _PortConnectResult(
                error=PeerError(f"{type(error).__name__}: {error}"), fatal=True
            )
        with self._done:
            if not self._over:
                self._came.put(attempt)
                return
        if attempt.channel is not None:
            attempt.channel.close()

    def _connect_and_authenticate_port(self, port: int) -> _PortConnectResult:
        try:
            connection = socket.create_connection((self._address, port), timeout=self._connect_s)
        except ConnectionRefusedError:
            return _PortConnectResult()
        except OSError as error:
            return _PortConnectResult(error=error, fatal=True)
        try:
            _enable_tcp_keepalive(connection)
            channel = JobChannel(
                connection,
                self._context,
                seconds=self._connect_s,
                peer_name=create_signed_peer_name(self._secret),
            )
        except OSError as error:
            connection.close()
            return _PortConnectResult(error=error)
        return _PortConnectResult(channel)


_CLIENT = "fast saves: helper or start"


def _make_server_name(spec: FastCheckpointSaveSpec, host: str) -> str:
    return f"fast saves: helper of job {spec.job} on {host}"


def create_peer_tls_context(spec: FastCheckpointSaveSpec, host: str) -> ssl.SSLContext:
    """Return the TLS context with which a helper or a start connects to the helper of `host`."""
    return create_client_tls_context(spec.secret, _CLIENT, _make_server_name(spec, host))


def _read_into_buffer(descriptor: int, buffer: memoryview, at: int) -> None:
    """Fill the buffer from a place in a file. Raises PeerError where the file ends before."""
    while buffer:
        count = os.preadv(descriptor, [buffer], at)
        if not count:
            raise PeerError("the file has become shorter")
        buffer = buffer[count:]
        at += count


def _enable_tcp_keepalive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, 2),
        (socket.TCP_KEEPINTVL, 2),
        (socket.TCP_KEEPCNT, DEAD_S // 2),
        (socket.TCP_USER_TIMEOUT, 1000 * DEAD_S),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def open_helper_listener(address: str, ports: Iterator[int]) -> socket.socket:
    """Return a listener on the first free port. Raises PeerError where none is free."""
    last: OSError | None = None
    for port in ports:
        for bound in (address, ""):
            made = socket.socket()
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                made.bind((bound, port))
                made.listen(_BACKLOG)
                return made
            except OSError as error:
                made.close()
                last = error
                if error.errno != errno.EADDRNOTAVAIL:  # behind an address not the host's own
                    break
    raise PeerError(f"no port is free on {address}: {last}")


def list_helper_ports(spec: FastCheckpointSaveSpec) -> Iterator[int]:
    """Yield the ports of a helper of this job, in the order in which they are tried."""
    first = choose_rendezvous_port(spec.secret, f"fast {spec.job}")
    return iter(range(first, first + PORTS))


def write_all_bytes_to_file(target: FileIO, piece: memoryview) -> None:
    """Write all of it. O_DIRECT takes only whole blocks: the last one is written through the page
    cache."""
    while piece:
        try:
            piece = piece[target.write(piece) :]
        except OSError as error:
            flags = fcntl.fcntl(target, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                raise
            fcntl.fcntl(target, fcntl.F_SETFL, flags & ~os.O_DIRECT)

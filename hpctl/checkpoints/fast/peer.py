"""Requests between the helpers of one job, on TCP: a line of JSON each way, and a file's bytes.

Who connects proves that it knows the job's secret, by an HMAC over both sides' nonces, and so does
who answers. The secret is in a file of the job's owner alone, so that another user can neither read
nor write. Where no helper answers on a port that the secret gives, the next is tried: another
job's may have it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
import mmap
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from io import FileIO
from typing import Any, BinaryIO, TypeAlias

from msgspec import MsgspecError
from xxhash import xxh3_64

from hpctl.toolkit.token_bucket import TokenBucket
from hpctl.wire.job_ports import PORTS, first_port

HANDSHAKE_S = 5.0
ANSWER_S = 60.0
PING_S = 5.0
"""A helper that does not answer a ping for so long is left out until it does."""
_SILENT = 3
"""Ports of others that say nothing, after which no further one is tried."""
_QUICK = "ping", "changed", "bye"
DEAD_S = 10
"""A node without power closes no connection: its kernel is asked, and given up after this."""
LAST_ANSWERS_S = 2.0
"""How long a helper that ends still answers what it was asked."""
PIECE = 1 << 20
_LINE = 64 << 20
"""Bytes of the longest answer: 300,000 files."""
_AT_ONCE = 256
"""Connections of one helper. More are turned away."""

Answer: TypeAlias = "dict[str, Any] | Body"
Handler: TypeAlias = Callable[[dict[str, Any]], Answer]


class Body:
    """An answer that is bytes: of a file, which is closed after, or of memory.

    `digest` is what the file's must be, where it is known: a disk may have damaged it since.
    """

    def __init__(
        self, content: BinaryIO | bytes, size: int | None = None, digest: int | None = None
    ) -> None:
        self.content, self.digest = content, digest
        self.size = len(content) if isinstance(content, bytes) else size or 0

    def send(self, connection: socket.socket) -> int:
        """All of it; its digest. Raises OSError, and PeerError where the file ends too early."""
        if isinstance(self.content, bytes):
            connection.sendall(self.content)
            return xxh3_64(self.content).intdigest()
        digest, at = xxh3_64(), 0
        with self.content as file:
            buffer = memoryview(bytearray(min(self.size, PIECE)))
            while at < self.size:
                piece = buffer[: os.preadv(file.fileno(), [buffer[: self.size - at]], at)]
                digest.update(piece)
                end = at + len(piece)
                while at < end:  # what is in the page cache goes out without another copy
                    if not (sent := os.sendfile(connection.fileno(), file.fileno(), at, end - at)):
                        break
                    at += sent
                if not piece or at < end:
                    raise PeerError("the file has become shorter")
        return digest.intdigest()


class PeerError(OSError):
    """A helper does not answer, is none of this job's, or refused."""


class NobodyListens(PeerError):
    """No helper runs there: its node has refused every port at once."""


class Server:
    """Answers this job's helpers on threads. `handler` may raise OSError and ValueError."""

    def __init__(self, secret: str, job: str, address: str, handler: Handler) -> None:
        self._secret, self._handler = secret, handler
        self._room = threading.BoundedSemaphore(_AT_ONCE)
        self._answering = 0
        self._idle = threading.Condition()
        self._socket = _listen(address, _ports(secret, job))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more, after what is being answered: the process may end at once. Blocks
        for LAST_ANSWERS_S at most."""
        self._socket.close()
        with self._idle:
            self._idle.wait_for(lambda: not self._answering, LAST_ANSWERS_S)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            # A stranger, or a peer that is gone, costs its connection alone.
            with suppress(OSError, ValueError), closing(connection):
                connection.settimeout(HANDSHAKE_S)
                _keep_alive(connection)
                with connection.makefile("rb") as lines:
                    ours = secrets.token_hex(16)
                    _send(connection, {"nonce": ours})
                    hello = _receive(lines, 4096)
                    theirs = str(hello.get("nonce"))
                    wanted = _proof(self._secret, "client", ours, theirs)
                    if not hmac.compare_digest(str(hello.get("proof")).encode(), wanted.encode()):
                        return
                    _send(connection, {"proof": _proof(self._secret, "server", theirs, ours)})
                    connection.settimeout(None)
                    while True:
                        request = _receive(lines, _LINE)
                        self._count(1)
                        try:
                            self._answer(connection, request)
                        finally:
                            self._count(-1)
        finally:
            self._room.release()

    def _count(self, more: int) -> None:
        """One request more, or one less, is being answered."""
        with self._idle:
            self._answering += more
            self._idle.notify_all()

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> None:
        try:
            answer = self._handler(request)
        except (OSError, ValueError, KeyError, TypeError, MsgspecError) as error:
            _send(connection, {"error": str(getattr(error, "strerror", None) or error)})
            return
        if isinstance(answer, dict):
            _send(connection, answer)
            return
        _send(connection, {"size": answer.size})
        digest = answer.send(connection)
        if answer.digest not in (None, digest):
            _send(connection, {"error": "the disk has damaged it"})
        else:
            _send(connection, {"digest": digest})


_BURST_S = 0.05
"""Bytes that may pass at once, as a time at the full rate."""


class TransferLimit:
    """Sleeps, so that no more than `rate` bytes a second pass on average."""

    def __init__(self, rate: int) -> None:
        self._bytes = TokenBucket(rate * _BURST_S, rate)

    def __call__(self, count: int) -> None:
        """Count `count` bytes that have come."""
        now = time.monotonic()
        self._bytes.spend(now, count)
        wait_s = self._bytes.wait_s(now, 0)
        if wait_s:
            time.sleep(wait_s)


class Peer:
    """One connection to a helper, one request at a time. Safe to use from several threads."""

    def __init__(self, secret: str, job: str, address: str, connect_s: float = HANDSHAKE_S) -> None:
        self._lock = threading.Lock()
        self._socket, self._lines = _connect(secret, job, address, connect_s)

    def ask(self, what: str, **given: Any) -> dict[str, Any]:
        """Its answer. Raises PeerError."""
        with self._lock:
            return self._ask(what, given)

    def read(self, what: str, **given: Any) -> bytes:
        """The bytes that it sends. Raises PeerError."""
        content = bytearray()
        self.pull(content.extend, lambda _: None, what, **given)
        return bytes(content)

    def pull(
        self,
        write: Callable[[memoryview], object],
        pace: Callable[[int], None],
        what: str,
        **given: Any,
    ) -> int:
        """Hand the file that it sends to `write`, in page-aligned pieces; its digest.

        Raises PeerError, and what `write` does.
        """
        with self._lock:
            size, digest = int(self._ask(what, given)["size"]), xxh3_64()
            for piece in _pieces(self._lines, size):
                digest.update(piece)
                write(piece)
                pace(len(piece))
            answer = _receive(self._lines, 4096)
            if "error" in answer:
                raise PeerError(str(answer["error"]))
            if answer.get("digest") != digest.intdigest():
                raise PeerError("the file was damaged on its way")
            return digest.intdigest()

    def close(self) -> None:
        """End the connection."""
        with suppress(OSError):
            self._lines.close()
            self._socket.close()

    def _ask(self, what: str, given: dict[str, Any]) -> dict[str, Any]:
        try:
            self._socket.settimeout(PING_S if what in _QUICK else ANSWER_S)
            _send(self._socket, {"do": what, **given})
            answer = _receive(self._lines, _LINE)
        except (OSError, ValueError) as error:
            raise PeerError(str(error)) from error
        if "error" in answer:
            raise PeerError(str(answer["error"]))
        return answer


def _pieces(source: BinaryIO, size: int) -> Iterator[memoryview]:
    """So many bytes, in one buffer that is filled again and again. Raises PeerError."""
    buffer = memoryview(mmap.mmap(-1, min(size, PIECE) or 1))
    while size:
        try:
            count = source.readinto(buffer[: min(size, PIECE)])  # type: ignore[attr-defined]
        except OSError as error:
            raise PeerError(f"lost within a file: {error}") from error
        if not count:
            raise PeerError("lost within a file")
        yield buffer[:count]
        size -= count


def _connect(
    secret: str, job: str, address: str, connect_s: float
) -> tuple[socket.socket, BinaryIO]:
    why = ""
    deadline = time.monotonic() + _SILENT * connect_s
    for port in _ports(secret, job):
        if time.monotonic() >= deadline:
            break
        try:
            connection = socket.create_connection((address, port), timeout=connect_s)
        except ConnectionRefusedError:
            continue
        except OSError as error:
            raise PeerError(f"{address}: {error}") from error
        lines = connection.makefile("rb")
        try:
            theirs = str(_receive(lines, 4096).get("nonce"))
            ours = secrets.token_hex(16)
            proof = _proof(secret, "client", theirs, ours)
            _send(connection, {"nonce": ours, "proof": proof})
            answer = str(_receive(lines, 4096).get("proof"))
            if hmac.compare_digest(
                answer.encode(), _proof(secret, "server", ours, theirs).encode()
            ):
                connection.settimeout(ANSWER_S)
                _keep_alive(connection)
                return connection, lines
            why = "the other side does not know the secret"
        except (OSError, ValueError) as error:
            why = str(error)
        lines.close()
        connection.close()
    if not why:
        raise NobodyListens(f"{address}: nobody answers")
    raise PeerError(f"{address}: {why}")


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, 2),
        (socket.TCP_KEEPINTVL, 2),
        (socket.TCP_KEEPCNT, DEAD_S // 2),
        (socket.TCP_USER_TIMEOUT, 1000 * DEAD_S),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _listen(address: str, ports: Iterator[int]) -> socket.socket:
    last: OSError | None = None
    for port in ports:
        for bound in (address, ""):
            made = socket.socket()
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                made.bind((bound, port))
                made.listen(64)
                return made
            except OSError as error:
                made.close()
                last = error
                if error.errno != 99:  # EADDRNOTAVAIL: behind an address that is not the host's own
                    break
    raise PeerError(f"no port is free on {address}: {last}")


def _ports(secret: str, job: str) -> Iterator[int]:
    first = first_port(secret, f"fast {job}")
    return iter(range(first, first + PORTS))


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _receive(lines: BinaryIO, most: int) -> dict[str, Any]:
    line = lines.readline(most)
    if not line.endswith(b"\n"):
        raise PeerError("connection lost")
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("not a message")
    return message


def _proof(secret: str, side: str, theirs: str, ours: str) -> str:
    message = json.dumps(["hpctl-fast-1", side, theirs, ours]).encode()
    return hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()


def write_all(target: FileIO, piece: memoryview) -> None:
    """All of it. O_DIRECT takes whole blocks alone: the last one goes the usual way."""
    while piece:
        try:
            piece = piece[target.write(piece) :]
        except OSError as error:
            flags = fcntl.fcntl(target, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                raise
            fcntl.fcntl(target, fcntl.F_SETFL, flags & ~os.O_DIRECT)

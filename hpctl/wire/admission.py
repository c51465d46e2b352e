"""Room for connections that have not proved who they are.

A peer names itself in its first message: the server's name that TLS sends in the clear there is a
separate number, sealed by the job's secret. Nothing is trusted for it. It only keeps strangers
that connect again and again from taking the room of peers in their handshake: a stranger cannot
make such a name, and one that it has seen counts once.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import select
import socket
import threading
from collections import Counter
from contextlib import suppress

UNPROVEN = 64
"""Connections of one listener that may be in their handshake at the same time, and
UNPROVEN_BY_HOST more for each host of the job: all of them may come at once."""
UNPROVEN_BY_HOST = 4
UNPROVEN_BY_ADDRESS = 48
"""Of these, how many from one address."""
_NAMES = 1 << 16
"""Names that are remembered, so that none counts twice."""
_NAME = re.compile(rb"([0-9a-f]{24})\.([0-9a-f]{40})")
_FIRST_MESSAGE = 4096


def create_signed_peer_name(secret: str) -> str:
    """Return a name that counts once, for `server_hostname` of a client's TLS."""
    number = secrets.token_hex(12)
    return f"{number}.{_sign_peer_name(secret, number)}"


def _sign_peer_name(secret: str, number: str) -> str:
    text = f"hpctl admission\0{number}".encode()
    return hmac.new(secret.encode(), text, hashlib.sha256).hexdigest()[:40]


class HandshakeLimiter:
    """Bounds the connections in their handshake, in all and by address.

    Where there is no room the oldest goes that has not named itself as a peer. Safe in threads.
    """

    def __init__(self, secret: str, hosts: int) -> None:
        """`hosts`: how many the job has."""
        self._secret = secret
        self._most = UNPROVEN + UNPROVEN_BY_HOST * hosts
        self._waiting: dict[socket.socket, str] = {}
        self._named: dict[socket.socket, None] = {}
        self._names: dict[bytes, None] = {}
        self._lock = threading.Lock()

    def admit(self, connection: socket.socket, address: str) -> None:
        """Take a connection in, which does not block; shut the oldest down where there is no room.

        Raises OSError where it is gone already.
        """
        connection.setblocking(False)
        with self._lock:
            counts = Counter(self._waiting.values())
            if counts[address] >= UNPROVEN_BY_ADDRESS:
                self._shut_down_oldest_connection(address)
            elif len(self._waiting) >= self._most:
                self._shut_down_oldest_connection(counts.most_common(1)[0][0])
            self._waiting[connection] = address

    def hear(self, connection: socket.socket) -> None:
        """Look at the first message of a connection, which is there and stays there to be read."""
        with self._lock:
            if connection in self._waiting:
                self._exempt_authenticated_peer(connection)

    def release(self, connection: socket.socket) -> None:
        """Let a connection go, which is proven or ends. Always before it is closed, and before a
        proven peer gets that reply: from then on it must not be shut down."""
        with self._lock:
            self._waiting.pop(connection, None)
            self._named.pop(connection, None)

    def drop_oldest_connection(self) -> None:
        """Shut the oldest down of the address that has the most, where one waits.

        For a listener that is out of descriptors or memory: those that are not proven go first.
        """
        with self._lock:
            counts = Counter(self._waiting.values())
            if counts:
                self._shut_down_oldest_connection(counts.most_common(1)[0][0])

    def _shut_down_oldest_connection(self, address: str) -> None:
        """Shut down the oldest connection of an address that is no peer's by its first message."""
        for held in [held for held, whose in self._waiting.items() if whose == address]:
            if not self._exempt_authenticated_peer(held):
                del self._waiting[held]
                _shut_down_connection(held)
                return

    def _exempt_authenticated_peer(self, connection: socket.socket) -> bool:
        """Keep a connection out of the strangers' room where it has named itself as a peer."""
        first = _peek_received_bytes(connection)
        if not any(self._verify_peer_name(*found.groups()) for found in _NAME.finditer(first)):
            return False
        self._waiting.pop(connection)
        if len(self._named) >= self._most:
            oldest = next(iter(self._named))
            del self._named[oldest]
            _shut_down_connection(oldest)
        self._named[connection] = None
        return True

    def _verify_peer_name(self, number: bytes, seal: bytes) -> bool:
        """Return whether the name is a peer's, and is heard for the first time."""
        if number in self._names:
            return False
        if not hmac.compare_digest(seal, _sign_peer_name(self._secret, number.decode()).encode()):
            return False
        if len(self._names) >= _NAMES:
            del self._names[next(iter(self._names))]
        self._names[number] = None
        return True


def _peek_received_bytes(connection: socket.socket) -> bytes:
    """Return what can be read now, and leave it there."""
    # The connection's own thread has given it a limit, for which recv() would wait.
    ready = select.poll()
    ready.register(connection, select.POLLIN)
    try:
        return connection.recv(_FIRST_MESSAGE, socket.MSG_PEEK) if ready.poll(0) else b""
    except OSError:
        return b""


def _shut_down_connection(connection: socket.socket) -> None:
    """End a connection. Its own thread or task closes it: until then its descriptor is its own."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)

"""Room for connections that have not proved who they are."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress

UNPROVEN = 64
"""Connections of one listener that may be in their handshake at the same time, and
UNPROVEN_BY_HOST more for each host of the job: all of them may come at once."""
UNPROVEN_BY_HOST = 4
UNPROVEN_BY_ADDRESS = 16
"""Of these, how many from one address."""


class AdmissionPool:
    """Bounds the connections in their handshake, in all and by address.

    Where there is no room the oldest goes: a peer that knows the secret needs milliseconds, so that
    it is done long before it is the oldest, however many others sit on theirs. Safe in threads.
    """

    def __init__(self, hosts: int) -> None:
        """`hosts`: how many the job has."""
        self._most = UNPROVEN + UNPROVEN_BY_HOST * hosts
        self._waiting: dict[socket.socket, str] = {}
        self._lock = threading.Lock()

    def admit(self, connection: socket.socket, address: str) -> None:
        """Take a connection in; shut the oldest down where there is no room."""
        with self._lock:
            counts = Counter(self._waiting.values())
            if counts[address] >= UNPROVEN_BY_ADDRESS:
                self._shut_oldest(address)
            elif len(self._waiting) >= self._most:
                self._shut_oldest(counts.most_common(1)[0][0])
            self._waiting[connection] = address

    def release(self, connection: socket.socket) -> None:
        """Let a connection go, which is proven or ends. Always before it is closed."""
        with self._lock:
            self._waiting.pop(connection, None)

    def make_room(self) -> None:
        """Shut the oldest down of the address that has the most, where one waits.

        For a listener that is out of descriptors or memory: those that are not proven go first.
        """
        with self._lock:
            counts = Counter(self._waiting.values())
            if counts:
                self._shut_oldest(counts.most_common(1)[0][0])

    def _shut_oldest(self, address: str) -> None:
        oldest = next(held for held, whose in self._waiting.items() if whose == address)
        del self._waiting[oldest]
        # Its own thread or task closes it: its descriptor must not be another's meanwhile.
        with suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)

"""Who is connected to the intake: what a peer may hold before it has proved who it is.

A connection is *waiting* until a request is whole, *busy* until it is answered, and *kept* between
the requests of a node that has proved itself. What waits is bounded in number, by address and in
all, in bytes, and in time; where there is no room the oldest that waits goes, so that whoever
sends a whole request at once, as agents and supervisors do, gets in while others sit on theirs.
For the event loop alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

MAX_HEAD = 16 * 1024
"""Bytes of a request before its body."""
HEAD_S = 5.0
"""From the first byte, or the connection, to the end of the head."""
REQUEST_S = 30.0
"""From the head to the end of the answer, as slowly as it may be read."""
RESERVED = 48
"""Descriptors that no connection may have: munged, the channel to the daemon, the resolver."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many connections, and how much of unproved requests, are kept in memory."""

    in_all: int = 16_384
    waiting: int = 512
    waiting_of_address: int = 64
    busy_of_address: int = 256
    kept_of_node: int = 4
    waiting_bytes: int = 32 * 1024 * 1024


class Peer:
    """One connection. `drop` ends it at once and leads to `Connections.lost`."""

    def __init__(self, address: str, drop: Callable[[], None]) -> None:
        self.address, self.drop = address, drop
        self.until = math.inf
        self.held = 0
        self.node: str = ""
        """Whose it is, once proved."""


class _Groups:
    """Peers in order of arrival, by a key."""

    def __init__(self) -> None:
        self._of: dict[Hashable, dict[Peer, None]] = {}

    def add(self, key: Hashable, peer: Peer) -> None:
        self._of.setdefault(key, {})[peer] = None

    def discard(self, key: Hashable, peer: Peer) -> None:
        group = self._of.get(key, {})
        group.pop(peer, None)
        if not group:
            self._of.pop(key, None)

    def oldest_beyond(self, key: Hashable, most: int) -> Peer | None:
        """The oldest of a key that has `most` or more."""
        group = self._of.get(key, {})
        return next(iter(group)) if len(group) >= most else None


class Connections:
    """All connections of one intake."""

    def __init__(self, bounds: Bounds, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._bounds, self._monotonic = bounds, monotonic
        self._all: dict[Peer, None] = {}
        self._waiting: dict[Peer, None] = {}
        self._waiting_of, self._busy_of, self._kept_of = _Groups(), _Groups(), _Groups()
        self._bytes = 0
        self.dropped = 0
        """How many were ended for want of room or time."""

    def __len__(self) -> int:
        return len(self._all)

    def made(self, peer: Peer) -> None:
        """A peer has connected; it, or an older one that waits, is dropped where room is out."""
        self._all[peer] = None
        bounds = self._bounds
        crowded = self._waiting_of.oldest_beyond(peer.address, bounds.waiting_of_address)
        if crowded is not None:
            self._drop(crowded)
        elif len(self._waiting) >= bounds.waiting or len(self._all) > bounds.in_all:
            self._drop(next(iter(self._waiting), peer))
        if peer in self._all:
            self.waits(peer)

    def lost(self, peer: Peer) -> None:
        """A connection is over, whoever ended it."""
        self._all.pop(peer, None)
        self._forget(peer)

    def waits(self, peer: Peer) -> None:
        """A request is expected, or has begun: its head must be here in time."""
        self._forget(peer)
        peer.until = self._monotonic() + HEAD_S
        if not peer.node:
            self._waiting[peer] = None
            self._waiting_of.add(peer.address, peer)
        else:
            self._kept_of.add(peer.node, peer)

    def holds(self, peer: Peer, size: int) -> None:
        """So many more bytes of a request that nobody has vouched for are in memory."""
        if peer not in self._waiting:
            return
        peer.held += size
        self._bytes += size
        while self._bytes > self._bounds.waiting_bytes and self._waiting:
            self._drop(next(iter(self._waiting)))

    def head_is_here(self, peer: Peer) -> None:
        """The body is next, which the application bounds in size and time."""
        peer.until = self._monotonic() + REQUEST_S

    def whole(self, peer: Peer) -> None:
        """The request is here; nobody is dropped while we think about it."""
        self._forget(peer)
        peer.until = self._monotonic() + REQUEST_S
        if self._busy_of.oldest_beyond(peer.address, self._bounds.busy_of_address):
            self._drop(peer)
        else:
            self._busy_of.add(peer.address, peer)

    def kept(self, peer: Peer, node: str) -> None:
        """A node has proved itself and is answered: its connection is kept, its oldest goes."""
        self._forget(peer)
        peer.node, peer.until = node, math.inf
        if crowded := self._kept_of.oldest_beyond(node, self._bounds.kept_of_node):
            self._drop(crowded)
        self._kept_of.add(node, peer)

    def sweep(self) -> None:
        """Drop whoever is out of time. To be called once a second or so."""
        now = self._monotonic()
        for peer in [peer for peer in self._all if peer.until < now]:
            self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        self.dropped += 1
        self.lost(peer)
        peer.drop()

    def _forget(self, peer: Peer) -> None:
        """It is no longer what it was."""
        self._waiting.pop(peer, None)
        self._waiting_of.discard(peer.address, peer)
        self._busy_of.discard(peer.address, peer)
        self._kept_of.discard(peer.node, peer)
        self._bytes -= peer.held
        peer.held = 0

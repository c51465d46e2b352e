"""An HTTP accept filter: the web server sees a connection once the head of its request is whole.

FreeBSD has one in its kernel (accf_http(9)), Linux has none. A peer that never finishes a head
costs a descriptor and the bytes that it sent; the transport, the parser and the tasks of a
connection, which take ten times the work, are made for those that ask something.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial

from hpctl.daemon.connections import MAX_HEAD, Connections, Peer

log = logging.getLogger(__name__)

ACCEPTS, EVERY_S = 4, 0.002
"""So many are taken at once, and then those that are open are heard again: two thousand a second at
most, which keeps a crowd that comes again and again from being all that there is to do."""
_END = b"\r\n\r\n"

Serve = Callable[[socket.socket, bytes], Awaitable[object]]
"""Takes a connection over, with what came on it. Raises OSError where it is gone."""


class AcceptFilter:
    """Accepts at a pace, within the bounds of `connections`. For the event loop alone."""

    def __init__(self, listener: socket.socket, connections: Connections, serve: Serve) -> None:
        self._listener, self._crowd, self._serve = listener, connections, serve
        self._loop = asyncio.get_running_loop()
        self._left = ACCEPTS
        self._held: dict[socket.socket, bytearray] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._paused: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept no more, and drop whoever has not finished a head."""
        if self._paused is not None:
            self._paused.cancel()
        self._loop.remove_reader(self._listener)
        for client in [*self._held]:
            self._drop(client)

    def _resume(self) -> None:
        self._left = ACCEPTS
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        while self._left:
            self._left -= 1
            try:
                client, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # gone already, or no descriptors for a moment
                log.debug("a connection was not taken: %s", error)
            else:
                self.take(client, str(address[0]))
        self._loop.remove_reader(self._listener)
        self._paused = self._loop.call_later(EVERY_S, self._resume)

    def take(self, client: socket.socket, address: str) -> None:
        """Hold a connection until its first head is here."""
        client.setblocking(False)
        peer = Peer(address, partial(self._drop, client))
        self._held[client] = bytearray()
        self._crowd.made(peer)
        if client in self._held:
            self._loop.add_reader(client, self._read, client, peer)

    def _read(self, client: socket.socket, peer: Peer) -> None:
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
            task = self._loop.create_task(self._hand_over(client, bytes(held)))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        else:
            self._drop(client)

    async def _hand_over(self, client: socket.socket, came: bytes) -> None:
        try:
            await self._serve(client, came)
        except OSError as error:
            log.debug("a connection was not taken: %s", error)
            client.close()

    def _drop(self, client: socket.socket) -> None:
        if self._held.pop(client, None) is not None:
            self._loop.remove_reader(client)
            client.close()

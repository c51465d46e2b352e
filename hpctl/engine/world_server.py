"""The daemon's thread that gives readers the world of the last cycle.

The loop hands a world over by changing one reference; what it handed over is encoded only when
when a reader asks, once, and at most for a tenth of the time. Connections are few, each has a time
limit and one short request, and a reader that takes its answer slowly costs nothing but a
descriptor: all answers of one world share its bytes. The socket has the access of the journal's
file: who may read that may read this, and no other user.
"""

import contextlib
import logging
import os
import selectors
import socket
import struct
import threading
import time
from datetime import datetime
from itertools import chain

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpctl import __version__
from hpctl.engine.config import Config
from hpctl.engine.instance_resolver import NEVER
from hpctl.engine.journal.state import EngineState
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.leadership import Leadership, read_seconds_since_boot
from hpctl.engine.loop import RecoveryCycleResult
from hpctl.engine.view import PlanningView
from hpctl.engine.world_wire import (
    HEAD_BYTES,
    PROTOCOL,
    REQUEST_BYTES,
    RecoveryCycleDecisions,
    WorldAnswerHead,
    WorldAnswerSummary,
    WorldFrame,
    WorldPart,
    WorldPartHead,
    WorldRequest,
    count_history_records,
    encode_answer_head,
    encode_frames,
    find_history_start,
    get_world_socket_path,
    shorten_socket_path,
)
from hpctl.vocabulary.cloud_facts import CloudProviderView

log = logging.getLogger(__name__)

MOST, MOST_OF_USER = 64, 8
"""Connections at once, and those of one user; root and the daemon's own user have all."""
ACCEPTS = 16
"""Connections that are taken in one turn."""
REQUEST_S, ANSWER_S = 1.0, 10.0
"""How long a client may take to ask, and to read its answer."""
BEHIND_S = 1.0
"""How long a request waits for the cycle that is under way, where that has written to the journal:
who has seen its request answered finds that in the world, too."""
SHARE = 10.0
"""Encoding a world takes at most one part in so many of the time."""
REST = 4.0
"""After each turn the thread rests for so many times what the turn took of a processor."""
REST_S = 0.05
"""But no longer."""
KEPT = 3
"""Encoded worlds that slow readers may still be reading."""


class _OfferedWorld(Struct):
    """One world. What was over before `since` is HISTORY.

    `states` counts the states that were copied, `replays` the replays of the journal, `clouds` the
    readings of the cloud: what has the same count has the same content.
    """

    number: int
    at: float
    cycle: RecoveryCycleResult
    view: PlanningView
    since: datetime
    states: int
    replays: int
    clouds: int


class _EncodedPart(Struct):
    """The newest content of a part, under its token; `frames` None until a reader asks for it."""

    key: object
    token: int
    frames: list[WorldFrame] | None = None

    @property
    def frame_sizes(self) -> tuple[tuple[str, int], ...]:
        """Return the kind and the length of each frame."""
        return tuple((kind, len(data)) for kind, data in self.frames or ())


class _ReaderConnection(Struct):
    """One connection. `out` is what is left of its answer; None: it has not asked yet."""

    connection: socket.socket
    uid: int
    until: float
    request: bytearray = msgspec.field(default_factory=bytearray)
    ask: WorldRequest | None = None
    asked: float = 0.0
    out: list[memoryview] | None = None
    number: int = 0


class WorldServer:
    """Serves the world; `offer` is the loop's, everything else this object's own thread's."""

    def __init__(self, config: Config, leadership: Leadership, memory: JournaledState) -> None:
        """`config`: at the start. Where the journal is no file, root and the daemon's user read."""
        self._path = get_world_socket_path(config.state_dir)
        self._journal = None if config.database_url else config.state_dir / "journal.db"
        self._cluster, self._leadership = config.cluster.name, leadership
        self._memory = memory
        self._offered: _OfferedWorld | None = None
        self._source: EngineState | None = None
        self._copy = EngineState()
        self._provider: CloudProviderView | None = None
        self._states = self._replays = self._clouds = 0
        self.number = time.time_ns()
        self._failed = 0
        """The newest world of which a part could not be encoded: it is logged once."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._waiting = self._stopping = False
        self._listener: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self.clients: dict[int, _ReaderConnection] = {}
        self._encode_after = 0.0
        self._encoding_s = 0.0
        self._access: tuple[int, int] | None = None
        self._parts: dict[WorldPart, _EncodedPart] = {}
        self._sized: tuple[object, tuple[int, int]] = (None, (0, 0))
        self._token = self.number
        self._thread = threading.Thread(target=self._run_server_loop, name="world", daemon=True)

    def start(self) -> None:
        """Listen from now on."""
        try:
            self._listener = self._open_socket()
        except OSError as error:
            log.error("trouble=no reader can reach the world at %s: %s", self._path, error)
            return
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        self._thread.start()

    def stop(self) -> None:
        """Close everything, the socket's file with it."""
        self._stopping = True
        os.eventfd_write(self._wake_fd, 1)
        if self._thread.is_alive():
            self._thread.join(5.0)
        if self._listener is not None:
            self._listener.close()
            with contextlib.suppress(OSError):  # a state directory that is read-only or gone
                self._path.unlink(missing_ok=True)

    def offer(self, cycle: RecoveryCycleResult | None) -> None:
        """Give readers the world of a cycle that has just ended. For the loop; never waits."""
        if cycle is None:
            return
        self.number += 1
        self._copy_journal_state(cycle.view.state)
        if cycle.view.provider is not self._provider:
            self._provider = cycle.view.provider
            self._clouds += 1
        self._offered = _OfferedWorld(
            number=self.number,
            at=read_seconds_since_boot(),
            cycle=cycle,
            view=replace(cycle.view, state=self._copy),
            since=find_history_start(cycle.at),
            states=self._states,
            replays=self._replays,
            clouds=self._clouds,
        )
        if self._waiting:
            os.eventfd_write(self._wake_fd, 1)

    def _copy_journal_state(self, state: EngineState) -> None:
        """Keep a copy that the loop does not change; its records are frozen already."""
        if state is self._source and state.events == self._copy.events:
            return
        self._replays += state is not self._source
        self._states += 1
        self._source = state
        values = {name: getattr(state, name) for name in EngineState.__struct_fields__}
        own = {name: dict(value) for name, value in values.items() if isinstance(value, dict)}
        self._copy = replace(state, **own)

    def _open_socket(self) -> socket.socket:
        self._path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with shorten_socket_path(self._path) as name:
                listener.bind(name)
                self._copy_journal_permissions_to_socket()
                listener.listen(MOST)
        except OSError:
            listener.close()
            raise
        return listener

    def _copy_journal_permissions_to_socket(self) -> bool:
        """Give the socket the access of the journal's file. Answers whether it had another."""
        mode, group = 0o600, -1
        if self._journal is not None:
            with contextlib.suppress(OSError):
                found = self._journal.stat()
                readers = found.st_mode & 0o444
                mode, group = 0o600 | readers | readers >> 1, found.st_gid
        wanted = (mode, group)
        if self._access == wanted:
            return False
        self._path.chmod(0o600)
        if group >= 0 and self._path.stat().st_gid != group:
            try:
                os.chown(self._path, -1, group)
            except OSError as error:
                log.warning("the group of %s cannot read it: %s", self._path, error)
                mode &= ~0o060
        self._path.chmod(mode)
        changed, self._access = self._access is not None, wanted
        return changed

    def _run_server_loop(self) -> None:
        while not self._stopping:
            try:
                self._serve_ready_connections()
            # Readers have another way; the daemon must not lose this one for good.
            except Exception:
                log.exception("the readers of the world are disconnected")
                self._drop_all_connections()
                time.sleep(1.0)
        self._drop_all_connections()
        self._selector.close()

    def _serve_ready_connections(self) -> None:
        ready = self._selector.select(self._find_poll_timeout())
        began, encoding = time.thread_time(), self._encoding_s
        for key, events in ready:
            if key.fileobj is self._listener:
                self._accept_connection()
            elif key.fileobj == self._wake_fd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
            else:
                self._serve_connection(key, events)
        now = time.monotonic()
        waiting = [client for client in self.clients.values() if client.ask is not None]
        for client in waiting:
            self._answer_or_drop_connection(client, now)
        for client in [c for c in self.clients.values() if now > c.until]:
            self._drop_connection(client)
        spent = time.thread_time() - began - (self._encoding_s - encoding)
        if not self._stopping:
            time.sleep(min(max(0.0, REST * spent), REST_S))

    def _serve_connection(self, key: selectors.SelectorKey, events: int) -> None:
        """Read or write on a connection, unless it was closed and its number given to another."""
        client = self.clients.get(key.fd)
        if client is None or client.connection is not key.fileobj:
            return
        if events & selectors.EVENT_WRITE:
            self._send_response_to_client(client)
        else:
            self._read_client_request(client)

    def _answer_or_drop_connection(self, client: _ReaderConnection, now: float) -> None:
        """Answer a request; one that cannot be answered costs that reader alone."""
        try:
            self._answer_client_request(client, now)
        # The other readers have asked for what may be sound.
        except Exception:
            if self._failed != self.number:
                log.exception("a reader of the world was not answered")
            self._failed = self.number
            self._drop_connection(client)

    def _find_poll_timeout(self) -> float | None:
        times = [client.until for client in self.clients.values()]
        self._waiting = any(client.ask is not None for client in self.clients.values())
        if self._waiting:
            times.append(time.monotonic() + REST_S)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _accept_connection(self) -> None:
        listener = self._listener
        assert listener is not None
        refuse = self._copy_journal_permissions_to_socket()
        for _ in range(MOST if refuse else ACCEPTS):
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if refuse:  # it was let in by the access of before
                connection.close()
                continue
            connection.setblocking(False)
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            uid = struct.unpack("3i", raw)[1]
            if not self._reserve_connection_slot(uid):
                connection.close()
                continue
            client = _ReaderConnection(connection, uid, time.monotonic() + REQUEST_S)
            self.clients[connection.fileno()] = client
            self._selector.register(connection, selectors.EVENT_READ)
            self._read_client_request(client)

    def _reserve_connection_slot(self, uid: int) -> bool:
        """Return whether one more of a user's has a place, if need be that of one which has not
        asked, or which does not read its answer."""
        others = list(self.clients.values())
        own = [client for client in others if client.uid == uid]
        if not is_trusted_user_id(uid) and len(own) >= MOST_OF_USER:
            others = own
        elif len(others) < MOST:
            return True
        now = time.monotonic()
        idle = [c for c in others if c.ask is None and c.out is None]
        slow = [c for c in others if c.out and now > c.asked + REQUEST_S]
        if not idle and not slow:
            return False
        self._drop_connection((idle or slow)[0])
        return True

    def _read_client_request(self, client: _ReaderConnection) -> None:
        """Take what has come of the request."""
        try:
            some = client.connection.recv(REQUEST_BYTES + HEAD_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            some = b""
        client.request += some
        size = int.from_bytes(client.request[:HEAD_BYTES], "big")
        have = len(client.request) - HEAD_BYTES
        if not some or (have >= 0 and (size > REQUEST_BYTES or have > size)):
            self._drop_connection(client)
            return
        if have < 0 or have < size:
            return
        try:
            client.ask = _asks.decode(client.request[HEAD_BYTES:])
        except msgspec.DecodeError:
            client.ask = WorldRequest(protocol=0)
        client.request.clear()
        client.asked = time.monotonic()
        client.until = client.asked + ANSWER_S
        # Nothing more is read of it; that it is gone shows when it is written to.
        self._selector.unregister(client.connection)

    def _answer_client_request(self, client: _ReaderConnection, now: float) -> None:
        """Answer a request, unless it has to wait for a newer world or for its turn."""
        ask, offered = client.ask, self._offered
        assert ask is not None
        head, body = WorldAnswerHead(PROTOCOL, __version__), list[WorldFrame]()
        lease = self._leadership.lease
        if ask.protocol != PROTOCOL:
            head = replace(head, refused="another protocol")
        elif lease is None or not self._leadership.leads:
            head = replace(head, refused="this daemon does not lead")
        elif offered is None:
            head = replace(head, refused="no cycle has ended yet")
        elif offered.view.state.events < self._memory.state.events:
            if now < client.asked + BEHIND_S:
                return
            head = replace(head, refused="the cycle under way takes long")
        else:
            parts = [
                (part, self._find_encoded_part(offered, part), has)
                for part, has in ask.parts.items()
            ]
            wanted = [(part, content) for part, content, has in parts if content.token != has]
            missing = [(part, content) for part, content in wanted if content.frames is None]
            if missing and now < self._encode_after:
                return
            for part, content in missing:
                content.frames = self._encode_part(offered, part)
            body = list(chain.from_iterable(content.frames or () for _, content in wanted))
            head = replace(
                head,
                number=offered.number,
                age_s=read_seconds_since_boot() - offered.at,
                about=WorldAnswerSummary(
                    daemon=lease,
                    policy=offered.cycle.policy,
                    standbys=self._leadership.standbys(),
                    cluster=self._cluster,
                    stopped=offered.view.stopped,
                    slurm_trouble=offered.cycle.slurm_trouble,
                    cloud_trouble=_find_cloud_read_error(offered.cycle),
                ),
                parts=tuple(_make_part_head(*one) for one in parts),
            )
        client.ask, client.number = None, head.number
        client.out = [memoryview(encode_answer_head(head)), *(memoryview(data) for _, data in body)]
        self._selector.register(client.connection, selectors.EVENT_WRITE)
        self._send_response_to_client(client)

    def _find_encoded_part(self, offered: _OfferedWorld, part: WorldPart) -> _EncodedPart:
        """Return a part of a world, under the token of before where it is what it was."""
        known, key = self._parts.get(part), self._make_part_content_key(offered, part)
        if known is None or known.key != key:
            self._token += 1
            known = self._parts[part] = _EncodedPart(key, self._token)
        return known

    def _make_part_content_key(self, offered: _OfferedWorld, part: WorldPart) -> object:
        """What has the same key has the same content."""
        match part:
            case WorldPart.STATE:
                return offered.states, offered.since
            case WorldPart.HISTORY:
                of = (offered.states, offered.since)
                if of != self._sized[0]:
                    self._sized = (of, count_history_records(offered.view.state, offered.since))
                return offered.replays, offered.since, self._sized[1]
            case WorldPart.CLOUD:
                return offered.clouds
            case WorldPart.PLACEMENT:
                view = offered.view
                return view.placed, view.reservations, view.leaves
            case WorldPart.HEALTH | WorldPart.SLURM:
                return offered.number

    def _encode_part(self, offered: _OfferedWorld, part: WorldPart) -> list[WorldFrame]:
        """Encode a part for all who ask for it, and let go of worlds that are old by now."""
        began = time.thread_time()
        cycle = offered.cycle
        decided = RecoveryCycleDecisions(cycle.candidates, cycle.holds, cycle.flaws)
        encoded = list(encode_frames(part, offered.view, decided, offered.since))
        spent = time.thread_time() - began
        self._encoding_s += spent
        self._encode_after = max(self._encode_after, time.monotonic()) + (SHARE - 1) * spent
        numbers = {c.number for c in self.clients.values() if c.out} | {offered.number}
        for old in sorted(numbers)[:-KEPT]:
            for client in [c for c in self.clients.values() if c.out and c.number == old]:
                self._drop_connection(client)
        return encoded

    def _send_response_to_client(self, client: _ReaderConnection) -> None:
        out = client.out
        assert out is not None
        try:
            sent = client.connection.sendmsg(out[:_VECTORS])
        except BlockingIOError:
            return
        except OSError:
            self._drop_connection(client)
            return
        while out and sent >= len(out[0]):
            sent -= len(out.pop(0))
        if out:
            out[0] = out[0][sent:]
        else:
            self._drop_connection(client)

    def _drop_connection(self, client: _ReaderConnection) -> None:
        fd = client.connection.fileno()
        if self.clients.pop(fd, None) is None:
            return
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client.connection)
        client.connection.close()

    def _drop_all_connections(self) -> None:
        for client in list(self.clients.values()):
            self._drop_connection(client)


def _make_part_head(part: WorldPart, content: _EncodedPart, has: int) -> WorldPartHead:
    """Return the head of a part. It lists no frames where the reader has them."""
    frames = None if content.token == has else content.frame_sizes
    return WorldPartHead(part, content.token, frames)


def _find_cloud_read_error(cycle: RecoveryCycleResult) -> str:
    """Return why a cycle knew nothing of the cloud; empty where it did."""
    if cycle.view.provider.as_of == NEVER:
        return cycle.cloud_trouble or "the cloud has not answered yet"
    return cycle.cloud_trouble


def is_trusted_user_id(uid: int) -> bool:
    """Return whether a user may have every connection: root and the daemon's own."""
    return uid in (0, os.geteuid())


_asks = msgspec.msgpack.Decoder(WorldRequest)
_VECTORS = 64
"""Pieces that one call sends."""

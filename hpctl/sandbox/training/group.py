"""The ranks of one job step as a group: rendezvous, and an all-reduce in a fixed order.

Rank 0 listens and publishes its address in a file that names the job, its restart count and the
step, so no earlier attempt's file can be taken for it; and because job ids start again at 1 on a
fresh cluster, the file carries a nonce that the listener checks as well.

The sum is taken on rank 0 in the order of the ranks and sent to all. Floating-point addition is
not associative: a tree or a ring would give other bits when ranks arrive in another order.

A lost rank closes its sockets; the others read the end of the stream and leave with
TrainingPeerLostError.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import struct
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from msgspec import Struct

from hpctl.sandbox.training.model import Floats
from hpctl.slurm.node_address import find_node_address

JOIN_S = 60.0
"""How long the ranks wait for each other at the start: srun may launch them seconds apart."""

PEER_S = 30.0
"""How long a silent peer is waited for. A frozen node closes no sockets."""


class TrainingPeerLostError(Exception):
    """A rank went away, or never came: this attempt is over."""


class RankInfo(Struct, frozen=True):
    """Where this process stands, as Slurm names it. `attempt` is `<job>.<restart>.<step>`."""

    rank: int
    size: int
    attempt: str
    host: str
    bind: str

    @classmethod
    def of(cls, environment: dict[str, str], bind: str = "") -> RankInfo:
        """Read srun's environment; alone (rank 0 of 1) where there is none."""
        get = environment.get
        node = get("SLURMD_NODENAME", "")
        host = node or socket.gethostname()
        attempt = ".".join(
            (get("SLURM_JOB_ID", "0"), get("SLURM_RESTART_COUNT", "0"), get("SLURM_STEP_ID", "0"))
        )
        return cls(
            rank=int(get("SLURM_PROCID", "0")),
            size=int(get("SLURM_NTASKS", "1")),
            attempt=attempt,
            host=host,
            bind=bind or (find_node_address(node) if node else host),
        )


class ProcessGroup:
    """Connected ranks. Use `join`, then `all_reduce`, `gather` and `broadcast`, then `close`."""

    def __init__(self, place: RankInfo, nonce: str, peers: list[Connection]) -> None:
        self.place = place
        self.nonce = nonce
        self._peers = peers  # rank 0: ranks 1..n-1 in order; others: rank 0 alone

    @property
    def name(self) -> str:
        """Return what this attempt's files are called: unique even where job ids repeat."""
        return f"{self.place.attempt}-{self.nonce[:6]}"

    def all_reduce(self, vector: Floats, not_before: float = 0.0) -> Floats:
        """Return the sum of every rank's vector, added in rank order, the same bits on all of them.

        No rank gets it before the monotonic time `not_before`: rank 0 paces the group.
        """
        if self.place.rank:
            _send_message(self._peers[0], vector.tobytes())
            return np.frombuffer(_receive_message(self._peers[0]))
        total: Floats = vector.copy()
        for peer in self._peers:
            total += np.frombuffer(_receive_message(peer))
        time.sleep(max(0.0, not_before - time.monotonic()))
        self.broadcast(total.tobytes())
        return total

    def gather(self, message: bytes) -> list[bytes]:
        """On rank 0 everyone's message in rank order; on the others an empty list."""
        if self.place.rank:
            _send_message(self._peers[0], message)
            return []
        return [message, *(_receive_message(peer) for peer in self._peers)]

    def broadcast(self, message: bytes = b"") -> bytes:
        """Rank 0's message, on every rank."""
        if self.place.rank:
            return _receive_message(self._peers[0])
        for peer in self._peers:
            _send_message(peer, message)
        return message

    def close(self) -> None:
        """Close every connection."""
        for peer in self._peers:
            peer.close()


def join_process_group(place: RankInfo, directory: Path) -> ProcessGroup:
    """Meet the other ranks through a file in a shared directory. Raises TrainingPeerLostError,
    OSError."""
    meeting = directory / f"rendezvous-{place.attempt}.json"
    deadline = time.monotonic() + JOIN_S
    if place.rank == 0:
        return _accept_ranks(place, meeting, deadline)
    while time.monotonic() < deadline:
        group = _connect_to_rank_zero(place, meeting)
        if group is not None:
            return group
        time.sleep(0.05)
    raise TrainingPeerLostError(f"rank 0 did not open its door within {JOIN_S:g} s ({meeting})")


def _accept_ranks(place: RankInfo, meeting: Path, deadline: float) -> ProcessGroup:
    nonce = secrets.token_hex(8)
    peers: dict[int, Connection] = {}
    with socket.create_server((place.bind, 0)) as server:
        host, port = server.getsockname()[:2]
        temporary = meeting.with_name(f".{meeting.name}.{nonce}")
        temporary.write_text(json.dumps({"host": host, "port": port, "nonce": nonce}))
        temporary.rename(meeting)
        while len(peers) < place.size - 1:
            server.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                peer = _make_connection(server.accept()[0])
            except TimeoutError:
                raise TrainingPeerLostError(
                    f"{len(peers) + 1} of {place.size} ranks came"
                ) from None
            rank = _admit_joining_rank(peer, nonce, place.size)
            if rank and rank not in peers:
                peers[rank] = peer
    meeting.unlink(missing_ok=True)
    return ProcessGroup(place, nonce, [peers[rank] for rank in sorted(peers)])


def _admit_joining_rank(peer: Connection, nonce: str, size: int) -> int:
    """Return the rank that asks to join, which is answered; 0 where it is none of this
    meeting's."""
    with contextlib.suppress(OSError, EOFError, ValueError):
        if peer.poll(5.0):
            theirs, _, rank = peer.recv_bytes(64).decode().partition(" ")
            if theirs == nonce and 0 < int(rank) < size:
                peer.send_bytes(b"+")
                return int(rank)
    return 0


def _connect_to_rank_zero(place: RankInfo, meeting: Path) -> ProcessGroup | None:
    """Try once to reach rank 0; None where the file is missing or stale, or rank 0 is silent."""
    try:
        there = json.loads(meeting.read_text())
        address = (there["host"], there["port"])
        peer = _make_connection(socket.create_connection(address, timeout=5.0))
        peer.send_bytes(f"{there['nonce']} {place.rank}".encode())
        peer.recv_bytes(1)
        return ProcessGroup(place, there["nonce"], [peer])
    except (OSError, EOFError, ValueError, KeyError):
        return None


def _make_connection(peer: socket.socket) -> Connection:
    """Return a socket as one of whole messages, on which a silent peer is an OSError after
    PEER_S."""
    peer.settimeout(None)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        peer.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(PEER_S), 0))
    return Connection(peer.detach())


def _send_message(peer: Connection, message: bytes) -> None:
    try:
        peer.send_bytes(message)
    except OSError as error:
        raise TrainingPeerLostError(f"a rank is gone: {error}") from error


def _receive_message(peer: Connection) -> bytes:
    try:
        return peer.recv_bytes()
    except (OSError, EOFError) as error:
        raise TrainingPeerLostError(
            f"a rank is gone: {error or 'it closed its connection'}"
        ) from error

"""What the daemon and its intake send to each other: frames of MessagePack on a pair of sockets.

The intake asks (what to store, what a job reported, what Alertmanager sent, what /metrics is to
add) and notes heartbeats; the daemon answers, and says which nodes Slurm has where. Every frame is
typed and bounded: an intake that a stranger has taken over can only say what an intake may.
"""

from __future__ import annotations

import socket
import threading
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.model import AgentReport
from hpctl.wire import reports as wire
from hpctl.wire.stack_request import RankStackTraceRequest

MAX_FRAME = 128 * 1024 * 1024
"""intake.MOST reports of wire.MAX_BODY bytes, and some."""


class StoreReports(Struct, frozen=True, tag=True):
    """Authenticated reports, to be stored before the answer. Answered with nothing."""

    reports: tuple[AgentReport, ...]


class FromJob(Struct, frozen=True, tag=True):
    """An authenticated user's report of a job, which came at `asked`. Answered with a `Taken`."""

    report: JobReport
    uid: int
    asked: datetime


class RelayedRequest(Struct, frozen=True, tag=True):
    """What a proved user on the host of that address asks for. Answered with its number."""

    asked: wire.OperatorRequest
    uid: int
    address: str


class TakeAlerts(Struct, frozen=True, tag=True):
    """The body of an authenticated notification. Answered with counts."""

    body: bytes


class Scrape(Struct, frozen=True, tag=True):
    """A client reads /metrics. Answered with the daemon's own."""


class Discover(Struct, frozen=True, tag=True):
    """A client reads /sd. Answered with Prometheus' HTTP service discovery, JSON."""


Question: TypeAlias = StoreReports | FromJob | RelayedRequest | TakeAlerts | Scrape | Discover


class Ask(Struct, frozen=True, tag=True):
    """A question, to be answered by its number."""

    number: int
    what: Question


class Beats(Struct, frozen=True, tag=True):
    """The newest heartbeat of each node that was heard. With none: the intake is up."""

    heartbeats: tuple[wire.Heartbeat, ...]


class ChannelAnswer(Struct, frozen=True, tag=True):
    """What came of a question."""

    number: int
    value: bytes


class ChannelRefusal(Struct, frozen=True, tag=True):
    """A question that was refused; the fields are those of authentication.Refusal."""

    number: int
    status: int
    code: str
    message: str
    hint: str
    more: dict[str, Any]


class IntakeNodes(Struct, frozen=True, tag=True):
    """The address that Slurm has for each of its nodes; what waits for a node's agent."""

    addresses: dict[NodeName, str]
    orders: dict[NodeName, str] = {}


class Asks(Struct, frozen=True, tag=True):
    """What each node's agent is to be asked with the next answer to it; of other nodes nothing."""

    stacks: dict[NodeName, RankStackTraceRequest]


class Leads(Struct, frozen=True, tag=True):
    """Until when the daemon leads if it says nothing more, by the monotonic clock, which is the
    host's; and HOST:PORT of the leader, empty where none is known."""

    until: float
    leader: str


class Setup(Struct, frozen=True, tag=True):
    """The first frame: what the intake needs of the configuration."""

    munge_socket: str | None
    allowed_uids: tuple[int, ...]
    token_file: str | None
    journal: str | None = None
    """The SQLite journal, of which the intake makes copies; None for a database server."""


FromIntake: TypeAlias = Ask | Beats
ToIntake: TypeAlias = Setup | IntakeNodes | Asks | Leads | ChannelAnswer | ChannelRefusal

_from_intake = msgspec.msgpack.Decoder(FromIntake)
_to_intake = msgspec.msgpack.Decoder(ToIntake)


class IntakeChannel:
    """One end. `send` may be called from any thread, `receive` from one."""

    def __init__(self, end: socket.socket, decoder: msgspec.msgpack.Decoder[Any]) -> None:
        self._pipe = Connection(end.detach())
        self._decoder = decoder
        self._sending = threading.Lock()

    @classmethod
    def make_daemon_end(cls, end: socket.socket) -> IntakeChannel:
        """Return the daemon's end, which hears FromIntake."""
        return cls(end, _from_intake)

    @classmethod
    def make_intake_end(cls, end: socket.socket) -> IntakeChannel:
        """Return the intake's end, which hears ToIntake."""
        return cls(end, _to_intake)

    def send(self, message: FromIntake | ToIntake) -> None:
        """Say it; waits while the other end is slow. Raises OSError where it is gone."""
        frame = msgspec.msgpack.encode(message)
        with self._sending:
            self._pipe.send_bytes(frame)

    def receive(self, within_s: float | None = None) -> Any:
        """Return the next frame. Raises TimeoutError where nothing was, EOFError where nothing will
        be, OSError, msgspec.MsgspecError."""
        if not self._pipe.poll(within_s):
            raise TimeoutError(f"nothing was received in {within_s:.0f} s")
        return self._decoder.decode(self._pipe.recv_bytes(MAX_FRAME))

    def close(self) -> None:
        """Close this end: the other hears EOF."""
        self._pipe.close()

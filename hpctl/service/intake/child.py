"""The intake's own process (docs/adr/0042), started by `process`.

Whatever strangers can make the intake spend, descriptors, memory, the interpreter's lock, they make
this process spend, and not the one that heals. It accepts or refuses on its own; what it accepts
goes to the daemon over the channel, and is acknowledged when the daemon has stored it. It holds
sessions and digests, all of which agents make again, and ends with the daemon.
"""

import logging
import os
import queue
import resource
import signal
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics
from starlette.concurrency import run_in_threadpool
from starlette.routing import Route
from starlette.types import ASGIApp

from hpctl.engine.clock import SystemClock
from hpctl.engine.journal.reader import open_journal_for_reading
from hpctl.engine.journal.source import make_sqlite_url
from hpctl.engine.journal.sqlite_source import publish_world_readable_sqlite_copy
from hpctl.engine.request_intake import make_operator_request_route as request_route
from hpctl.service.alerts import make_alert_routes as alert_routes
from hpctl.service.intake import channel
from hpctl.service.intake.app import make_agent_intake_app, make_discovery_route
from hpctl.service.intake.server import (
    RESERVED,
    ConnectionLimits,
    PeerConnectionTracker,
    UvicornServerThread,
)
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.vocabulary.identity import NodeGeneration, NodeName
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.model import AgentReport
from hpctl.vocabulary.ports import Clock
from hpctl.wire import job_reports as job_wire
from hpctl.wire import munge
from hpctl.wire import reports as wire
from hpctl.wire.authentication import IntakeAuthenticationSettings, LeadershipNotice, RequestRefusal
from hpctl.wire.proved_route import RequestRefusalCounter, make_authenticated_post_route
from hpctl.wire.stack_request import RankStackTraceRequest

EVERY_S: Final = 1.0
SHARE: Final = 20.0
"""A copy is made at most every EVERY_S, and then in a 20th of the time at most."""


class JournalCopier:
    """Copies of a SQLite journal, made on request (`POST /v1/copy`). For all threads.

    SQLite's readers lock what they read, and a lock that any user may take on the journal itself
    keeps the daemon from writing it. So the journal is the daemon's and root's alone, and everyone
    reads copies, each of which takes the place of the one before (docs/adr/0048).
    """

    def __init__(self, journal: Path, clock: Clock) -> None:
        self._journal, self._clock = journal, clock
        self._lock = threading.Lock()
        self._next = 0.0

    def make(self) -> None:
        """See that there is a young copy. Raises Refusal."""
        with self._lock:
            begun = self._clock.monotonic()
            if begun < self._next:
                return
            try:
                open_journal_for_reading(make_sqlite_url(self._journal)).close()
                publish_world_readable_sqlite_copy(
                    self._journal, wire.make_public_journal_copy_path(self._journal)
                )
            except (HpctlError, OSError, sqlite3.Error) as error:
                raise RequestRefusal(503, "journal_unavailable", f"not copied: {error}") from error
            finally:
                ended = self._clock.monotonic()
                self._next = ended + max(EVERY_S, SHARE * (ended - begun))


def make_journal_copy_route(
    copies: JournalCopier, settings: IntakeAuthenticationSettings, registry: CollectorRegistry
) -> Route:
    """Return the route for the intake's application: each user known to MUNGE may request a copy.

    Answers 200 `{}`, at once where the newest copy is young enough; 503 journal_unavailable.
    """

    async def make_journal_copy(_body: bytes, _who: munge.Credential) -> bytes:
        await run_in_threadpool(copies.make)
        return b"{}"

    text = "Requested journal copies refused."
    refused = RequestRefusalCounter("hpctl_copies_refused", text, registry)
    return make_authenticated_post_route(
        path=wire.COPY_PATH,
        most=64,
        settings=settings,
        answer_to=make_journal_copy,
        refused=refused,
    )


log = logging.getLogger("hpctl.intake")

ANSWER_S = 20.0
"""How long the daemon may take to answer a question."""
QUIET_TICKS = 8
"""Ticks without a heartbeat after which the daemon hears that we live."""
MEMORY = 1024 * 1024 * 1024
"""The most that this process may have; within the bounds of connections it needs a tenth."""


class IntakeDaemonClient:
    """The daemon as the intake's process reaches it: the `ReportSink` of this process, and more."""

    def __init__(self, line: channel.IntakeChannel) -> None:
        self._line = line
        self.leading = LeadershipNotice(until=0.0)
        self.asks: dict[NodeName, RankStackTraceRequest] = {}
        self._open: dict[int, Future[bytes]] = {}
        self._numbers = iter(range(2**62))
        self._lock = threading.Lock()
        self._addresses: dict[NodeName, str] | None = None
        self.orders: dict[NodeName, str] = {}
        """What waits for a node's agent."""
        self._held: dict[NodeName, tuple[NodeGeneration, str]] = {}
        self._beats: dict[str, wire.Heartbeat] = {}
        self._quiet = QUIET_TICKS
        self._going: queue.SimpleQueue[tuple[wire.Heartbeat, ...]] = queue.SimpleQueue()

    def ask(self, what: channel.Question) -> bytes:
        """Return the answer to a question. Raises Refusal; blocks for ANSWER_S at most."""
        answer: Future[bytes] = Future()
        with self._lock:
            number = next(self._numbers)
            self._open[number] = answer
        try:
            self._line.send(channel.Ask(number, what))
            return answer.result(ANSWER_S)
        except futures.TimeoutError as error:
            text = f"the daemon did not answer within {ANSWER_S:.0f} s"
            raise RequestRefusal(503, "daemon_busy", text, "try again") from error
        finally:
            self._open.pop(number, None)

    def accept(self, *reports: AgentReport) -> None:
        """Have reports stored, and keep the digests of their findings."""
        self.ask(channel.StoreReports(reports))
        for report in reports:
            self._held[report.node] = (
                report.generation,
                wire.compute_findings_digest(report.findings),
            )

    def heard(self, heartbeat: wire.Heartbeat) -> bool:
        """Note a heartbeat; False where its findings are not those that were stored."""
        held = (heartbeat.generation, heartbeat.digest)
        if self._held.get(NodeName(heartbeat.node)) != held:
            return False
        self._beats[heartbeat.node] = heartbeat
        return True

    def tick(self) -> None:
        """Send the heartbeats on. On the event loop: the channel may be full."""
        self._quiet += 1
        if self._beats or self._quiet >= QUIET_TICKS:
            self._quiet = 0
            beats, self._beats = tuple(self._beats.values()), {}
            # A daemon that takes nothing for a while hears the newest of each node afterwards.
            if self._going.qsize() < 2:
                self._going.put(beats)
            else:
                self._beats = {beat.node: beat for beat in beats}

    def forward_heartbeats(self) -> None:
        """Forever: what `tick` has put by."""
        while True:
            try:
                self._line.send(channel.Beats(self._going.get()))
            except (ArithmeticError, TypeError, ValueError):  # no frame: it may cost these alone
                log.exception("heartbeats were dropped")

    def address_of(self, node: NodeName) -> str | None:
        """Slurm's address of a node. Raises Unavailable until it is known."""
        if self._addresses is None:
            raise ServiceUnavailable(
                "the head node cannot check a node's report: Slurm has not answered the daemon yet",
                "nothing to do: the agent sends the report again",
            )
        return self._addresses.get(node)

    def relay_job_report(
        self, report: JobReport, uid: int, asked: datetime
    ) -> job_wire.JobReportAck:
        """Return what the daemon answers to a job's report. Raises Refusal."""
        return job_wire.decode_job_report_ack(self.ask(channel.FromJob(report, uid, asked)))

    def relay_operator_request(self, asked: wire.OperatorRequest, uid: int, address: str) -> int:
        """Return the number of an operator's request. Raises Refusal."""
        return int(self.ask(channel.RelayedRequest(asked, uid, address)))

    def take(self, body: bytes) -> dict[str, int]:
        """Return what the daemon answers to a notification of alerts. Raises Refusal."""
        return msgspec.json.decode(self.ask(channel.TakeAlerts(body)), type=dict[str, int])

    def scrape(self) -> bytes:
        """Return the daemon's own metrics; nothing while it is busy."""
        try:
            return self.ask(channel.Scrape())
        except RequestRefusal as refusal:
            log.warning("/metrics without the daemon's own: %s", refusal)
            return b""

    def discover(self) -> bytes:
        """Return the agents for Prometheus. Raises Refusal."""
        return self.ask(channel.Discover())

    def listen(self) -> None:
        """Take in what the daemon says, until it is gone."""
        while True:
            try:
                message: channel.ToIntake = self._line.receive()
            except (EOFError, OSError):
                return
            self._apply_daemon_message(message)

    def _apply_daemon_message(self, message: channel.ToIntake) -> None:
        match message:
            case channel.IntakeNodes(addresses, orders):
                self._addresses, self.orders = addresses, orders
            case channel.Asks(stacks):
                self.asks.clear()
                self.asks.update(stacks)
            case channel.Leads(until, leader):
                if not self.leading.now:
                    # Another daemon may have heard other findings since.
                    self._held = {}
                self.leading.renew(until, leader)
            case channel.ChannelAnswer(number, value):
                waiting = self._open.get(number)
                if waiting:
                    waiting.set_result(value)
            case channel.ChannelRefusal(number, status, code, text, hint, more):
                waiting = self._open.get(number)
                if waiting:
                    waiting.set_exception(RequestRefusal(status, code, text, hint, **more))


class IntakeRouteDependencies(Struct, frozen=True):
    """What the routes of a room are made of."""

    daemon: IntakeDaemonClient
    settings: IntakeAuthenticationSettings
    clock: Clock
    registry: CollectorRegistry


MakeRoute = Callable[[IntakeRouteDependencies], Route]


def make_intake_process_application(
    setup: channel.Setup,
    daemon: IntakeDaemonClient,
    registry: CollectorRegistry,
    others: Sequence[MakeRoute] = (),
) -> ASGIApp:
    """Return all that the intake answers, with its counters. `others`: the routes of other
    rooms."""
    munge_socket = Path(setup.munge_socket) if setup.munge_socket else None
    settings = IntakeAuthenticationSettings(
        munge_socket, frozenset(setup.allowed_uids), leading=daemon.leading, asks=daemon.asks
    )
    token = Path(setup.token_file) if setup.token_file else None
    clock = SystemClock()
    parts = IntakeRouteDependencies(daemon, settings, clock, registry)
    routes = [
        *alert_routes(token, daemon.take, registry),
        *(make(parts) for make in others),
        request_route(daemon.relay_operator_request, settings, registry),
        make_discovery_route(daemon.discover),
    ]
    if setup.journal:
        routes.append(
            make_journal_copy_route(JournalCopier(Path(setup.journal), clock), settings, registry)
        )
    where, scrape = daemon.address_of, daemon.scrape
    return make_agent_intake_app(
        settings, daemon, where, registry,
        routes=routes, scrape=scrape, order_for=lambda node: daemon.orders.get(node, ""),
    )  # fmt: skip


def register_connection_gauges(crowd: PeerConnectionTracker, registry: CollectorRegistry) -> None:
    """Show how many connections there are."""
    Gauge("hpctl_intake_connections", "Open now.", registry=registry).set_function(crowd.__len__)
    dropped = Gauge("hpctl_intake_dropped", "Closed for lack of space or time.", registry=registry)
    dropped.set_function(lambda: crowd.dropped)


def serve_intake(
    listener: socket.socket, line: channel.IntakeChannel, others: Sequence[MakeRoute] = ()
) -> None:
    """Until the daemon is gone."""
    setup: channel.Setup = line.receive()
    daemon, registry = IntakeDaemonClient(line), CollectorRegistry()
    disable_created_metrics()  # type: ignore[no-untyped-call]
    app = make_intake_process_application(setup, daemon, registry, others)
    server = UvicornServerThread(
        app, bounds=ConnectionLimits(in_all=_raise_descriptor_limit() - RESERVED), tick=daemon.tick
    )
    register_connection_gauges(server.connections, registry)
    server.start(listener=listener)
    threading.Thread(target=daemon.forward_heartbeats, name="beats", daemon=True).start()
    daemon.listen()
    # Nothing of what is under way can be acknowledged any longer.
    os._exit(0)


def _raise_descriptor_limit() -> int:
    """How many descriptors this process may have, after it took all that it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = ConnectionLimits().in_all + RESERVED
    return most if hard == resource.RLIM_INFINITY else min(hard, most)


def main(others: Sequence[MakeRoute] = ()) -> None:
    """Serve as the daemon starts it: LISTENER CHANNEL LEVEL, two descriptors and the log's level.

    `others`: the routes of other rooms.
    """
    listener, ours = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    # A terminal's interrupt is the daemon's to hear; what ends the daemon ends the channel.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Of the 8 MB that each of some sixty threads would have by default, a part would count.
    threading.stack_size(1024 * 1024)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    logging.basicConfig(
        level=int(sys.argv[3]), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    serve_intake(listener, channel.IntakeChannel.make_intake_end(ours), others)


if __name__ == "__main__":
    main()

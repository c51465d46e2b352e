"""A daemon with its intake: `python -m benchmarks.intake_at MUNGE_SOCKET NODES [MODE]`.

Prints its port, and the intake's process, as JSON, and ends with its standard input. With NODES it
is a daemon but for who would act: it reads Slurm's text and goes round the real loop as often as
a daemon of that size does; `busy`: without a pause, and each time round is a line of output.
`hello` is the rival: the same server with nothing behind it.
"""

import json
import os
import select
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import scontrol_text
from benchmarks.fleet import name_of
from benchmarks.world import CAREFUL, CLOCK, World, WorldProvider, WorldScheduler
from hpctl.daemon.kinds import KINDS
from hpctl.engine.cloud_watch import CloudPoller
from hpctl.engine.config import Config
from hpctl.engine.execute import StepExecutor, StepExecutorPorts
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.store import JournalStore
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop import RecoveryLoop
from hpctl.engine.loop_port import RecoveryLoopAccess
from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.observe import ClusterObserver, ObserverSources
from hpctl.engine.request_intake import OperatorRequestHandler
from hpctl.faults.catalogue import build_fault_rules
from hpctl.insight.grey.daemon import GreyFailureDetector, GreyFailureFindings
from hpctl.jobs.hangs.daemon import HangDetector
from hpctl.jobs.report_intake import JobReportHandler
from hpctl.service.intake import channel
from hpctl.service.intake.line import IntakeConnection
from hpctl.service.intake.process import IntakeBackend, IntakeProcess
from hpctl.service.intake.server import ConnectionLimits, UvicornServerThread
from hpctl.service.metrics import DaemonMetrics
from hpctl.slurm.read import SlurmCommandReader
from hpctl.slurm.run import SlurmCommandRunner

CYCLE_S = 10.0
AT_LEAST = 1000
"""Nodes that Slurm has where there is no loop."""
FLUSH_S = 7.5
"""A quarter of the lease, as the daemon does."""


async def hello(_scope: Any, receive: Any, send: Any) -> None:
    """The least that any ASGI application does with a request."""
    await receive()
    body = b'{"ack":1}'
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _nothing() -> None:
    return


def serve(directory: Path, munge_socket: Path, nodes: int, mode: str) -> None:
    """Serve until standard input ends."""
    store = JournalStore(f"sqlite:///{directory}/journal.db")
    store.take_lease(DaemonIdentity("bench", 1, "0", "own", ""), store.daemon(), CLOCK.now(), 3600)
    book = NodeHealthStore({}, store, _nothing, CLOCK)
    loop = _loop(directory, store, book, nodes) if nodes else None
    line = IntakeConnection()
    server = _bare() if mode == "hello" else _intake(munge_socket, book, line)
    server.start()
    pid = server.pid if isinstance(server, IntakeProcess) else os.getpid()
    if isinstance(server, IntakeProcess):
        names = (name_of(number) for number in range(max(nodes, AT_LEAST)))
        line.set_node_addresses(dict.fromkeys(names, "127.0.0.1"))
    print(json.dumps({"port": server.port, "intake": pid}), flush=True)
    next_cycle = next_flush = time.monotonic() + 1
    pause = 0.0 if mode == "busy" else 0.25
    while not select.select([sys.stdin], [], [], pause)[0]:
        now = time.monotonic()
        if now >= next_flush:
            book.flush()
            next_flush += FLUSH_S
        if loop is not None and now >= next_cycle:
            loop.cycle(CAREFUL, build_fault_rules())
            next_cycle += 0.0 if mode == "busy" else CYCLE_S
            if mode == "busy":
                print(time.monotonic() - now, flush=True)
    server.stop()
    store.close()


def _bare() -> UvicornServerThread:
    """The rival knows no node, so that none of its connections may be short of room or time."""
    many = 1 << 20
    server = UvicornServerThread(
        hello, "127.0.0.1", bounds=ConnectionLimits(many, many, many, many)
    )
    server.connections.sweep = lambda: None  # type: ignore[method-assign]
    return server


def _intake(munge_socket: Path, book: NodeHealthStore, line: IntakeConnection) -> IntakeProcess:
    setup = channel.Setup(str(munge_socket), (os.geteuid(),), None)
    nobody: Any = None
    grey = GreyFailureDetector(GreyFailureFindings(), book, nobody, CLOCK)
    listeners = (grey.hear, HangDetector().hear)
    backend = IntakeBackend(book, nobody, nobody, DaemonMetrics(), on_gauges=listeners)
    return IntakeProcess(setup, "127.0.0.1:0", backend, line)


def _loop(directory: Path, store: JournalStore, book: NodeHealthStore, nodes: int) -> RecoveryLoop:
    world = World(nodes, nodes // 10)
    scheduler = WorldScheduler(world)
    reader = SlurmCommandReader(
        SlurmCommandRunner(bin_dir=scontrol_text.install(world, directory)), CLOCK.now
    )
    scheduler.view = reader.view  # type: ignore[method-assign]
    cloud = CloudPoller(WorldProvider(world), _nothing, 30)
    cloud.read()
    live = LiveConfig(Config(kill_switch=directory / "STOP"))
    watch = ClusterObserver(
        ObserverSources(scheduler, cloud, book, hangs=HangDetector()), live, CLOCK
    )
    memory = JournaledState(store)
    executor = StepExecutor(StepExecutorPorts(scheduler, WorldProvider(world)), memory, CLOCK)
    port = RecoveryLoopAccess(watch, memory, CLOCK, _nothing)
    requests = OperatorRequestHandler(store, port, live)
    jobs = JobReportHandler(store, port, live)
    return RecoveryLoop(memory, executor, watch, requests, CLOCK, KINDS, jobs)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as scratch:
        serve(Path(scratch), Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

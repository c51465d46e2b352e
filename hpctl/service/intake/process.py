"""The daemon's side of its intake: starts the process, answers it, starts it again where it ends.

The daemon keeps the listening socket, so that the port is never anybody else's while the daemon
runs, and connections wait in the kernel for the moments in which the intake is started again.
"""

import contextlib
import logging
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec import Struct
from prometheus_client import generate_latest

from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.request_intake import OperatorRequestHandler
from hpctl.service.alerts import AlertmanagerWebhook
from hpctl.service.intake import channel
from hpctl.service.intake.line import IntakeConnection
from hpctl.service.intake.server import open_listening_socket
from hpctl.service.metrics import DaemonMetrics
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.threads import start_thread_pool
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.wire import job_reports as job_wire
from hpctl.wire import reports as wire
from hpctl.wire.authentication import LeadershipNotice, RequestRefusal

log = logging.getLogger(__name__)

MODULE = "hpctl.service.intake.child"
"""The process without the routes of other rooms."""
START_S = 30.0
"""How long the intake may take to start."""
SILENT_S = 60.0
"""After how long without a word the intake, which says one every two seconds, is hung."""
AGAIN_S = (0.1, 5.0)
"""How soon an intake that ended is started again: at first, and where it keeps ending."""
LIVED_S = 60.0
"""An intake that ran for so long was well."""


SAY_S: Final = 0.25
LEADS_S: Final = 2.0
"""How often the intake hears whether the daemon leads, and how long it believes that."""


class DaemonLeadershipStatus(Protocol):
    """Which daemon leads, as this one knows it. Asked on several threads; never blocks."""

    @property
    def serves(self) -> bool:
        """Return whether this daemon takes reports and requests now."""

    @property
    def leader_address(self) -> str:
        """HOST:PORT of the leader's intake; empty where none is known."""


class SingleDaemonLeadershipStatus:
    """The leadership of a daemon whose journal no other shares."""

    serves = True
    leader_address = ""


class JobReportSink(Protocol):
    """Takes the reports of the supervisors inside jobs."""

    def take(self, report: JobReport, uid: int, asked: datetime) -> job_wire.JobReportAck:
        """Take in one report of an authenticated user, which came at `asked`. Raises Refusal."""


class IntakeBackend(Struct, frozen=True):
    """Who answers what the intake asks, on its threads, and where what it accepts goes.

    Each of `on_gauges` receives the gauges of an authenticated report or heartbeat.
    """

    health: NodeHealthStore
    requests: OperatorRequestHandler
    webhook: AlertmanagerWebhook
    metrics: DaemonMetrics
    leadership: DaemonLeadershipStatus = SingleDaemonLeadershipStatus()
    jobs: JobReportSink | None = None
    on_gauges: Sequence[Callable[[NodeGeneration, Mapping[str, float]], None]] = ()

    def heard(self, heartbeat: wire.Heartbeat) -> None:
        """Note that a node lives, and take its gauges."""
        if self.health.heard(heartbeat):
            self._forward_node_gauges(heartbeat.generation, heartbeat.gauges)

    def _forward_node_gauges(self, generation: NodeGeneration, gauges: Mapping[str, float]) -> None:
        for hear in self.on_gauges:
            hear(generation, gauges)

    def answer(self, question: channel.Question) -> bytes:
        """Return the answer. Raises Refusal, OSError, HpctlError.

        A standby takes alerts, which are kept on its own disk: Alertmanager sends nothing again
        after a 421. Everything else is the leader's, whatever the intake still believed.
        """
        if not (
            isinstance(question, channel.TakeAlerts | channel.Scrape) or self.leadership.serves
        ):
            LeadershipNotice(0.0, self.leadership.leader_address).check()
        match question:
            case channel.StoreReports(reports):
                self.health.accept(*reports)
                for report in reports:
                    self._forward_node_gauges(report.generation, report.gauges)
                return b""
            case channel.FromJob(report, uid, asked):
                if self.jobs is None:
                    raise RequestRefusal(404, "unknown_job", "this daemon takes no reports of jobs")
                return job_wire.encode_job_report_ack(self.jobs.take(report, uid, asked))
            case channel.RelayedRequest(asked_for, uid, address):
                return str(self.requests.take(asked_for, uid, address)).encode()
            case channel.TakeAlerts(body):
                return msgspec.json.encode(self.webhook.take(body))
            case channel.Scrape():
                return generate_latest(self.metrics.registry)
            case channel.Discover():
                return msgspec.json.encode(self.metrics.targets())


class IntakeProcess:
    """The intake, as the daemon starts and stops it."""

    def __init__(
        self,
        setup: channel.Setup,
        listen_on: str,
        backend: IntakeBackend,
        line: IntakeConnection,
        module: str = MODULE,
    ) -> None:
        """`listen_on` is HOST:PORT; without HOST, every address. `backend` is called on threads, of
        which reports have their own. `line` is connected to the process that runs, and closed by
        `stop`. `module` is the program of that process."""
        self._module = module
        self._setup, self._listen_on, self._backend = setup, listen_on, backend
        self._line = line
        # What jobs say must never keep what nodes say waiting.
        self._reports = start_thread_pool(2, "intake-reports")
        self._others = start_thread_pool(3, "intake-others")
        self._listener: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: channel.IntakeChannel | None = None
        self._stopping, self._changed = threading.Event(), threading.Event()
        self._up = threading.Event()
        self._thread = threading.Thread(
            target=self._restart_process_until_stopped, name="intake-keeper", daemon=True
        )

    @property
    def pid(self) -> int:
        """Return the process's id; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def port(self) -> int:
        """Return where it listens, once started."""
        assert self._listener is not None
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Listen and serve. Raises Unavailable where the port cannot be had."""
        host, _, port = self._listen_on.rpartition(":")
        self._listener = open_listening_socket(host or "0.0.0.0", int(port))  # noqa: S104
        self._thread.start()
        threading.Thread(
            target=self._send_leadership_status_until_stopped, name="intake-leads", daemon=True
        ).start()
        if not self._up.wait(START_S):
            self.stop()
            raise ServiceUnavailable(
                "the daemon's process that receives agents' reports (the intake) did not start",
                "The log lines before this one say why.",
            )

    def duplicate_listening_socket(self) -> int:
        """Return a descriptor of the listening socket that outlives `stop`."""
        assert self._listener is not None
        return os.dup(self._listener.fileno())

    def stop(self, *, wait: bool = True) -> None:
        """End it; without `wait`, and leave what is being answered to itself. What was not
        acknowledged is sent again by its sender."""
        self._stopping.set()
        self._kill_intake_process()
        if self._thread.is_alive():
            self._thread.join(5.0)
        if self._listener is not None:
            self._listener.close()
        for pool in (self._reports, self._others):
            pool.shutdown(wait=wait, cancel_futures=True)
        self._line.close(wait=wait)

    def _restart_process_until_stopped(self) -> None:
        soon, latest = AGAIN_S
        pause = soon
        while not self._stopping.is_set():
            begun = time.monotonic()
            try:
                self._start_intake_process()
                self._process_intake_messages()
            # This thread is all that starts the intake: nothing may end it.
            except Exception:
                log.exception("the intake's process failed")
            self._kill_intake_process()
            if self._stopping.is_set():
                return
            pause = soon if time.monotonic() - begun > LIVED_S else min(2 * pause, latest)
            log.error("the intake's process ended; another is started in %.1f s", pause)
            self._stopping.wait(pause)

    def _start_intake_process(self) -> None:
        assert self._listener is not None
        ours, theirs = socket.socketpair()
        places = [str(Path(__file__).parents[3]), *os.environ.get("PYTHONPATH", "").split(":")]
        with theirs:
            passed = [self._listener.fileno(), theirs.fileno()]
            level = logging.getLogger().getEffectiveLevel()
            self._process = subprocess.Popen(
                [sys.executable, *SAFE_PATH, self._module, *map(str, [*passed, level])],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": ":".join(filter(None, places))},
            )
        self._channel = channel.IntakeChannel.make_daemon_end(ours)
        self._channel.send(self._setup)
        self._channel.send(self._leads())
        self._line.connect(self._channel)

    def _leads(self) -> channel.Leads:
        leadership = self._backend.leadership
        # With a local journal no other daemon can lead, however long this process is busy.
        lasts_s = LEADS_S if self._setup.journal is None else math.inf
        until = time.monotonic() + lasts_s if leadership.serves else 0.0
        return channel.Leads(until, leadership.leader_address)

    def send_leadership_change_now(self) -> None:
        """At once, where that has just changed."""
        self._changed.set()

    def _send_leadership_status_until_stopped(self) -> None:
        """On a separate thread: neither the loop nor a journal that hangs may keep it waiting."""
        while not self._stopping.is_set():
            self._changed.wait(SAY_S)
            self._changed.clear()
            self._line.send(self._leads())

    def _process_intake_messages(self) -> None:
        """Hear the intake until it ends, or is silent for too long."""
        end = self._channel
        while end is not None and not self._stopping.is_set():
            try:
                message: channel.FromIntake = end.receive(SILENT_S)
            except (EOFError, OSError):  # TimeoutError is an OSError
                return
            self._up.set()
            match message:
                case channel.Beats(heartbeats):
                    for heartbeat in heartbeats:
                        self._backend.heard(heartbeat)
                case channel.Ask(number, what):
                    pool = self._reports if isinstance(what, channel.StoreReports) else self._others
                    pool.submit(self._answer_intake_question, end, number, what)

    def _answer_intake_question(
        self, end: channel.IntakeChannel, number: int, what: channel.Question
    ) -> None:
        message: channel.ToIntake
        try:
            message = channel.ChannelAnswer(number, self._backend.answer(what))
        except RequestRefusal as refusal:
            code, text, hint = refusal.code, str(refusal), refusal.hint
            message = channel.ChannelRefusal(number, refusal.status, code, text, hint, refusal.more)
        # Whatever broke, the intake must hear that nothing was stored.
        except Exception as error:
            if not isinstance(error, (OSError, HpctlError)):
                log.exception("what the intake asked could not be answered")
            message = channel.ChannelRefusal(
                number, 503, "journal_unavailable", f"not stored: {error}", "", {}
            )
        with contextlib.suppress(OSError):
            end.send(message)

    def _kill_intake_process(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if threading.current_thread() is self._thread and self._channel is not None:
            self._line.detach_channel()
            end, self._channel = self._channel, None
            end.close()

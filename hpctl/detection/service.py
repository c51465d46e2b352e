"""The agent's main loop: read the kernel's log, fold its lines, wake the sender."""

import logging
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from itertools import chain
from types import FrameType
from typing import Protocol

from msgspec.structs import replace

from hpctl.detection.checking import NAMES, CheckSupervisor
from hpctl.detection.findings import FindingStore
from hpctl.detection.kernel.log import KernelLogAnalyzer
from hpctl.detection.kmsg import BATCH, FILE_POLL_S, KernelLog, open_kernel_log
from hpctl.detection.metrics import MetricsServer
from hpctl.detection.outside.sources import (
    ExternalFindingSources,
    JobStackCollector,
    is_external_source_check,
)
from hpctl.detection.send import ReportSender
from hpctl.detection.send_pace import SendRateLimiter
from hpctl.detection.settings import AgentSettings
from hpctl.detection.slurm_jobs import ProcessJobFinder
from hpctl.detection.spool import FindingsSpool
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.vocabulary.evidence import PLACE_CHECK
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import TEST, ClearCondition, DeviceVerdict, Finding
from hpctl.wire import reports as wire
from hpctl.wire.stack_request import RankStackTraceRequest
from hpctl.wire.systemd import notify_systemd, read_watchdog_interval

log = logging.getLogger(__name__)


def is_check_from_non_agent_source(check: str) -> bool:
    """Return whether findings of that check are not to be recalled from the agent's spool."""
    return is_external_source_check(check) or check.startswith(TEST) or check == PLACE_CHECK


CHECK_LOG = "kernel.log"


UNREADABLE = "unreadable"


REOPEN_S = 1.0


BATCHES_A_TURN = 32
"""The most reads in one turn, so that an endless storm delays neither signals nor the watchdog."""


SENDER_STUCK_S = 60.0
"""A sender without progress for so long is stuck: systemd's watchdog restarts the agent."""


MOST_PLACE = 256
"""Characters of the name of a directory in a report."""


STOP_S = 5.0
"""How long the agent's parts may take to end, all together."""


class NodeTestResults(Protocol):
    """The results that tests of this node left for its agent."""

    def prepare(self) -> None:
        """Make the folder. Raises OSError."""

    def look(self) -> bool:
        """Return whether there are new results."""

    def findings(self) -> tuple[Finding, ...]:
        """Return the results as findings."""


Hold = Callable[[], AbstractContextManager[None]]


Report = Callable[[list[Finding]], None]


MakeOrderHandler = Callable[[AgentSettings, Hold, Report, Sequence[Finding]], Callable[[str], None]]
"""The factory of the function that carries out the daemon's orders, each a credential.

It gets the settings, the context in which the agent does not read the GPUs, where to report, and
the findings of this boot's former agents.
"""


class NodeAgent:
    """One node's agent. `run` returns after SIGTERM or SIGINT, or after `stop`."""

    def __init__(
        self,
        settings: AgentSettings,
        make_order_handler: MakeOrderHandler,
        tests: Sequence[NodeTestResults] = (),
    ) -> None:
        """Read the spool. `tests`: where tests of this node leave their results."""
        self._settings = settings
        spool = FindingsSpool(settings.spool)
        generation = NodeGeneration(settings.node, settings.instance, settings.boot)
        recalled = spool.recall(generation)
        self._lock = threading.Lock()
        mine = [
            f
            for f in recalled.findings
            if f.check not in NAMES and not is_check_from_non_agent_source(f.check)
        ]
        self._findings = FindingStore(mine)
        self._blind = {f.detail for f in mine if f.check == CHECK_LOG and f.code == UNREADABLE}
        self._version = 1
        self._kernel = KernelLogAnalyzer(ProcessJobFinder().of)
        self._log: KernelLog | None = None
        self._lost = 0
        self._behind = False
        self._reopen_at = 0.0
        self._stopping = False
        self._pace = SendRateLimiter()
        self._turned = datetime.now(UTC)
        self._place = _make_evidence_location_findings(
            settings.config.evidence.directory, self._turned
        )
        self._checks = CheckSupervisor(settings, recalled.findings, self)
        self._outside = ExternalFindingSources(
            settings.places, generation, settings.spool, agent=self, earlier=recalled.findings
        )
        self._tests = tests
        obey = make_order_handler(settings, self._checks.held, self._add_findings_to_store, mine)
        self._sender = ReportSender(
            settings=settings,
            spool=spool,
            agent_start=_choose_agent_start_time(recalled.agent_start),
            knowledge=self,
            orders=_HeadNodeOrderHandlers(self._outside.stacks, obey),
        )
        self._waker, self._woken = socket.socketpair()
        self._endpoint = self._create_metrics_server()

    def _create_metrics_server(self) -> MetricsServer | None:
        settings = self._settings
        if not settings.metrics:
            return None
        hosts, allow = [head.host for head in settings.heads], settings.metrics_allow.split(",")
        allow = [one for one in allow if one]
        try:
            return MetricsServer(settings.metrics, hosts, allow, self._render_metrics)
        except HpctlError as error:  # the node is still watched
            log.warning("%s. %s", error, error.hint)
            return None

    def _render_metrics(self) -> bytes:
        return self._checks.metrics(self.snapshot()[1])

    def run(self) -> None:
        """Serve until a signal stops it. Only in the main thread, for the signals."""
        for end in (self._waker, self._woken):
            end.setblocking(False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle_stop_signal)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._woken, selectors.EVENT_READ)
            selector.register(self._checks, selectors.EVENT_READ)
            # Read the existing log first, so that the first report is not empty.
            self._read_kernel_log(selector)
            self._sender.start()
            self._checks.start()
            self._outside.start()
            for results in self._tests:
                results.prepare()
            if self._endpoint is not None:
                self._endpoint.start()
            notify_systemd("READY=1")
            self._run_event_loop(selector)
            notify_systemd("STOPPING=1")
            self._close_kernel_log(selector)
        parts = (self._endpoint, *self._outside.parts, self._checks, self._sender)
        stop_agent_parts(part for part in parts if part is not None)
        signal.set_wakeup_fd(-1)

    def stop(self) -> None:
        """Make `run` return soon. From any thread."""
        self._stopping = True
        self._waker.send(b"\0")

    def _handle_stop_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _run_event_loop(self, selector: selectors.BaseSelector) -> None:
        watchdog = read_watchdog_interval()
        next_sign = time.monotonic()
        while not self._stopping:
            now = time.monotonic()
            if watchdog is not None and now >= next_sign:
                next_sign = now + watchdog
                if now - self._sender.progress < SENDER_STUCK_S:
                    notify_systemd("WATCHDOG=1")
            if not self._sender.is_alive():
                what = "the report sender's thread ended unexpectedly"
                raise HpctlError(what, "The log lines before this one say why.")
            selector.select(self._compute_select_timeout(watchdog))
            self._read_kernel_log(selector)
            self._turned = datetime.now(UTC)
            self._checks.listen()
            for results in self._tests:
                if results.look():
                    self.handle_finding_change()
            self._wake_sender_if_due()

    def _compute_select_timeout(self, watchdog: float | None) -> float:
        if self._behind:
            return 0.0
        if self._log is not None and self._log.fileno() is None:
            return FILE_POLL_S
        waits = (watchdog, self._pace.wait_s(time.monotonic()), REOPEN_S)
        return min(wait for wait in waits if wait is not None)

    def _read_kernel_log(self, selector: selectors.BaseSelector) -> None:
        """Read all waiting records. A log that cannot be read is an UNKNOWN finding until it can
        be."""
        accept_user = self._settings.kmsg_accept_user
        self._behind = False
        try:
            source = self._open_kernel_log(selector)
            if source is None:
                return
            for _ in range(BATCHES_A_TURN):
                records = source.read()
                self._add_findings_to_store(self._kernel.findings(records, accept_user=accept_user))
                if source.lost > self._lost:
                    count, self._lost = source.lost - self._lost, source.lost
                    self._add_findings_to_store(
                        [
                            _make_kernel_log_finding(
                                DeviceVerdict.WARN, "lost", "records were lost", count
                            )
                        ]
                    )
                if len(records) < BATCH:
                    break
            else:
                self._behind = True
            if self._blind:
                self._add_findings_to_store(
                    [
                        _make_unreadable_kernel_log_finding(DeviceVerdict.OK, why)
                        for why in self._blind
                    ]
                )
                self._blind.clear()
        except ServiceUnavailable as error:
            self._close_kernel_log(selector)
            self._reopen_at = time.monotonic() + REOPEN_S
            self._blind.add(why := str(error)[:200])
            self._add_findings_to_store(
                [_make_unreadable_kernel_log_finding(DeviceVerdict.UNKNOWN, why)]
            )

    def _open_kernel_log(self, selector: selectors.BaseSelector) -> KernelLog | None:
        if self._log is None and time.monotonic() >= self._reopen_at:
            self._log, self._lost = open_kernel_log(self._settings.kmsg), 0
            fd = self._log.fileno()
            if fd is not None:
                selector.register(fd, selectors.EVENT_READ)
        return self._log

    def _close_kernel_log(self, selector: selectors.BaseSelector) -> None:
        if self._log is not None:
            fd = self._log.fileno()
            if fd is not None:
                selector.unregister(fd)
            self._log.close()
            self._log = None

    def _add_findings_to_store(self, findings: list[Finding]) -> None:
        if not findings:
            return
        with self._lock:
            new = [finding for finding in findings if self._findings.add(finding)]
            self._version += bool(new)
        if new:
            for finding in new:
                log.info("new finding: %s %s", finding.check, finding.evidence or finding.detail)
            self._pace.news()
            self._wake_sender_if_due()

    def _wake_sender_if_due(self) -> None:
        if self._pace.due(time.monotonic()):
            self._sender.wake()

    def handle_finding_change(self) -> None:
        """Report immediately that a finding came or went. From any thread."""
        with self._lock:
            self._version += 1
        self._sender.wake()

    def gauges(self) -> Mapping[str, float]:
        """Return the numbers that are in reports and heartbeats alike. From any thread."""
        return self._checks.gauges()

    def get_latest_findings(self) -> tuple[datetime, tuple[Finding, ...]]:
        """Return when the loop last turned, and all findings. From any thread."""
        return self._turned, self.snapshot()[1]

    def snapshot(self) -> tuple[int, tuple[Finding, ...]]:
        """Return all findings, with a version that grows whenever one comes or goes. From any
        thread."""
        with self._lock:
            version, logged = self._version, self._findings.all()
        # Kernel findings come first: they are the stronger evidence where not all fits.
        found = (
            *logged,
            *self._checks.findings(),
            *self._outside.findings(),
            *chain.from_iterable(results.findings() for results in self._tests),
            *self._place,
        )
        return version, found[: wire.MAX_FINDINGS]


class _HeadNodeOrderHandlers:
    """The handlers of what the head node requests in its answers."""

    def __init__(self, stacks: JobStackCollector, obey: Callable[[str], None]) -> None:
        self._stacks, self._obey = stacks, obey

    def read_stacks(self, ask: RankStackTraceRequest) -> None:
        self._stacks.ask(ask)

    def obey(self, order: str) -> None:
        self._obey(order)


class StoppableAgentPart(Protocol):
    """A part of the agent that ends within seconds."""

    def stop(self) -> None:
        """Stop; the part is abandoned after some seconds."""


def stop_agent_parts(parts: Iterable[StoppableAgentPart]) -> None:
    """Stop all in parallel, within STOP_S: one after the other, each that hangs would add its
    seconds, and systemd would kill the agent before the last has saved its findings."""
    stopping = [threading.Thread(target=part.stop, daemon=True) for part in parts]
    until = time.monotonic() + STOP_S
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join(max(0.0, until - time.monotonic()))
    left = sum(thread.is_alive() for thread in stopping)
    if left:
        log.warning("%d of the agent's parts did not end within %g s: left", left, STOP_S)


def _make_evidence_location_findings(directory: str, now: datetime) -> tuple[Finding, ...]:
    """Return where this agent keeps evidence, for the head node to compare with its own setting;
    nothing where it keeps none."""
    if not directory:
        return ()
    detail = directory[:MOST_PLACE]
    return (
        Finding(PLACE_CHECK, DeviceVerdict.OK, now, now, detail=detail, clears=ClearCondition.GONE),
    )


def _make_kernel_log_finding(
    verdict: DeviceVerdict, code: str, detail: str, count: int = 1
) -> Finding:
    now = datetime.now(UTC)
    return Finding(CHECK_LOG, verdict, now, now, code=code, detail=detail, count=count)


def _make_unreadable_kernel_log_finding(verdict: DeviceVerdict, why: str) -> Finding:
    return replace(_make_kernel_log_finding(verdict, UNREADABLE, why), clears=ClearCondition.GONE)


def _choose_agent_start_time(earlier: datetime | None) -> datetime:
    """Return the present time, but later than the run before even where the clock was set back in
    between."""
    now = datetime.now(UTC)
    return now if earlier is None else max(now, earlier + timedelta(microseconds=1))

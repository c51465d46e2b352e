"""All other sources of findings on this node, as one object for the agent's main loop.

The socket for scripts, the plugins and HyperPod's health agent, each on a separate thread, so that
none of them can block the agent's own checks; and the stacks of a job's ranks, read on request of
the head node, and reported as findings. A process of the lowest priority reads them, with the
agent's own rights: a process with CAP_SYS_PTRACE may read the ranks' memory under any setting of
Yama, and no process is stopped for it. It reads only processes of the job's owner.
"""

import logging
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from hpctl.detection.budget import CheckLoadShedder
from hpctl.detection.changes import FindingChangeListener
from hpctl.detection.check import CheckedMachine
from hpctl.detection.machine import read_machine_uptime_s
from hpctl.detection.outside.ask import SOCKET
from hpctl.detection.outside.hma_log import open_health_agent_log
from hpctl.detection.outside.hma_watch import HealthAgentLogWatcher, compute_machine_boot_time
from hpctl.detection.outside.local_server import AgentSocketServer
from hpctl.detection.outside.node_verdict import NodeVerdict, compute_node_verdict
from hpctl.detection.outside.plugins import CHECK_DIRECTORY, DIRECTORY, load_check_plugins
from hpctl.detection.outside.reported import ReportedFindingTable
from hpctl.detection.runner import CheckRunner, LoadedCheck
from hpctl.faults.catalogue import build_fault_rules
from hpctl.toolkit.compat import SAFE_PATH, UTC
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.toolkit.run_within import run_program_with_timeout
from hpctl.vocabulary.identity import NodeGeneration, NodeName
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding
from hpctl.wire.stack_request import CHECK, RankStackTraceRequest

NICE = ("nice", "-n", "19")
log = logging.getLogger(__name__)

READ_S, KEPT_S = 30.0, 120.0
"""How long the reading may take, and for how long its findings are reported. In seconds."""
MOST = 64
"""Findings of one answer, of two lines each: an eighth of what a report holds."""


class JobStackCollector:
    """A reader of stacks on a thread, one request at a time. `listener` is called for an answer."""

    def __init__(self, node: NodeName, listener: FindingChangeListener) -> None:
        self._node, self._listener = node, listener
        self._lock = threading.Lock()
        self._asked = ""
        self._busy = False
        self._findings: tuple[Finding, ...] = ()
        self._until = 0.0

    def ask(self, ask: RankStackTraceRequest) -> None:
        """Read for this request, unless that was done or is under way. Does not wait."""
        with self._lock:
            if self._busy or ask.id == self._asked:
                return
            self._asked, self._busy = ask.id, True
        threading.Thread(target=self._read, args=(ask,), name="stacks", daemon=True).start()

    def findings(self) -> tuple[Finding, ...]:
        """Return the last answer, for a while. From any thread."""
        with self._lock:
            return self._findings if time.monotonic() < self._until else ()

    def _read(self, ask: RankStackTraceRequest) -> None:
        options = [f"--job={ask.job}", f"--uid={ask.uid}", f"--node={self._node}", "--no-native"]
        lines: list[str] = []
        try:
            with tempfile.TemporaryFile() as out:
                reader = [*NICE, sys.executable, *SAFE_PATH, "hpctl.jobs.hangs.stacks", *options]
                if run_program_with_timeout(reader, READ_S, out=out) is None:
                    raise OSError(f"not done after {READ_S:g} s")
                out.seek(0)
                lines = out.read(MOST * 2048).decode(errors="replace").splitlines()
        except OSError as error:
            log.warning("the stacks of job %s could not be read: %s", ask.job, error)
        now = datetime.now(UTC)
        fresh = tuple(
            Finding(
                CHECK, DeviceVerdict.OK, now, now, str(at // 2), ask.id, clears=ClearCondition.GONE,
                evidence="\n".join(lines[at : at + 2]), job=str(ask.job),
            )
            for at in range(0, min(len(lines), 2 * MOST), 2)
        )  # fmt: skip
        with self._lock:
            self._findings, self._until, self._busy = fresh, time.monotonic() + KEPT_S, False
        self._listener.handle_finding_change()


_PLUGINS = ("plugin.", CHECK_DIRECTORY)
_OWN = ("report.", "hma.", CHECK, *_PLUGINS)


class FindingSourceLocations(Struct, frozen=True):
    """The places of the sources. `hma_log` None is the journal of its unit."""

    socket: Path = Path(SOCKET)
    hma_log: Path | None = None
    plugins: Path = DIRECTORY


class PluginRunner(threading.Thread):
    """A runner that loads a directory's plugins and runs them, one after the other.

    Their resources count against the systemd unit's limits, not against the agent's own budget, so
    they are never shed. Where the directory is missing at the start there is nothing to do.
    """

    def __init__(
        self, directory: Path, listener: FindingChangeListener, earlier: Iterable[Finding] = ()
    ) -> None:
        super().__init__(name="plugins", daemon=True)
        self._directory, self._listener = directory, listener
        self._earlier = tuple(earlier)
        self._runner: CheckRunner | None = None
        self._lock = threading.Lock()
        self._stopping = False

    def run(self) -> None:
        """Run until stopped."""
        if not self._directory.exists():
            return
        loaded = [
            LoadedCheck(c.spec, c.gather, c.judge, {}) for c in load_check_plugins(self._directory)
        ]
        machine = CheckedMachine()
        runner = CheckRunner(
            loaded,
            machine,
            self._listener,
            CheckLoadShedder(()),
            boot_age_s=read_machine_uptime_s(machine),
            earlier=self._earlier,
        )
        with self._lock:
            if self._stopping:
                return
            self._runner = runner
        runner.run()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Stop after the plugin that runs now, or abandon it: the thread is a daemon."""
        with self._lock:
            self._stopping = True
        if self._runner is not None:
            self._runner.stop()
        if self.is_alive():
            self.join(timeout_s)

    def findings(self) -> tuple[Finding, ...]:
        """Return the plugins' findings; until they are loaded, those of the former run."""
        return tuple(self._earlier if self._runner is None else self._runner.findings())


class AgentFindingsProvider(FindingChangeListener, Protocol):
    """The agent, as the sources use it. For any thread."""

    def get_latest_findings(self) -> tuple[datetime, tuple[Finding, ...]]:
        """Return when the agent last read its checks, and all its findings."""


class ExternalFindingSources:
    """The sources, served and followed from `start` to `stop`.

    Reports are kept in `spool` over a restart; of the findings that a former run of the agent
    recalls, those of `is_external_source_check` belong in `earlier`.
    """

    def __init__(
        self,
        places: FindingSourceLocations,
        generation: NodeGeneration,
        spool: Path,
        agent: AgentFindingsProvider,
        earlier: Iterable[Finding] = (),
    ) -> None:
        self._generation, self._agent, self._rules = generation, agent, build_fault_rules()
        self._reported = ReportedFindingTable(generation.boot, spool / "reported.json", agent)
        self._server = AgentSocketServer(places.socket, self._reported, self.verdict)
        self._hma = HealthAgentLogWatcher(
            open_health_agent_log(places.hma_log), compute_machine_boot_time(), agent
        )
        # Reports have a separate file, and the health agent's log is read again.
        plugins = (f for f in earlier if f.check.startswith(_PLUGINS))
        self._plugins = PluginRunner(places.plugins, agent, plugins)
        self.parts = (self._server, self._hma, self._plugins)
        self.stacks = JobStackCollector(generation.node, agent)

    def start(self) -> None:
        """Start. Without a socket there are no reports, and the agent still runs."""
        try:
            self._server.start()
        except ServiceUnavailable as error:
            log.warning("%s %s", error, error.hint)
        self._hma.start()
        self._plugins.start()

    def stop(self) -> None:
        """Stop; takes at most a few seconds each."""
        for part in self.parts:
            part.stop()

    def findings(self) -> tuple[Finding, ...]:
        """Return the findings of scripts, plugins and HyperPod's health agent. From any thread."""
        found = (*self._reported.findings(), *self._plugins.findings(), *self._hma.findings())
        return (*found, *self.stacks.findings())

    def verdict(self) -> NodeVerdict:
        """Return the agent's verdict on this node."""
        as_of, findings = self._agent.get_latest_findings()
        return compute_node_verdict(
            self._generation, findings, as_of, self._rules, datetime.now(UTC)
        )


def is_external_source_check(check: str) -> bool:
    """Return whether a finding of that check is kept here, and not recalled from the agent's
    spool."""
    return check.startswith(_OWN)

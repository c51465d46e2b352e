"""The real agent process against the real intake: what it must deliver, whatever happens."""

import re
import signal
import socket
import statistics
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.detection.spool import FindingsSpool
from hpctl.engine.clock import SystemClock
from hpctl.engine.node_health import NodeHealthStore
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.model import AgentReport, DeviceVerdict, Finding, NodeHealth
from tests.agent_process import GPU, AgentProcess
from tests.intakes import Head
from tests.reports import Rows, report
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
PATIENCE_S = 60.0


class Daemon(Head):
    """A head that holds the nodes' health; it can go away, and come back with an empty memory."""

    def __init__(self, realm, **settings):
        super().__init__(realm, **settings)
        self.times: list[float] = []
        self._forget()

    def _forget(self) -> None:
        self.book = NodeHealthStore({}, Rows(), lambda: None, SystemClock())
        self.heard = self.book.heard

    def store(self, *reports: AgentReport) -> None:
        self.book.accept(*reports)
        self.times.append(time.monotonic())
        self.accepted += reports

    def leave(self) -> None:
        self.server.stop()

    def come_back(self) -> None:
        self._forget()
        super().come_back()

    def health(self) -> NodeHealth | None:
        return self.book.snapshot().get("n1")

    def findings(self) -> tuple[Finding, ...]:
        return self.accepted[-1].findings if self.accepted else ()

    def knows(self, *codes: str) -> None:
        """Wait until these findings are held, and no other."""

        def held() -> bool:
            health = self.health()
            return health is not None and {f.code for f in health.findings} == {*codes}

        until(held, PATIENCE_S)

    def count(self, what: str) -> int:
        found = re.search(rf"^hpctl_{what}_total (\S+)$", self.get("/metrics"), re.M)
        return int(float(found[1])) if found else 0


@pytest.fixture
def head(munges):
    running = Daemon(munges)
    running.server.start()
    yield running
    running.server.stop()


@pytest.fixture
def agent(head: Daemon, tmp_path):
    made = AgentProcess(tmp_path, head.server.url, head.realm.n1)
    yield made
    if made.process is not None:
        made.end(signal.SIGKILL)


@pytest.fixture
def beating(agent: AgentProcess) -> AgentProcess:
    """An agent that sends a heartbeat five times a second."""
    agent.environment["HPCTL_AGENT_HEARTBEAT_S"] = "0.2"
    return agent


def test_a_kernel_line_is_on_the_head_node_at_once(head, agent):
    agent.start()
    until(lambda: head.accepted, PATIENCE_S)
    assert head.findings() == ()
    delays = []
    for code in range(40, 60):
        time.sleep(0.03)
        wrote = time.monotonic()
        agent.xid(code)
        until(lambda code=code: str(code) in {f.code for f in head.findings()})
        delays.append(head.times[-1] - wrote)
    print(f"kernel line to accepted: median {statistics.median(delays) * 1e3:.1f} ms")
    assert statistics.median(delays) < 0.2
    (report,) = head.accepted[:1]
    assert (report.node, report.instance, report.boot) == ("n1", "i-0123456789abcdef0", "boot-1")
    assert [r.seq for r in head.accepted] == list(range(1, 22))
    assert head.refused() == {}
    assert agent.end() == 0


def test_lines_from_user_space_are_not_believed(head, agent):
    line = f"NVRM: Xid ({GPU}): 79, GPU has fallen off the bus."
    agent.start()
    agent.kernel_says(line, priority=12)
    agent.xid(48)
    head.knows("48")
    agent.end()
    agent.start(HPCTL_AGENT_KMSG_ACCEPT_USER="1")
    head.knows("48", "79")


def test_unchanged_findings_are_sent_once(head, beating):
    beating.xid(79)
    beating.start()
    until(lambda: head.count("heartbeats") >= 10, PATIENCE_S)
    head.knows("79")
    # The checks that are timed may still find something out in the first moments.
    settled = head.count("reports")
    beats = head.count("heartbeats")
    until(lambda: head.count("heartbeats") >= beats + 10, PATIENCE_S)
    assert head.count("reports") - settled <= 1
    assert head.refused() == {}
    health = head.health()
    assert (datetime.now(UTC) - health.last_heard).total_seconds() < 2, "heartbeats are heard"
    beating.xid(48)
    head.knows("79", "48")


def test_a_daemon_that_started_again_is_sent_everything_once(head, beating):
    beating.xid(79)
    beating.start()
    until(lambda: head.count("heartbeats") >= 3, PATIENCE_S)
    head.leave()
    time.sleep(0.5)
    head.come_back()
    head.knows("79")
    until(lambda: head.count("heartbeats") >= 5, PATIENCE_S)
    # One look for its session, one for its digest; neither is tried again.
    assert head.refused() == {"unknown_session": 1, "unknown_digest": 1}


@pytest.mark.nightly
def test_a_session_is_renewed_before_it_ends(munges, tmp_path):
    head = Daemon(munges, session_s=4.0)
    head.server.start()
    agent = AgentProcess(tmp_path, head.server.url, munges.n1)
    agent.environment["HPCTL_AGENT_HEARTBEAT_S"] = "0.2"
    agent.start()
    try:
        until(lambda: head.count("heartbeats") >= 1, PATIENCE_S)
        first = time.monotonic()
        # Two sessions' length, with a second of slack before each end.
        until(lambda: time.monotonic() > first + 9, 30)
        assert head.count("heartbeats") >= 10
        assert head.refused() == {}
    finally:
        agent.end()
        head.server.stop()


def test_an_absence_with_everything_in_it(head, beating):
    """The head node is away; an error, a kill of the agent with the kernel's ring gone round,
    another error; then it is back, and has forgotten all it knew."""
    beating.xid(48)
    beating.start()
    head.knows("48")
    head.leave()
    beating.xid(63)
    beating.wait_for_spool('\\"63\\"')
    beating.end(signal.SIGKILL)
    beating.kmsg.write_bytes(b"")
    beating.start()
    beating.xid(79)
    beating.wait_for_spool('\\"79\\"')
    head.come_back()
    head.knows("48", "63", "79")
    until(lambda: head.count("heartbeats") >= 2, PATIENCE_S)


@pytest.mark.nightly
def test_a_clock_that_was_set_back_does_not_mute_the_agent(head, agent):
    """The head node takes nothing of an agent run that began before the one it believed."""
    ahead = datetime.now(UTC) + timedelta(minutes=4)
    before = replace(report("n1", 5, ahead), boot="boot-1", sent_at=ahead, agent_start=ahead)
    FindingsSpool(Path(agent.environment["HPCTL_AGENT_SPOOL"])).save(before, acked=True)
    assert head.send(before)[0] == 200
    agent.start()
    agent.xid(79)
    head.knows("79")
    assert head.refused() == {}


@pytest.mark.nightly
def test_a_log_that_cannot_be_read_is_unknown_not_healthy(head, agent):
    agent.kmsg.unlink()
    agent.start()
    until(lambda: head.accepted, PATIENCE_S)
    (finding,) = head.findings()
    assert (finding.check, finding.verdict) == ("kernel.log", DeviceVerdict.UNKNOWN)
    assert str(agent.kmsg) in finding.detail
    agent.xid(79)
    until(lambda: {f.code for f in head.findings()} == {"79"}, PATIENCE_S)


def test_systemd_hears_of_start_life_and_end(head, agent, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(60)
        systemd.bind(str(tmp_path / "notify"))
        agent.start(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="200000")
        assert systemd.recv(100) == b"READY=1"
        assert [systemd.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        until(lambda: head.accepted, PATIENCE_S)
        before = time.monotonic()
        assert agent.end() == 0
        assert time.monotonic() - before < 30
        output = []
        while not output or output[-1] != b"STOPPING=1":
            output.append(systemd.recv(100))

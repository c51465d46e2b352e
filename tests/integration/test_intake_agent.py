"""The real agent process against the real intake: what it must deliver, whatever happens."""

import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.agent.send import Spool
from hpctl.core.compat import UTC
from hpctl.core.model import BootId, Finding, Report, Verdict
from hpctl.daemon.gatekeeper import IntakeSettings
from hpctl.daemon.intake import intake_app
from hpctl.daemon.server import IntakeServer
from tests.agent_process import AgentProcess
from tests.intakes import Head, Sink, report
from tests.munged import ADDRESSES, Realm

pytestmark = pytest.mark.slurm

GPU = "PCI:0000:c1:00"


class Inbox(Head):
    """A head whose reports can be waited for; it can go away and come back on its port."""

    def __init__(self, realm: Realm) -> None:
        super().__init__(realm)
        self.news = threading.Condition()
        self.times: list[float] = []
        self.accept = self._take

    def _take(self, received: Report) -> None:
        with self.news:
            self.times.append(time.monotonic())
            self.accepted.append(received)
            self.news.notify_all()

    def wait(self, condition: Callable[[], object], timeout_s: float = 15) -> None:
        with self.news:
            assert self.news.wait_for(condition, timeout_s), self.accepted[-1:]

    def findings(self) -> tuple[Finding, ...]:
        return self.accepted[-1].findings if self.accepted else ()

    def codes(self) -> set[str]:
        return {finding.code for finding in self.findings()}

    def leave(self) -> None:
        self.server.stop()

    def come_back(self) -> None:
        app = intake_app(IntakeSettings(self.realm.head), Sink(self.store), ADDRESSES.get)
        self.server = IntakeServer(app, "127.0.0.1", self.server.port)
        self.server.start()


@pytest.fixture
def head(munges: Realm) -> Iterator[Inbox]:
    inbox = Inbox(munges)
    inbox.server.start()
    yield inbox
    inbox.server.stop()


@pytest.fixture
def agent(head: Inbox, tmp_path: Path) -> Iterator[AgentProcess]:
    made = AgentProcess(tmp_path, head.server.url, head.realm.n1)
    yield made
    if made.process is not None:
        made.end(signal.SIGKILL)


def test_a_kernel_line_is_on_the_head_node_at_once(head: Inbox, agent: AgentProcess) -> None:
    agent.start()
    head.wait(lambda: head.accepted)
    assert head.findings() == ()
    delays = []
    for code in range(40, 60):
        time.sleep(0.03)
        wrote = time.monotonic()
        agent.xid(code)
        head.wait(lambda code=code: str(code) in head.codes())
        delays.append(head.times[-1] - wrote)
    print(f"kernel line to accepted: median {statistics.median(delays) * 1e3:.1f} ms")
    assert statistics.median(delays) < 0.2
    (report,) = head.accepted[:1]
    assert (report.node, report.instance, report.boot) == ("n1", "i-0123456789abcdef0", "boot-1")
    assert [r.seq for r in head.accepted] == list(range(1, 22))
    assert head.refused() == {}
    assert agent.end() == 0


def test_lines_from_user_space_are_not_believed(head: Inbox, agent: AgentProcess) -> None:
    line = f"NVRM: Xid ({GPU}): 79, GPU has fallen off the bus."
    agent.start()
    agent.kernel_says(line, priority=12)
    agent.xid(48)
    head.wait(lambda: head.codes() == {"48"})
    agent.end()
    agent.start(HPCTL_AGENT_KMSG_ACCEPT_USER="1")
    head.wait(lambda: head.codes() == {"48", "79"})


def test_a_head_node_that_is_away_for_a_while_loses_nothing(
    head: Inbox, agent: AgentProcess
) -> None:
    head.leave()
    agent.start()
    agent.xid(48)
    time.sleep(1)
    agent.xid(63)
    head.come_back()
    head.wait(lambda: head.codes() == {"48", "63"})
    head.leave()
    agent.xid(79)
    time.sleep(1)
    agent.xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    head.come_back()
    head.wait(lambda: head.codes() == {"48", "63", "79", "154"})
    assert "Node Reboot Required" in {finding.detail for finding in head.findings()}
    # One line for each time it went away, not one for each attempt.
    assert agent.log().count("was not taken") <= 4


def test_a_killed_agent_resends_what_was_not_heard(head: Inbox, agent: AgentProcess) -> None:
    agent.start()
    head.wait(lambda: head.accepted)
    head.leave()
    agent.xid(79)
    agent.wait_for_spool("c1:00")
    assert agent.end(signal.SIGKILL) == -signal.SIGKILL
    # The ring went round in the meantime: only the spool still knows.
    agent.kmsg.write_bytes(b"")
    agent.start()
    head.come_back()
    head.wait(lambda: head.codes() == {"79"})
    first, last = head.accepted[0], head.accepted[-1]
    assert last.agent_start > first.agent_start


@pytest.mark.nightly
def test_a_clock_that_was_set_back_does_not_mute_the_agent(
    head: Inbox, agent: AgentProcess
) -> None:
    """The head node takes nothing of an agent run that began before the one it believed."""
    ahead = datetime.now(UTC) + timedelta(minutes=4)
    before = replace(
        report("n1", 5, ahead), boot=BootId("boot-1"), sent_at=ahead, agent_start=ahead
    )
    Spool(Path(agent.environment["HPCTL_AGENT_SPOOL"])).save(before, acked=True)
    assert head.send(before)[0] == 200
    agent.start()
    agent.xid(79)
    head.wait(lambda: head.codes() == {"79"})
    assert head.refused() == {}


@pytest.mark.nightly
def test_a_log_that_cannot_be_read_is_unknown_not_healthy(head: Inbox, agent: AgentProcess) -> None:
    agent.kmsg.unlink()
    agent.start()
    head.wait(lambda: head.accepted)
    (finding,) = head.findings()
    assert (finding.check, finding.verdict) == ("kernel.log", Verdict.UNKNOWN)
    assert str(agent.kmsg) in finding.detail
    agent.xid(79)
    head.wait(lambda: {f.code for f in head.accepted[-1].findings} == {"79"})


def test_systemd_hears_of_start_life_and_end(
    head: Inbox, agent: AgentProcess, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.settimeout(10)
        systemd.bind(str(tmp_path / "notify"))
        agent.start(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="200000")
        assert systemd.recv(100) == b"READY=1"
        assert [systemd.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        head.wait(lambda: head.accepted)
        before = time.monotonic()
        assert agent.end() == 0
        assert time.monotonic() - before < 3
        said = []
        while not said or said[-1] != b"STOPPING=1":
            said.append(systemd.recv(100))

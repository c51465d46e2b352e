"""Real agents, the real intake, the real book: digests, sessions, and a head node that was away."""

import re
import signal
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

from hpctl.core.compat import UTC
from hpctl.core.model import Health, NodeName
from hpctl.daemon.gatekeeper import IntakeSettings
from hpctl.daemon.intake import intake_app
from hpctl.daemon.node_health import NodeHealthStore
from hpctl.daemon.server import IntakeServer
from hpctl.daemon.wake import SystemClock
from tests.agent_process import AgentProcess
from tests.intakes import Head, Rows
from tests.munged import ADDRESSES, Realm

pytestmark = pytest.mark.slurm
N1 = NodeName("n1")


class Daemon(Head):
    """A head whose reports go into a book; it can go away, and come back with an empty memory."""

    def __init__(self, munges: Realm, **settings: object) -> None:
        super().__init__(munges, **settings)
        self._settings = settings
        self._new_book()

    def _new_book(self) -> None:
        self.book = NodeHealthStore({}, Rows(), lambda: None, SystemClock())
        self.store_all, self.heard = self.book.accept, self.book.heard

    def leave(self) -> None:
        self.server.stop()

    def come_back(self) -> None:
        self._new_book()
        app = intake_app(
            IntakeSettings(self.realm.head, **self._settings),  # type: ignore[arg-type]
            self.book,
            ADDRESSES.get,
        )
        self.server = IntakeServer(app, "127.0.0.1", self.server.port)
        self.server.start()

    def health(self) -> Health | None:
        return self.book.snapshot().get(N1)

    def codes(self) -> set[str]:
        health = self.health()
        return {f.code for f in health.findings} if health else set()

    def count(self, what: str) -> int:
        found = re.search(rf"^hpctl_{what}_total (\S+)$", self.get("/metrics"), re.M)
        return int(float(found[1])) if found else 0


def until(condition: Callable[[], object], timeout_s: float = 15) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def head(munges: Realm) -> Iterator[Daemon]:
    running = Daemon(munges)
    running.server.start()
    yield running
    running.server.stop()


@pytest.fixture
def agent(head: Daemon, tmp_path: Path) -> Iterator[AgentProcess]:
    made = AgentProcess(tmp_path, head.server.url, head.realm.n1)
    made.environment["HPCTL_AGENT_HEARTBEAT_S"] = "0.2"
    yield made
    if made.process is not None:
        made.end(signal.SIGKILL)


def test_unchanged_findings_are_sent_once(head: Daemon, agent: AgentProcess) -> None:
    agent.xid(79)
    agent.start()
    until(lambda: head.count("heartbeats") >= 10)
    assert head.codes() == {"79"}
    # The checks that are timed may still find something out in the first moments.
    settled = head.count("reports")
    beats = head.count("heartbeats")
    until(lambda: head.count("heartbeats") >= beats + 10)
    assert head.count("reports") - settled <= 1
    assert head.refused() == {}
    health = head.health()
    assert health is not None
    assert (datetime.now(UTC) - health.last_heard).total_seconds() < 2, "heartbeats are heard"
    agent.xid(48)
    until(lambda: head.codes() == {"79", "48"})


def test_a_daemon_that_started_again_is_told_everything_once(
    head: Daemon, agent: AgentProcess
) -> None:
    agent.xid(79)
    agent.start()
    until(lambda: head.count("heartbeats") >= 3)
    head.leave()
    time.sleep(0.5)
    head.come_back()
    until(lambda: head.codes() == {"79"})
    until(lambda: head.count("heartbeats") >= 5)
    # One look for its session, one for its digest; neither is tried again.
    assert head.refused() == {"unknown_session": 1, "unknown_digest": 1}


def test_a_session_is_renewed_before_it_ends(munges: Realm, tmp_path: Path) -> None:
    head = Daemon(munges, session_s=4.0)
    head.server.start()
    agent = AgentProcess(tmp_path, head.server.url, munges.n1)
    agent.environment["HPCTL_AGENT_HEARTBEAT_S"] = "0.2"
    agent.start()
    try:
        until(lambda: head.count("heartbeats") >= 1)
        first = time.monotonic()
        # Two sessions' length, with a second of slack before each end.
        until(lambda: time.monotonic() > first + 9, 30)
        assert head.count("heartbeats") >= 10
        assert head.refused() == {}
    finally:
        agent.end()
        head.server.stop()


def test_an_absence_with_everything_in_it(head: Daemon, agent: AgentProcess) -> None:
    """The head node is away; an error, a kill of the agent with the kernel's ring gone round,
    another error; then it is back, and has forgotten all it knew."""
    agent.xid(48)
    agent.start()
    until(lambda: head.codes() == {"48"})
    head.leave()
    agent.xid(63)
    agent.wait_for_spool('\\"63\\"')
    agent.end(signal.SIGKILL)
    agent.kmsg.write_bytes(b"")
    agent.start()
    agent.xid(79)
    agent.wait_for_spool('\\"79\\"')
    head.come_back()
    until(lambda: head.codes() == {"48", "63", "79"})
    until(lambda: head.count("heartbeats") >= 2)

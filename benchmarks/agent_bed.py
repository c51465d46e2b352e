"""The real agent process on a machine that is not there, reporting to a real intake."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct, field

from benchmarks import agent_machine
from benchmarks.agent_process import children, command, read
from hpctl.detection.kmsg import format_kmsg_record
from hpctl.engine.clock import SystemClock
from hpctl.engine.node_health import NodeHealthStore
from hpctl.service.intake.app import make_agent_intake_app
from hpctl.service.intake.server import UvicornServerThread
from hpctl.vocabulary.model import AgentReport
from hpctl.wire.authentication import IntakeAuthenticationSettings
from tests.munged import munged, public_directory
from tests.reports import Rows

CHILD = "hpctl.detection.nvml.child"
READY_S = 20.0
NOISE = "audit: type=1400 audit(1714824000.123:{}): apparmor=ALLOWED operation=open"
REPOSITORY = Path(__file__).resolve().parents[1]


class Bed(Struct):
    """A running agent: its process, its NVML child's, and what the head node took from it.

    `start_s`: processor seconds of both until the first report.
    """

    pid: int
    child_pid: int
    root: Path
    kmsg: int
    start_s: float
    reports: list[AgentReport] = field(default_factory=list)
    _seq: int = 0

    def tick(self) -> None:
        """Let the machine live: EFA devices keep alive, the kernel says what means nothing."""
        self._seq += 1
        agent_machine.keep_alive(self.root, self._seq)
        os.write(self.kmsg, format_kmsg_record(NOISE.format(self._seq), self._seq, priority=6))


@contextmanager
def bed(directory: Path) -> Iterator[Bed]:
    """An agent at its shipped settings. Raises RuntimeError when it does not report."""
    root, reports = directory / "root", list[AgentReport]()
    agent_machine.build(root)
    stub = agent_machine.gpus(directory)
    with ExitStack() as stack:
        port, socket = stack.enter_context(_head(reports))
        # A FIFO is waited for as /dev/kmsg is; a regular file would have to be polled.
        os.mkfifo(directory / "kmsg")
        kmsg = os.open(directory / "kmsg", os.O_RDWR | os.O_NONBLOCK)
        stack.callback(os.close, kmsg)
        arguments = [
            *(sys.executable, "-m", "hpctl", "agent", "run", "--node=n1", "--instance-id=i-1"),
            *(f"--head=http://127.0.0.1:{port}", f"--munge-socket={socket}"),
            *(f"--root={root}", f"--kmsg={directory / 'kmsg'}", f"--spool={directory / 'spool'}"),
            *(f"--socket={directory / 'socket'}", f"--plugins={directory / 'no plugins'}"),
        ]
        environment = {
            name: text for name, text in os.environ.items() if not name.startswith("HPCTL_")
        }
        with (directory / "agent.log").open("wb") as log:
            agent = subprocess.Popen(
                arguments, env={**environment, **stub.env()}, cwd=REPOSITORY, stdout=log, stderr=log
            )
        try:
            child = _child_of(agent, reports, directory / "agent.log")
            yield Bed(agent.pid, child, root, kmsg, _used_s(agent.pid, child), reports)
            if agent.poll() is not None:
                raise RuntimeError(f"the agent ended: {(directory / 'agent.log').read_text()}")
        finally:
            agent.terminate()
            agent.wait(20)


@contextmanager
def _head(reports: list[AgentReport]) -> Iterator[tuple[int, Path]]:
    """An intake's port and a munged's socket."""

    class Health(NodeHealthStore):
        def accept(self, *some: AgentReport) -> None:
            reports.extend(some)
            super().accept(*some)

    health = Health({}, Rows(), lambda: None, SystemClock())
    with public_directory() as directory:
        key = directory / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        with munged(directory, "node", key, "127.0.0.1") as socket:
            settings = IntakeAuthenticationSettings(socket, frozenset({os.geteuid()}))
            app = make_agent_intake_app(settings, health, lambda _: "127.0.0.1")
            server = UvicornServerThread(app, "127.0.0.1")
            server.start()
            try:
                yield server.port, socket
            finally:
                server.stop()


def _used_s(*pids: int) -> float:
    seen = [read(pid) for pid in pids]
    return sum(one.own_s + one.children_s for one in seen)


def _child_of(agent: subprocess.Popen[bytes], reports: list[AgentReport], log: Path) -> int:
    """The pid of the NVML child, once it is there and a report has come."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until and agent.poll() is None:
        found = [pid for pid in children(agent.pid) if CHILD in command(pid)]
        if found and reports:
            return found[0]
        time.sleep(0.1)
    raise RuntimeError(f"the agent does not report: {log.read_text()}")

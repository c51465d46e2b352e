"""A spot notice on one node: it is closed and its job runs elsewhere, well within two minutes."""

import json
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import SandboxFactory
from tests.integration.live import EAGER, FAST, Live, until

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]
NOTICE = {"action": "terminate", "time": "2026-03-01T12:02:00Z"}


class Metadata:
    """One metadata service for all nodes' agents, which are told apart by their process."""

    def __init__(self) -> None:
        self.doomed = ""
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_PUT(self) -> None:
                self.say(200, node_of(self.client_address[1]))

            def do_GET(self) -> None:
                doomed = self.headers["X-aws-ec2-metadata-token"] == service.doomed
                self.say(200 if doomed else 404, json.dumps(NOTICE) if doomed else "")

            def say(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                """Quietly."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def node_of(port: int) -> str:
    """The node whose agent has a connection from this port of loopback."""
    local = f"0100007F:{port:04X}"
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
    (inode,) = {words[9] for words in lines if words[1] == local}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            links = {os.readlink(fd) for fd in (process / "fd").iterdir()}
            words = (process / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if f"socket:[{inode}]" in links and "--spool" in words:
            return Path(words[words.index("--spool") + 1]).parent.name
    return "nobody"


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    made = Metadata()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_notice_moves_the_job_and_orders_nothing(
    sandbox_factory: SandboxFactory, metadata: Metadata
) -> None:
    url = f"http://127.0.0.1:{metadata.server.server_address[1]}"
    agent = {"expected": {"spot": True, "metadata_url": url}}
    live = Live(
        sandbox_factory(
            nodes=3, mode="own", daemon=True, config=FAST, agent_config=agent, slurm_conf=EAGER
        )
    )
    job = live.submit("srun sleep 600", "--nodes=2")
    until(lambda: live.running(job), 20, "job runs")
    victim = str(live.job(job).nodes[-1])
    begun = time.monotonic()
    metadata.doomed = victim
    until(lambda: live.running(job, restarts=1), 30, "job runs elsewhere")
    assert time.monotonic() - begun < 60
    assert victim not in live.job(job).nodes
    (recovery,) = live.node_recoveries()
    assert (recovery.node, recovery.rule) == (victim, "host-spot-interruption")
    assert live.node(victim).drained
    until(lambda: live.node_recoveries()[0].phase == "remedying", 10, "its successor is awaited")
    assert live.calls("BatchReplaceClusterNodes") == live.calls("BatchRebootClusterNodes") == 0

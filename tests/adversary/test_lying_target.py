"""A scraped target that names another node, before a real Prometheus."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from hpctl.engine.config import AlertsSection, Config
from hpctl.service.alerts import AlertmanagerAlert, AlertNodeFinder
from hpctl.service.observability_command import make_prometheus_config
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import NodeName
from tests.intakes import get
from tests.process import free_port
from tests.waiting import until

VICTIM, LIAR = NodeName("ip-10-1-0-1"), NodeName("ip-10-1-0-2")
METRICS = b"""# TYPE disk_errors gauge
disk_errors{node="ip-10-1-0-1",instance="ip-10-1-0-1:9100",hostname="ip-10-1-0-1"} 1
"""


class Metrics(BaseHTTPRequestHandler):
    """What the target says of itself."""

    def do_GET(self) -> None:
        """Answer a scrape."""
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(METRICS)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def target() -> Iterator[str]:
    """The address of the target."""
    server = HTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def scrape(target: str, place: Path) -> dict[str, str]:
    """Return the labels under which a real Prometheus, configured as shipped, knows the metric."""
    assert shutil.which("prometheus"), "make test-packages installs it"
    made = yaml.safe_load(make_prometheus_config(Config(), (target,), 1.0))
    (place / "hpctl.rules.yml").write_text("groups: []\n")
    (place / "prometheus.yml").write_text(yaml.safe_dump(made))
    port = free_port()
    command = [
        *("setpriv", "--pdeathsig=KILL", "--", "prometheus"),
        f"--config.file={place}/prometheus.yml",
        f"--storage.tsdb.path={place}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:

        def query() -> list[dict[str, dict[str, str]]]:
            try:
                answer = json.loads(get(port, "/api/v1/query?query=disk_errors"))
            except (OSError, ValueError):  # it starts
                return []
            found: list[dict[str, dict[str, str]]] = answer["data"]["result"]
            return found

        try:
            until(lambda: bool(query()), 60)
            return query()[0]["metric"]
        finally:
            process.kill()


def find_accused(labels: dict[str, str], settings: AlertsSection) -> NodeName | None:
    """Return the node that an alert on the metric is taken to be about."""
    nodes = AlertNodeFinder({VICTIM: "10.1.0.1", LIAR: "127.0.0.1"}, settings.labels)
    notice = AlertmanagerAlert(
        status="firing",
        labels={"alertname": "DiskErrors", **labels},
        starts_at=datetime(2026, 1, 1, tzinfo=UTC),
        fingerprint="f",
    )
    return nodes.of(notice)


def test_a_target_accuses_no_other_node(target: str, tmp_path: Path) -> None:
    labels = scrape(target, tmp_path)
    assert labels["node"] == VICTIM  # what the target says is in the series
    assert find_accused(labels, AlertsSection()) == LIAR
    believed = replace(AlertsSection(), labels=("node", "instance"))
    assert find_accused(labels, believed) == VICTIM

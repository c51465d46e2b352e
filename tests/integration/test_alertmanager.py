"""The webhook and the real Alertmanager."""

import http.client
import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hpctl.core.compat import UTC
from tests.alerting import N1, Head
from tests.waiting import until

ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    head = Head(tmp_path)
    yield head
    head.server.stop()


@pytest.fixture
def alertmanager(tmp_path: Path, head: Head) -> Iterator[int]:
    assert ALERTMANAGER is not None
    config = tmp_path / "alertmanager.yml"
    config.write_text(f"""
route: {{receiver: hpctl, group_by: [alertname, instance], group_wait: 100ms, group_interval: 1s}}
receivers:
  - name: hpctl
    webhook_configs:
      - url: {head.server.url}/v1/alerts
        send_resolved: true
        http_config:
          authorization: {{type: Bearer, credentials_file: {head.token_file}}}
""")
    port = free_port()
    with (tmp_path / "alertmanager.log").open("w") as log:
        child = subprocess.Popen(
            [
                ALERTMANAGER,
                f"--config.file={config}",
                f"--storage.path={tmp_path / 'am'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            until(lambda: child.poll() is not None or send(port, []) == 200, 20)
            assert child.poll() is None, (tmp_path / "alertmanager.log").read_text()
            yield port
        finally:
            child.terminate()
            child.wait(10)


def send(port: int, what: list[dict[str, Any]]) -> int:
    """Post alerts as Prometheus does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        body = json.dumps(what)
        connection.request("POST", "/api/v2/alerts", body, {"Content-Type": "application/json"})
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


@pytest.mark.skipif(ALERTMANAGER is None, reason="needs Alertmanager (prometheus-alertmanager)")
def test_the_real_alertmanager_is_understood(alertmanager: int, head: Head, tmp_path: Path) -> None:
    head.clock.now = lambda: datetime.now(UTC)  # type: ignore[method-assign]
    started = datetime.now(UTC)
    one = {
        "labels": {
            "alertname": "NodeDiskErrors",
            "instance": f"{N1}:9100",
            "severity": "critical",
            "device": "nvme1n1",
        },
        "annotations": {"summary": "I/O errors"},
        "startsAt": started.isoformat(),
        "generatorURL": "http://prometheus:9090/graph",
    }
    assert send(alertmanager, [one]) == 200
    until(lambda: len(head.findings()) == 1, 20)
    (found,) = head.findings()
    assert (found.check, found.code, found.detail) == (
        "alert.NodeDiskErrors", "critical", "I/O errors"
    )  # fmt: skip
    assert found.first == started
    assert send(alertmanager, [{**one, "endsAt": datetime.now(UTC).isoformat()}]) == 200
    until(lambda: head.findings() == (), 20)
    stray = {**one, "labels": {"alertname": "Stray", "instance": "elsewhere:9100"}}
    assert send(alertmanager, [stray]) == 200
    log = tmp_path / "alertmanager.log"
    until(lambda: "unexpected status code 422" in log.read_text(), 20)

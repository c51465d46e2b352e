"""A head node's webhook on a port of its own, and what Alertmanager posts to it."""

import copy
import json
from collections.abc import Callable, Set
from datetime import datetime
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from hpctl.core.compat import UTC
from hpctl.core.model import BootId, Finding, Generation, Health, InstanceId, NodeName
from hpctl.daemon.alerts import AlertStore, Webhook, routes
from hpctl.daemon.server import IntakeServer
from tests.intakes import post

TOKEN = "0123456789abcdef0123456789abcdef"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
N1, N2 = NodeName("ip-10-1-0-1"), NodeName("ip-10-1-0-2")
LABELS = ("node", "instance", "hostname")

# What Alertmanager 0.25 posts, taken from its wire.
NOTIFICATION: dict[str, Any] = {
    "receiver": "hpctl",
    "status": "firing",
    "alerts": [
        {
            "status": "firing",
            "labels": {
                "alertname": "NodeDiskErrors",
                "device": "nvme1n1",
                "instance": "ip-10-1-0-1:9100",
                "job": "node",
                "severity": "critical",
            },
            "annotations": {"summary": "I/O errors on nvme1n1", "runbook_url": "http://x/"},
            "startsAt": "2026-11-21T11:58:30.123456789Z",
            "endsAt": "0001-01-01T00:00:00Z",
            "generatorURL": "http://prometheus:9090/graph?g0.expr=up",
            "fingerprint": "3ae8b3d8a6b4c2f1",
        }
    ],
    "groupLabels": {"alertname": "NodeDiskErrors"},
    "commonLabels": {"alertname": "NodeDiskErrors"},
    "commonAnnotations": {},
    "externalURL": "http://alertmanager:9093",
    "version": "4",
    "groupKey": '{}:{alertname="NodeDiskErrors"}',
    "truncatedAlerts": 0,
}


def posted(**labels: str | None) -> dict[str, Any]:
    """The notification with other labels; None takes one away."""
    document = copy.deepcopy(NOTIFICATION)
    mine = document["alerts"][0]["labels"]
    for name, value in labels.items():
        mine.pop(name, None)
        if value is not None:
            mine[name] = value
    document["alerts"][0]["fingerprint"] = f"{hash(str(sorted(mine.items()))) & 0xFFFFFFFF:016x}"
    return document


def resolved(document: dict[str, Any]) -> dict[str, Any]:
    document = copy.deepcopy(document)
    document["status"] = document["alerts"][0]["status"] = "resolved"
    document["alerts"][0]["endsAt"] = "2026-11-21T12:00:00Z"
    return document


class Watch:
    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return 0.0


class Head:
    """A head node's webhook on a port of its own, beside two nodes whose agents are heard."""

    def __init__(self, place: Path, keep_s: float = 18000.0) -> None:
        self.clock = Watch()
        self.changes: list[set[NodeName]] = []
        self.file = place / "alerts.json"
        self.token_file = place / "token"
        self.token_file.write_text(TOKEN + "\n")
        self.token_file.chmod(0o600)
        self.addresses: Callable[[], dict[NodeName, str]] = lambda: {
            N1: "10.1.0.1",
            N2: "worker2.cluster.internal",
            NodeName("twin-a"): "10.9.9.9",
            NodeName("twin-b"): "10.9.9.9",
        }
        self.health = {node: healthy(node) for node in (N1, N2)}
        here: Any = self
        self.book = AlertStore(self.file, keep_s, self.clock, here)
        webhook = Webhook(LABELS, self.book, here, here, self.clock)
        self.server = IntakeServer(
            Starlette(routes=routes(self.token_file, webhook.take)), "127.0.0.1"
        )
        self.server.start()

    def touch(self, nodes: Set[NodeName], *, wake: bool) -> None:
        assert wake
        self.changes.append(set(nodes))

    def with_alerts(self, store: AlertStore | None = None) -> dict[NodeName, Health]:
        health = dict(self.health)
        (store or self.book).add_to(health)
        return health

    def generation_of(self, node: NodeName) -> Generation | None:
        known = self.health.get(node)
        return known.generation if known else None

    def post(
        self, document: Any, token: str | None = TOKEN, **headers: str
    ) -> tuple[int, dict[str, Any]]:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return post(self.server.port, "/v1/alerts", body, headers)

    def findings(self, node: NodeName = N1) -> tuple[Finding, ...]:
        return self.with_alerts()[node].findings


def healthy(node: NodeName, instance: str = "i-1", boot: str = "b-1") -> Health:
    return Health(Generation(node, InstanceId(instance), BootId(boot)), NOW)

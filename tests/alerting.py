"""A head node's webhook on a port of its own, and what Alertmanager posts to it."""

import copy
import http.client
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

TOKEN = "0123456789abcdef0123456789abcdef"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
N1, N2 = NodeName("ip-10-1-0-1"), NodeName("ip-10-1-0-2")
LABELS = ("node", "instance", "hostname")

# What Alertmanager 0.25 posts, taken from its wire.
NOTIFICATION: dict[str, Any] = json.loads(Path(__file__).with_name("alertmanager.json").read_text())


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
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=15)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        connection.request("POST", "/v1/alerts", body, headers)
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        return response.status, answer

    def findings(self, node: NodeName = N1) -> tuple[Finding, ...]:
        return self.with_alerts()[node].findings


def healthy(node: NodeName, instance: str = "i-1", boot: str = "b-1") -> Health:
    return Health(Generation(node, InstanceId(instance), BootId(boot)), NOW)

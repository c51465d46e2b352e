"""The webhook for Alertmanager, over HTTP, with Alertmanager's own payloads."""

import copy
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from hpctl.engine.leadership import Leadership
from hpctl.engine.node_health import NodeHealthStore, drop_findings_of_checks
from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import build_fault_rules
from hpctl.service import alerts
from hpctl.service.alerts import (
    MAX_A_NODE,
    AlertmanagerWebhook,
    AlertStore,
    load_alerts,
    make_alert_routes,
)
from hpctl.service.intake.server import UvicornServerThread
from hpctl.service.node_directory import NodeAddressDirectory, SlurmReader
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.assessment import NodeCondition, Remedy, Urgency
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.policy import FaultClassOverride
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmNode
from tests.fakes.values import Clock
from tests.intakes import announced, post
from tests.reports import Rows

pytestmark = pytest.mark.integration

TOKEN = "0123456789abcdef0123456789abcdef"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
N1, N2 = "ip-10-1-0-1", "ip-10-1-0-2"
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


class Head:
    """A head node's webhook on a port of its own, beside two nodes whose agents are heard."""

    def __init__(self, place: Path, keep_s: float = 18000.0) -> None:
        self.clock = Clock(NOW)
        self.changes: list[set[str]] = []
        self.file = place / "alerts.json"
        self.token_file = place / "token"
        self.token_file.write_text(TOKEN + "\n")
        self.token_file.chmod(0o600)
        self.addresses = lambda: {
            N1: "10.1.0.1",
            N2: "worker2.cluster.internal",
            "twin-a": "10.9.9.9",
            "twin-b": "10.9.9.9",
        }
        self.health = {node: healthy(node) for node in (N1, N2)}
        here: Any = self
        self.book = AlertStore(self.file, keep_s, self.clock)
        self.leadership = Mock(spec=Leadership, serves=True)
        self.slurm = Mock(spec=SlurmReader, view=None)
        directory = NodeAddressDirectory(here, here, self.leadership, self.slurm)
        webhook = AlertmanagerWebhook(LABELS, self.book, directory, here, self.clock)
        self.take = webhook.take
        self.server = UvicornServerThread(
            Starlette(routes=make_alert_routes(self.token_file, webhook.take, CollectorRegistry())),
            "127.0.0.1",
        )
        self.server.start()

    def touch(self, nodes, *, wake):
        assert wake
        self.changes.append(set(nodes))

    def with_alerts(self, store: AlertStore | None = None) -> dict[str, NodeHealth]:
        health = dict(self.health)
        (store or self.book).add_findings(health)
        return health

    def find_generation(self, node: str) -> NodeGeneration | None:
        known = self.health.get(node)
        return known.generation if known else None

    def post(self, document, token=TOKEN, **headers):
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return post(self.server.port, "/v1/alerts", body, headers)

    def findings(self, node: str = N1) -> tuple[Finding, ...]:
        return self.with_alerts()[node].findings


def healthy(node: str, instance: str = "i-1", boot: str = "b-1") -> NodeHealth:
    return NodeHealth(NodeGeneration(node, instance, boot), NOW)


@pytest.fixture
def head(tmp_path):
    head = Head(tmp_path)
    yield head
    head.server.stop()


def test_an_alert_is_a_finding_until_it_is_resolved(head):
    assert head.post(NOTIFICATION) == (200, {"taken": 1, "resolved": 0, "left_out": 0})
    (found,) = head.findings()
    assert (found.check, found.code, found.device) == (
        "alert.NodeDiskErrors",
        "critical",
        "nvme1n1",
    )
    assert (found.verdict, found.clears) == (DeviceVerdict.FAIL, ClearCondition.GONE)
    assert found.detail == "I/O errors on nvme1n1"
    assert "instance=ip-10-1-0-1:9100 job=node" in found.evidence
    assert found.first == datetime(2026, 11, 21, 11, 58, 30, 123457, tzinfo=UTC)
    assert head.findings(N2) == ()
    assert head.post(resolved(NOTIFICATION)) == (200, {"taken": 0, "resolved": 1, "left_out": 0})
    assert head.findings() == ()
    assert head.changes == [{N1}, {N1}]


def test_said_again_it_is_counted_and_wakes_nothing(head):
    head.post(NOTIFICATION)
    head.clock.at += timedelta(hours=4)
    head.post(NOTIFICATION)
    (found,) = head.findings()
    assert (found.count, found.last - NOW) == (2, timedelta(hours=4))
    assert head.changes == [{N1}]


def test_it_acts_only_by_a_rule_of_the_site(head):
    head.post(NOTIFICATION)
    reported = head.with_alerts()[N1]
    plain = assess_health(reported, build_fault_rules(), NOW)
    assert (plain.condition, "[check-failed]" in plain.why) == (NodeCondition.SUSPECT, True)
    mine = FaultClassOverride(
        urgency=Urgency.AFTER_JOBS, ladder=(Remedy.REPLACE,), meaning="a disk of the node fails"
    )
    for rule in ("alert-NodeDiskErrors", "alert-NodeDiskErrors-critical"):
        assert assess_health(reported, build_fault_rules({rule: mine}), NOW).fault.rule == rule


@pytest.mark.parametrize(
    "labels",
    [
        {"node": N1, "instance": "elsewhere:9100"},
        {"instance": f"{N1}:9100"},
        {"instance": "10.1.0.1:9100"},
        {"instance": "10.1.0.1"},
        {"instance": f"{N1}.us-west-2.compute.internal:9400"},
        {"instance": "prometheus:9090", "hostname": N1},
    ],
)
def test_a_node_is_found_by_what_monitoring_calls_it(head, labels):
    assert head.post(posted(**{"instance": None, **labels}))[0] == 200
    assert len(head.findings()) == 1


def test_alerts_of_no_node_are_named_and_the_others_taken(head):
    document = copy.deepcopy(NOTIFICATION)
    for labels in (
        {"alertname": "PrometheusDown", "instance": "prometheus:9090"},
        {"alertname": "Watchdog"},
        {"instance": N1},
        {"alertname": "Twins", "instance": "10.9.9.9:9100"},
    ):
        document["alerts"].append({**NOTIFICATION["alerts"][0], "labels": labels})
    status, answer = head.post(document)
    assert (status, answer["error"], answer["taken"]) == (422, "unknown_node", 1)
    assert answer["message"].startswith("4 of 5 alerts name no node of Slurm: PrometheusDown: ")
    assert (
        "Watchdog: no such label; an alert without alertname: instance=ip-10-1" in answer["message"]
    )
    assert answer["alerts"][3] == {"alertname": "Twins", "looked_at": {"instance": "10.9.9.9:9100"}}
    assert "node, instance, hostname" in answer["hint"]
    assert len(head.findings()) == 1


def test_it_is_stored_beside_what_the_agents_say_and_never_taken_for_theirs(head):
    stored: list[NodeHealth] = []

    class Kept(Rows):
        def record(self, rows):
            stored.extend(rows)

    rows = Kept()
    health = NodeHealthStore(head.health, rows, lambda: None, head.clock, [head.book])
    head.post(NOTIFICATION)
    facts = health.snapshot()
    assert [f.check for f in facts[N1].findings] == ["alert.NodeDiskErrors"]
    health.touch(head.health, wake=False)
    health.flush()
    assert {row.generation.node: row for row in stored} == facts
    assert drop_findings_of_checks(facts, AlertStore.checks) == head.health
    again = NodeHealthStore(facts, rows, lambda: None, head.clock, [head.book])
    again.touch(facts, wake=False)
    again.flush()
    assert stored[2:] == stored[:2], "not twice"


def test_it_does_not_follow_the_name_to_another_machine(head):
    head.post(NOTIFICATION)
    head.health[N1] = healthy(N1, "i-2", "b-2")
    assert head.findings() == ()
    head.post(NOTIFICATION)
    assert len(head.findings()) == 1
    head.health[N1] = healthy(N1, "i-2", "b-3")
    assert head.findings() == ()


def test_a_node_without_an_agent_gets_it_with_its_first_word(head):
    del head.health[N1]
    assert head.post(NOTIFICATION)[0] == 200
    assert N1 not in head.with_alerts()
    head.health[N1] = healthy(N1)
    assert len(head.findings()) == 1
    head.health[N1] = healthy(N1, boot="b-2")
    assert head.findings() == ()


def test_a_daemon_that_starts_again_still_knows_it(head):
    head.post(NOTIFICATION)
    again = AlertStore(head.file, 18000.0, head.clock)
    assert head.with_alerts(again) == head.with_alerts()
    head.post(resolved(NOTIFICATION))
    assert load_alerts(head.file) == ()
    head.file.write_text("[{")
    fresh = AlertStore(head.file, 18000.0, head.clock)
    assert head.with_alerts(fresh) == head.health


def test_what_is_never_resolved_is_forgotten_in_the_end(tmp_path):
    head = Head(tmp_path, keep_s=3600.0)
    head.post(NOTIFICATION)
    head.clock.at += timedelta(minutes=59)
    assert len(head.findings()) == 1
    head.clock.at += timedelta(minutes=1)
    assert head.findings() == ()
    head.server.stop()


def test_a_disk_that_is_full_is_reported_and_nothing_is_half_taken(head):
    head.file.with_suffix(".tmp").mkdir()
    status, answer = head.post(NOTIFICATION)
    assert (status, answer["error"]) == (503, "not_stored")
    assert head.findings() == ()


def test_the_alerts_of_one_node_are_bounded(head):
    document = copy.deepcopy(NOTIFICATION)
    document["alerts"] = [
        {**NOTIFICATION["alerts"][0], "fingerprint": f"{n:016x}"} for n in range(MAX_A_NODE + 3)
    ]
    assert head.post(document) == (200, {"taken": MAX_A_NODE, "resolved": 0, "left_out": 3})
    assert len(head.findings()) == MAX_A_NODE


@pytest.mark.parametrize("token", [None, "", "wrong", TOKEN + "x", "é" * 20])
def test_without_the_token_nothing_is_taken(head, token):
    header = {} if token is None else {"Authorization": f"Bearer {token}"}
    encoded = {k: v.encode().decode("latin-1") for k, v in header.items()}
    status, answer = head.post(NOTIFICATION, None, **encoded)
    assert (status, answer["error"]) == (401, "unauthorized")
    assert head.findings() == ()


def test_the_token_may_be_changed_while_the_daemon_runs(head):
    head.token_file.write_text("f" * 32)
    assert head.post(NOTIFICATION)[0] == 401
    assert head.post(NOTIFICATION, "f" * 32)[0] == 200


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: path.write_text("\n"), "no token of 16 characters"),
        (lambda path: path.chmod(0o644), "is open to other users"),
    ],
)
def test_a_token_file_that_is_no_secret_lets_no_one_in(head, spoil, says):
    spoil(head.token_file)
    for token in (TOKEN, ""):
        status, answer = head.post(NOTIFICATION, token)
        assert (status, answer["error"]) == (503, "token_unusable")
        assert says in answer["message"]


def test_without_a_token_file_there_is_no_such_door(tmp_path):
    head = Head(tmp_path)
    assert make_alert_routes(None, head.take, CollectorRegistry()) == []
    head.server.stop()


def test_before_slurm_has_answered_alertmanager_tries_again(head):
    def silent() -> dict[str, str]:
        raise ServiceUnavailable("Slurm has not answered yet")

    head.addresses = silent
    assert head.post(NOTIFICATION)[0] == 503


def test_a_standby_takes_alerts_for_when_it_leads(head):
    """It has heard no agent and has no cycles: whose they are is known when it leads."""
    views = [SchedulerView(NOW, nodes={N1: SlurmNode(N1, "IDLE", address="10.1.0.1")})]
    head.addresses = Mock(side_effect=ServiceUnavailable("Slurm has not answered yet"))
    head.leadership.serves = False
    head.slurm.view = views.pop
    body = json.dumps(NOTIFICATION).encode()
    for _ in range(2):
        assert head.take(body)["taken"] == 1
    assert [alert.instance for alert in head.book._alerts.values()] == [None]
    assert head.findings(N1)


def lacking(field: str) -> dict[str, Any]:
    document = copy.deepcopy(NOTIFICATION)
    del document["alerts"][0][field]
    return document


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 100_000, 422, "no notification"),
        (b'{"version": "4", "alerts": ' + b"[" * 9999, 400, "not JSON"),
        (json.dumps(NOTIFICATION).encode()[:-3], 400, "not JSON"),
        ({**NOTIFICATION, "version": "3"}, 400, "version '3'"),
        ({"alerts": []}, 422, "missing required field `version`"),
        ({**NOTIFICATION, "alerts": {}}, 422, "at `$.alerts`"),
        (lacking("fingerprint"), 422, "`fingerprint` - at `$.alerts[0]`"),
        (lacking("startsAt"), 422, "`startsAt` - at `$.alerts[0]`"),
        ({**NOTIFICATION, "alerts": [{**NOTIFICATION["alerts"][0], "status": "?"}]}, 422, "status"),
        ({**NOTIFICATION, "alerts": NOTIFICATION["alerts"] * 2001}, 422, "at `$.alerts`"),
    ],
)
def test_what_is_no_notification_is_refused_with_its_place(head, body, status, says):
    got, answer = head.post(body)
    assert got == status
    assert says in answer["message"]
    assert head.findings() == ()


def test_too_much_is_refused_before_it_is_read(head):
    size = alerts.MAX_BODY + 1
    assert announced(head.server.port, "/v1/alerts", size, f"Bearer {TOKEN}") == 413

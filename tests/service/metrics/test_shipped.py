"""The shipped rules and dashboards, by promtool and by a real Prometheus."""

import json
import re
import signal
import subprocess
import sys
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from msgspec.structs import replace
from prometheus_client import generate_latest

from docgen.alerts import ALERTS, RECORDS
from docgen.metrics import intake_registry
from hpctl.cli.main import cli
from hpctl.detection.metrics import (
    PREFIX,
    MetricsServer,
    list_agent_metric_samples,
    load_metric_series_descriptions,
    render_prometheus_text,
)
from hpctl.insight.grey.decide import GAUGES
from hpctl.service.intake.app import make_agent_intake_app, make_discovery_route
from hpctl.service.intake.server import UvicornServerThread
from hpctl.service.metrics import DaemonMetrics
from hpctl.service.observability_command import APT
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.wire.authentication import IntakeAuthenticationSettings
from tests.fakes.values import view_of
from tests.intakes import Sink, get
from tests.process import free_port, promtool
from tests.service.metrics.test_agent_metrics import SEEN
from tests.waiting import until

pytestmark = pytest.mark.integration

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def rendered(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("rendered")
    (place / "hpctl.yaml").write_text(f"state_dir: {place}\n")
    done = run(place, "render", "--out", str(place), "--alertmanager", "127.0.0.1:9093")
    assert done.exit_code == 0, done.output
    return place


def run(place: Path, *arguments: str):
    command = ["observability", *arguments, "--config", str(place / "hpctl.yaml")]
    return CliRunner().invoke(cli, command)


def queries(place: Path) -> dict[str, str]:
    """Every query of every dashboard, by where it stands."""
    found = {}
    for path in sorted((place / "dashboards").iterdir()):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                assert target["datasource"]["uid"] == "${datasource}"
                where = f"{path.stem}: {panel['title']}: {target['refId']}"
                found[where] = target["expr"].replace("$__rate_interval", "5m")
    return found


def test_prometheus_takes_the_configuration_and_the_rules(rendered):
    promtool("check", "config", rendered / "prometheus.yml")
    promtool("check", "rules", rendered / "hpctl.rules.yml")
    boards = [json.loads(p.read_text()) for p in (rendered / "dashboards").iterdir()]
    assert len({board["uid"] for board in boards}) == len(boards) == 5


def test_each_alert_links_to_its_section(rendered, tmp_path):
    """To the runbook beside the rules, or to the documentation that a site serves."""
    (tmp_path / "hpctl.yaml").write_text(f"state_dir: {tmp_path}\n")
    done = run(tmp_path, "render", "--out", str(tmp_path), "--docs", "https://docs.example/hpctl/")
    assert done.exit_code == 0, done.output
    served = f"https://docs.example/hpctl/{(DOCS / 'alerts.md').with_suffix('.html').name}"
    for place, url in ((rendered, (rendered / "alerts.md").as_uri()), (tmp_path, served)):
        page = (DOCS if place == tmp_path else place) / "alerts.md"
        sections = {
            line[3:].lower() for line in page.read_text().splitlines() if line.startswith("## ")
        }
        groups = yaml.safe_load((place / "hpctl.rules.yml").read_text())["groups"]
        links = [rule["annotations"]["runbook_url"] for rule in groups[1]["rules"]]
        assert len(links) == len(ALERTS)
        for link in links:
            base, _, anchor = link.partition("#")
            assert (base, anchor in sections) == (url, True)


def test_every_metric_that_is_named_exists(rendered):
    exist = {PREFIX + name for name in load_metric_series_descriptions()} | RECORDS.keys()
    for registry in (DaemonMetrics().registry, intake_registry()):
        for family in registry.collect():
            ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
            exist |= {family.name + end for end in ends.get(family.type, ("",))}
    texts = [*queries(rendered).values(), *RECORDS.values(), *(alert.expr for alert in ALERTS)]
    named = {name for text in texts for name in re.findall(r"\b(?:hpctl|hyperpod)[_:][\w:]+", text)}
    assert len(named) > 40
    assert named - exist == set()
    gauges = {name for text in texts for name in re.findall(r'gauge="([^"]+)"', text)}
    assert gauges <= set(GAUGES)


def test_it_refuses_with_the_fix_what_cannot_be(rendered, monkeypatch):
    monkeypatch.setenv("PATH", "")
    refused = [
        (("up",), "the program prometheus is not on PATH"),
        (("render", "--out", f"{rendered}/hpctl.yaml/x"), "cannot write to"),
        (("render", "--out", "x", "--head", "http://a:b"), "not a valid URL of a head node"),
    ]
    for arguments, why in refused:
        error = run(rendered, *arguments).exception
        assert isinstance(error, HpctlError)
        assert why in str(error)
    assert APT in run(rendered, "up").exception.hint


@pytest.fixture
def head():
    """A head node's HTTP with a made-up state, and the agent of one of its nodes."""
    text = render_prometheus_text(list_agent_metric_samples(SEEN, [], {}))
    agent = MetricsServer("127.0.0.1:0", [], [], lambda: text)
    agent.start()
    metrics, view = DaemonMetrics(agent_port=agent.port), view_of(nodes=3)
    nodes = {name: replace(n, address="127.0.0.1") for name, n in view.scheduler.nodes.items()}
    metrics.cycle(
        0.1, replace(view, scheduler=replace(view.scheduler, nodes=nodes)), RecoveryPolicy()
    )
    app = make_agent_intake_app(
        IntakeAuthenticationSettings(),
        Sink(),
        lambda _: None,
        routes=[make_discovery_route(lambda: json.dumps(metrics.targets()).encode())],
        scrape=lambda: generate_latest(metrics.registry),
    )
    server = UvicornServerThread(app, "127.0.0.1", 0)
    server.start()
    yield server
    server.stop()
    agent.stop()
    agent.join(5)


def test_prometheus_follows_head_and_agents_and_answers_every_dashboard(head, rendered, tmp_path):
    port = free_port()
    (tmp_path / "hpctl.yaml").write_text(f"state_dir: {tmp_path}\n")
    options = [f"--listen=127.0.0.1:{port}", f"--head=127.0.0.1:{head.port}", "--every=1s"]
    command = [sys.executable, "-m", "hpctl", "observability", "up", *options]
    with (tmp_path / "log").open("wb") as log:
        up = subprocess.Popen(
            [*command, f"--config={tmp_path}/hpctl.yaml"], stdout=log, stderr=log, cwd=tmp_path
        )

    def ask(query: str) -> list[dict[str, Any]]:
        try:
            answer = json.loads(get(port, f"/api/v1/query?query={urllib.parse.quote(query)}"))
        except (OSError, ValueError):  # it says so in words while it starts
            return []
        assert answer["status"] == "success", (query, answer)
        return list(answer["data"]["result"])

    try:
        until(lambda: len(ask('up{job="hpctl-agents"} == 1')) == 3, 30)
        until(lambda: ask('hpctl_nodes{partition="all",state="in_service"} == 3'), 10)
        hot = ask("hpctl_agent_gpu_temperature_celsius")
        assert {(one["metric"]["instance"], one["value"][1]) for one in hot} == {
            (name, "61") for name in ("n1", "n2", "n3")
        }
        until(lambda: ask("hpctl_effective_training_time_ratio"), 10)
        blank = [where for where, query in queries(rendered).items() if not ask(query)]
        assert blank == [], "nothing has happened on this cluster"
        assert not ask('ALERTS{alertname="HpctlDown"}')
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0, (tmp_path / "log").read_text()

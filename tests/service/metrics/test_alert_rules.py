"""The shipped alerts, by promtool: each fires when it is so, stays open, ends, and no other fires.

A case lies over the metrics of a healthy head node, so that an alert that fires beside the one that
is meant is seen."""

import re
from pathlib import Path
from typing import Any

import pytest

from docgen.alerts import ALERTS, Alert
from docgen.alerts import make_rules as shipped_rules
from tests.service.metrics.rule_bench import judge, lay_out, make_test, open_at, opened
from tests.tables import beside

pytestmark = pytest.mark.integration

CASES: dict[str, Any] = beside(__file__, "alerts.yaml")
LOOKALIKES: dict[str, Any] = beside(__file__, "lookalikes.yaml")
BY_NAME = {alert.name: alert for alert in ALERTS}
RUNBOOK = "RUNBOOK"


@pytest.fixture(scope="module")
def rules(tmp_path_factory) -> Path:
    file: Path = tmp_path_factory.mktemp("rules") / "hpctl.rules.yml"
    file.write_text(shipped_rules())
    return file


def fill_in(template: str, case: dict[str, Any]) -> str:
    """What Prometheus makes of a text."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda m: str(case["labels"][m[1]]), template)
    pattern = r'\{\{ if eq \$labels\.(\w+) "(\w+)" \}\}(.*?)\{\{ end \}\}'
    text = re.sub(pattern, lambda m: m[3] if case["labels"][m[1]] == m[2] else "", text)
    text = re.sub(r"\{\{ \$value \| \w+ \}\}", lambda _: str(case["shown"]), text)
    return text.replace("{{ $value }}", str(case.get("value", "")))


def expect_texts(alert: Alert, case: dict[str, Any]) -> dict[str, Any]:
    """What the alert says when it fires."""
    annotations = {
        "summary": fill_in(alert.summary, case),
        "description": case.get("description") or fill_in(alert.description, case),
        "runbook_url": f"{RUNBOOK}#{alert.anchor}",
    }
    labels = {**case.get("labels", {}), "severity": alert.severity}
    expected = {"exp_labels": labels, "exp_annotations": annotations}
    when = f"{case['fires']}m"
    return {"eval_time": when, "alertname": alert.name, "exp_alerts": [expected]}


INTERRUPTED = {
    alert.name
    for alert in ALERTS
    if alert.keeps != "0s"
    and "hpctl_agent" not in alert.expr
    and alert.name != "HpctlTargetMissing"
}
"""Those that rest on what the daemon tells and outlast its restart: an upgrade of three minutes and
a missed scrape come while each is open."""


def interruptions(case: dict[str, Any], every: int) -> tuple[tuple[int, int], ...]:
    """For which samples the daemon does not answer."""
    begins = case["fires"] // every + 4
    return (begins, begins + (3 if every == 1 else 1)), (begins + 20, begins + 21)


def make_case(alert: Alert) -> tuple[int, dict[str, Any]]:
    """promtool's test of one alert; how many minutes there are between two samples."""
    case = CASES[alert.name]
    every, fires, until = case.get("every", 1), case["fires"], case["true_until"]
    ends = case.get("closed", until) + 2 * every
    half = fires + (until - fires) // 2 // every * every
    checks = [
        open_at(alert.name, 0, 1 if alert.name == "HpctlWatchdog" else 0),
        *(open_at(alert.name, at, 1) for at in (fires, half, until)),
        opened(ends, ends, every, {} if alert.name == "HpctlWatchdog" else {alert.name: 1}),
    ]
    if "closed" in case:
        checks.append(open_at(alert.name, case["closed"], 0))
    interrupted = alert.name in INTERRUPTED and every < 30
    down = interruptions(case, every) if interrupted else ()
    series = lay_out(case, ends // every + 2, down)
    return every, make_test(alert.name, series, every, checks, [expect_texts(alert, case)])


def test_each_alert_has_a_case():
    assert CASES.keys() == BY_NAME.keys()
    assert len(INTERRUPTED) > 18


@pytest.mark.parametrize("every", [1, 5, 30])
def test_each_alert_opens_once_stays_open_and_ends(every, rules, tmp_path):
    tests = [make_case(alert) for alert in ALERTS]
    judge(tmp_path, rules, every, [test for minutes, test in tests if minutes == every])


@pytest.mark.parametrize("every", [1, 5, 30])
def test_what_only_looks_like_it_fires_nothing(every, rules, tmp_path):
    tests = []
    for name, case in LOOKALIKES.items():
        if case.get("every", 1) != every:
            continue
        minutes = 100 * every
        check = opened(minutes, minutes, every, dict.fromkeys(case.get("fires", ()), 1))
        tests.append(make_test(name, lay_out(case, 101), every, [check]))
    judge(tmp_path, rules, every, tests)


def test_a_prometheus_without_any_series_tells_of_that_alone(rules, tmp_path):
    check = opened(300, 300, 1, {"HpctlTargetMissing": 1})
    judge(tmp_path, rules, 1, [make_test("empty", {}, 1, [check])])


def test_each_alert_says_what_since_when_and_what_to_do():
    pages = [alert.name for alert in ALERTS if alert.severity == "page"]
    assert len(pages) < len(ALERTS) / 3
    for alert in ALERTS:
        assert alert.severity in ("page", "ticket") or alert.name == "HpctlWatchdog"
        assert alert.summary.endswith("."), alert.name
        assert alert.description.endswith("."), alert.name
        assert alert.act, alert.name
        since = re.search(
            r"[Ss]ince|[Ff]or over|ago|of 7 days|is free|GPU-hours", alert.description
        )
        assert since or alert.name == "HpctlWatchdog", alert.name

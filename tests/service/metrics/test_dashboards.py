"""The shipped dashboards against Grafana's own schema, and what no schema says of them."""

import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

PLACE = Path(__file__).parents[3] / "hpctl/service/observability/dashboards"
BOARDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(PLACE.iterdir())
}
UNITS = {"s", "h", "bytes", "percentunit", "celsius", "watt", "cps", "bool_yes_no"}
"""Those of Grafana's that the dashboards use, beside words of their own (`suffix: nodes`)."""
BUILT_IN = {"__rate_interval", "__field.labels.instance"}

each_board = pytest.mark.parametrize("name", BOARDS)


def test_there_are_the_five():
    assert [*BOARDS] == ["fleet", "grey", "hpctl", "jobs", "recoveries"]
    assert len({board["uid"] for board in BOARDS.values()}) == len(BOARDS)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Grafana's models need Python 3.11")
@each_board
def test_grafanas_own_models_read_each_and_lose_nothing(name):
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    again = json.loads(json.dumps(Dashboard.from_json(BOARDS[name]), cls=JSONEncoder))
    ours = json.loads(json.dumps(BOARDS[name]))
    for mark in ours["annotations"]["list"]:  # what the Prometheus data source reads beside
        for key in ("step", "titleFormat", "textFormat", "tagKeys"):
            assert isinstance(mark.pop(key), str)
    assert again == ours


@each_board
def test_each_dashboard_is_marked_and_linked(name):
    board = BOARDS[name]
    marks = {mark["name"]: mark for mark in board["annotations"]["list"]}
    assert marks.keys() >= {"Faulty nodes", "Jobs in recovery", "Takeovers", "Alerts"}
    assert all(mark["enable"] and mark["expr"] and mark["iconColor"] for mark in marks.values())
    links = {link["type"]: link for link in board["links"]}
    assert links["dashboards"]["tags"] == board["tags"] == ["hpctl"]
    assert links["link"]["url"] == "${page}"
    known = {variable["name"] for variable in board["templating"]["list"]} | BUILT_IN
    named = set(re.findall(r"\$\{?([\w.]+)\}?", json.dumps(board)))
    assert named <= known


@each_board
def test_each_panel_has_a_unit_a_place_and_is_never_blank(name):
    panels = BOARDS[name]["panels"]
    titles = [panel["title"] for panel in panels]
    assert len(set(titles)) == len(titles)
    for panel in panels:
        unit = panel["fieldConfig"]["defaults"]["unit"]
        assert unit in UNITS or re.fullmatch(r"suffix: [A-Za-z ]+", unit), panel["title"]
        assert panel["fieldConfig"]["defaults"]["noValue"]
        for target in panel["targets"]:
            assert re.search(r" or on\(\) (label_replace\()?vector\(0\)", target["expr"])
            assert target["legendFormat"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
    for one, other in itertools.combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


@each_board
def test_what_is_of_one_node_leads_to_it(name):
    for panel in BOARDS[name]["panels"]:
        of_nodes = any("topk(5" in target["expr"] for target in panel["targets"])
        links = panel["fieldConfig"]["defaults"].get("links", [])
        assert not of_nodes or links[0]["url"] == "${page}/explain/${__field.labels.instance}"

"""The forecast is the same after old events have left the journal."""

from hpctl.engine.journal.state import EngineState
from hpctl.insight.forecast.history import forecast_node_failures
from tests.engine.test_journal import with_and_without_the_past
from tests.fakes.values import at


def test_forecasts_are_the_same_with_and_without_the_past(monkeypatch) -> None:
    whole, left = with_and_without_the_past(monkeypatch)

    nodes = {rec.node for rec in whole.nodes.values()}

    def chances(state: EngineState) -> list[tuple[str, float]]:
        return [(f.node, f.week) for f in forecast_node_failures(state, nodes, {}, at(0))]

    assert all(week > 0 for _, week in chances(whole))
    assert chances(left) == chances(whole)

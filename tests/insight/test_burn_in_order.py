"""The forecast orders burn-ins, and counts those that failed."""

from msgspec.structs import replace

from hpctl.engine.journal.state import replay_events
from hpctl.insight.forecast.history import (
    estimate_weekly_node_failure_risks,
    forecast_node_failures,
)
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from tests.capacity.test_burn_in import DAY, chosen, every, past
from tests.capacity.test_burn_in_results import failed, treated
from tests.fakes.capacity import N1, N2, N3, cluster
from tests.fakes.values import at, generation, node_name


def test_the_worst_forecast_comes_first_then_the_oldest_test() -> None:
    log = [e for n in range(4, 9) for e in past(node_name(n), -9)]
    log += past(N1, -3) + past(N2, -5) + past(N3, -4)
    assert chosen(
        cluster(idle=3, log=sorted(log, key=lambda e: e.at)),
        every(),
        estimate_weekly_node_failure_risks,
    ) == [N2, N3, N1]
    hot = Finding("gpu.remap", DeviceVerdict.WARN, at(0), at(0), code="bank-low")
    view = cluster(idle=3, log=sorted(log, key=lambda e: e.at))
    view = replace(view, health={**view.health, N1: NodeHealth(generation(N1), at(0), (hot,))})
    assert chosen(view, every(), estimate_weekly_node_failure_risks) == [N1, N2, N3]


def test_it_tells_in_the_forecast() -> None:
    (rec,), _ = treated(failed(N1))
    state = replay_events([*failed(N1), rec])
    (one,) = forecast_node_failures(state, [N1, N2], cluster().health, at(DAY), of=[N1])
    assert (one.breaks, dict(one.rules)) == (1, {"burn-in-failed": 1})

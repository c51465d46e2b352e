"""Forecasts from a journal whose clock jumped, and from nodes that report anything."""

import math
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from hpctl.engine.journal.events import Event, SignalSeen
from hpctl.engine.journal.state import replay_events
from hpctl.insight.forecast.history import (
    compute_slurm_weights,
    count_needed_spares,
    forecast_node_failures,
    make_failure_forecast_finding,
    measure_forecast_calibration,
)
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import NodeName, RecoveryId
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from tests.fakes.values import T0, generation, node_name, opened

FLEET = [node_name(n) for n in range(1, 6)]
TIMES = st.one_of(
    st.timedeltas(timedelta(days=-400), timedelta(days=400)).map(lambda by: T0 + by),
    st.sampled_from([datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)]),
)
ENDS = st.sampled_from(["operator_cancelled", ""])


@st.composite
def list_events(draw: st.DrawFn) -> list[Event]:
    """Recoveries in the journal's order, each time as a clock that is set at will says."""
    found: list[Event] = []
    closed = set(FLEET)
    for number in range(draw(st.integers(0, 6))):
        node, rid = draw(st.sampled_from(FLEET)), RecoveryId(f"n-{number}")
        if node not in closed:
            continue
        closed.remove(node)
        found.append(opened(rid, node, (draw(TIMES) - T0).total_seconds()))
        end = draw(ENDS)
        if end:
            found.append(SignalSeen(draw(TIMES), rid, end, ""))
            closed.add(node)
    return found


def report(node: NodeName, checks: list[str], at: datetime) -> NodeHealth:
    """What an agent says of its node: any check, any code, any time."""
    findings = tuple(Finding(check, DeviceVerdict.WARN, at, at, code=check) for check in checks)
    return NodeHealth(generation(node), at, findings=findings)


@settings(max_examples=150)
@given(events=list_events(), now=TIMES, checks=st.lists(st.text(), max_size=3), heard=TIMES)
def test_a_clock_that_jumps_and_any_report_leave_every_chance_a_chance(
    events: list[Event], now: datetime, checks: list[str], heard: datetime
) -> None:
    state = replay_events(events)
    health = {FLEET[0]: report(FLEET[0], ["gpu.throttle", "nvlink.errors", *checks], heard)}
    found = forecast_node_failures(state, FLEET, health, now)
    assert {f.node for f in found} == set(FLEET)
    for one in found:
        assert all(math.isfinite(p) and 0 <= p <= 1 for p in (one.day, one.week, one.month))
        assert all(math.isfinite(part) and part >= 0 for part in one.classes.values())
        make_failure_forecast_finding(one)
    assert count_needed_spares(found) >= 0
    assert all(1 <= weight <= 21 for weight in compute_slurm_weights(found))
    for band in measure_forecast_calibration(state, FLEET, now):
        assert math.isfinite(band.predicted)
        assert math.isfinite(band.happened)

"""The forecast's closed forms by hand and by an oracle, and what of a journal counts."""

import math
from random import Random

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import Event, SignalSeen
from hpctl.engine.journal.state import replay_events
from hpctl.faults.assess import assess_health
from hpctl.faults.catalogue import build_fault_rules
from hpctl.insight.forecast.decide import (
    CHECK,
    PRIORS,
    STEPS,
    InstanceFailure,
    InstanceFailureTimeline,
    fit_failure_model,
)
from hpctl.insight.forecast.history import (
    InstanceFailureForecast,
    compute_forecast_calibration_error,
    count_needed_spares,
    forecast_node_failures,
    make_failure_forecast_finding,
    measure_forecast_calibration,
    read_fleet_failure_history,
)
from hpctl.vocabulary.assessment import NodeCondition
from hpctl.vocabulary.identity import NodeName, RuleId
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from tests.fakes.values import N1, generation, node_name, opened
from tests.fakes.values import at as seconds
from tests.insight.forecast.trace import HAZARDS, synthetic

DAY = 86400.0
FLEET = [node_name(n) for n in range(1, 101)]
NONE = replace(PRIORS, events=1e-9, node_days=1e-9, recency_events=1e-9)
LIFELINES = (
    0.841822, 0.050178, 0.022945, 0.02189, 0.010246, 0.005942, 0.004273, 0.002884, 0.001082,
)  # fmt: skip
"""ExponentialFitter of lifelines 0.30.3 on these gaps, from each step on to its end, as hazards."""


def treated(day, number=0, node=1, end="operator_cancelled", **changes):
    """A recovery of that day, and its end."""
    rid = f"n-{node}-{number}-{day}"
    first = opened(rid, node_name(node), day * DAY, **changes)
    return [first, SignalSeen(seconds(day * DAY + 60), rid, end, "")]


def forecast_of(
    *events: list[Event], day: float = 30, health=None
) -> dict[NodeName, InstanceFailureForecast]:
    log = sorted((e for some in events for e in some), key=lambda e: e.at)
    found = forecast_node_failures(replay_events(log), FLEET, health or {}, seconds(day * DAY))
    assert len(found) == len(FLEET)
    return {f.node: f for f in found}


def test_hazards_without_priors_are_those_of_lifelines() -> None:
    random, units = Random(5), []
    for _ in range(400):
        left, gap = random.expovariate(1), 0.0
        for rate, end in zip((0.8, 0.08, 0.03, 0.017, 0.011, 0.007, 0.004, 0.0037, 0.0026),
                             (*STEPS, math.inf), strict=True):  # fmt: skip
            if left < rate * (end - gap):
                break
            left, gap = left - rate * (end - gap), end
        # Each begins as the break before it ends, and is watched for 100 days.
        ends = (
            [InstanceFailure(gap + left / rate, math.inf, "x")] if gap + left / rate <= 100 else []
        )
        units.append(InstanceFailureTimeline(0.0, (InstanceFailure(-1.0, 0.0, "x"), *ends)))
    model = fit_failure_model(units, 0.0, 100.0, NONE)
    assert [model.base * times for times in model.recency] == pytest.approx(LIFELINES, rel=1e-3)


def test_a_new_cluster_has_the_published_rate() -> None:
    model = fit_failure_model([], 0.0, 0.0)
    chance = model.chance(InstanceFailureTimeline(0.0), 1.0)
    assert model.base == pytest.approx(3.73e-3, rel=0.01)
    assert chance == pytest.approx(0.9 * 3.73e-3, rel=0.01)
    assert model.chance(InstanceFailureTimeline(0.0), 30.0) == pytest.approx(30 * chance, rel=0.1)


def test_a_chance_grows_with_days_breaks_and_indicators_and_falls_with_age() -> None:
    trace = synthetic(1)
    model = fit_failure_model(
        (InstanceFailureTimeline(0.0, b).at(200.0) for b in trace.values() if b), 0.0, 200.0
    )
    twice = InstanceFailureTimeline(
        0.0, (InstanceFailure(180.0, 180.5, "GPU"), InstanceFailure(199.0, 199.9, "GPU"))
    )
    once, older = (
        replace(twice, breaks=twice.breaks[1:]),
        InstanceFailureTimeline(0.0, (InstanceFailure(150.0, 151.0, "GPU"),)),
    )
    chances = [model.chance(u, 7.0) for u in (twice, once, older, InstanceFailureTimeline(0.0))]
    assert (chances, len(set(chances))) == (sorted(chances, reverse=True), 4)
    assert 0 < model.chance(twice, 1.0) < model.chance(twice, 7.0) < model.chance(twice, 30.0) < 1
    assert model.chance(once, 7.0, ["throttling"]) > model.chance(once, 7.0)
    real = [rate / HAZARDS[5] for rate in HAZARDS]
    assert model.recency[0] / model.recency[5] == pytest.approx(real[0], rel=0.7)


def test_an_indicator_is_worth_what_the_journal_shows() -> None:
    signs = ("remapped rows",)
    with_it = [
        InstanceFailureTimeline(0.0, (InstanceFailure(n, n + 0.1, "GPU memory", signs),))
        for n in range(1, 41)
    ]
    without = [
        InstanceFailureTimeline(0.0, (InstanceFailure(n, n + 0.1, "GPU memory"),))
        for n in range(1, 41)
    ]
    shown = fit_failure_model(with_it, 9e3, 90.0, prevalence={"remapped rows": 0.05}).signs[
        "remapped rows"
    ]
    idle = fit_failure_model(without, 9e3, 90.0, prevalence={"remapped rows": 0.5}).signs[
        "remapped rows"
    ]
    assert shown == pytest.approx((2 + 40) / (1 + 40 * 0.05))
    assert idle < 0.2


def test_the_journal_tells_breaks_and_their_reasons() -> None:
    found = forecast_of(*(treated(n) for n in (10, 16, 22)), day=24)
    worst = next(iter(found.values()))
    assert (worst.node, worst.breaks, worst.again) == (N1, 3, True)
    assert worst.why.startswith("broke 3 times within 14 d: xid-79 (3); back for 48 h (x")
    assert (next(iter(worst.classes)), found[node_name(2)].why) == ("GPU", "no break in 14 d")
    assert not forecast_of(*(treated(n) for n in (16, 22)), day=24)[N1].again
    assert not forecast_of(*(treated(n) for n in (10, 16, 22)), day=90)[N1].again


def test_a_replaced_instance_takes_its_history_with_it() -> None:
    events = [e for n in (10, 16) for e in treated(n)]
    events.append(opened("n-last", N1, 22 * DAY))
    for n, signal in enumerate(("cordon_seen", "jobs_gone", "remedy_accepted")):
        events.append(SignalSeen(seconds(22 * DAY + n), "n-last", signal, ""))
    assert forecast_of(events, day=23)[N1].again
    new = generation(N1, 2, instance="i-other")
    events.append(SignalSeen(seconds(22 * DAY + 9), "n-last", "new_generation_seen", "", new))
    fresh = forecast_of(events, day=23)[N1]
    assert (fresh.instance, fresh.breaks, fresh.again) == ("i-other", 0, False)
    past = read_fleet_failure_history(replay_events(events), seconds(23 * DAY))
    assert [len(u.breaks) for u in past.units.values()] == [3]


def test_orders_mass_events_and_what_was_withdrawn_are_no_nodes_own() -> None:
    mass = [treated(10 + n / 10_000, node=n) for n in range(1, 6)]
    found = forecast_of(
        *mass, treated(12, node=7, by="alice"), treated(13, node=8, end="withdrawn")
    )
    assert ({f.breaks for f in found.values()}, forecast_of(*mass[:2])[N1].breaks) == ({0}, 1)


def test_indicators_are_read_from_what_agents_say_now() -> None:
    seen = Finding("gpu.remap", DeviceVerdict.WARN, seconds(0), seconds(0), code="bank-low")
    ok = replace(seen, check="gpu.throttle", verdict=DeviceVerdict.OK)
    health = {N1: NodeHealth(generation(), seconds(0), (seen, ok))}
    found = forecast_of(treated(10, node=5), health=health)
    assert found[N1].signs == ("remapped rows",)
    assert found[N1].week > found[node_name(2)].week
    assert found[N1].classes["GPU memory"] > 1.5 * found[node_name(2)].classes["GPU memory"]


def test_the_advice_is_shown_and_leaves_the_node_in_service() -> None:
    now = seconds(24 * DAY)
    answer = make_failure_forecast_finding(
        forecast_of(*(treated(n) for n in (10, 16, 22)), day=24)[N1]
    )
    assert answer is not None
    assert answer.check == CHECK
    judged = assess_health(NodeHealth(generation(), now, (answer,)), build_fault_rules(), now)
    assert (judged.condition, judged.findings) == (NodeCondition.HEALTHY, (answer,))
    assert "[history-forecast]" in judged.why


def test_what_was_predicted_is_compared_with_what_happened() -> None:
    events = [e for d in range(3, 60, 6) for e in treated(d, node=d % 7 + 1)]
    bands = measure_forecast_calibration(replay_events(events), FLEET, seconds(62 * DAY))
    broken = sum(round(b.happened * b.node_weeks) for b in bands)
    weeks = range(1, (62 - 3) // 7)
    hit = {(w, d % 7) for w in weeks for d in range(3, 60, 6) if 62 - 7 * w <= d < 69 - 7 * w}
    assert broken == len(hit)
    assert sum(b.node_weeks for b in bands) == pytest.approx(len(FLEET) * len(weeks), abs=2)
    assert 0 < compute_forecast_calibration_error(bands) < 0.05
    assert measure_forecast_calibration(replay_events(events[:2]), FLEET, seconds(10 * DAY)) == ()


def test_spares_are_enough_for_a_day() -> None:
    found = list(forecast_of(treated(10)).values())
    assert (
        count_needed_spares([replace(f, day=0.02) for f in found]) == 5
    )  # Poisson of 2: 0.983 at 5
    assert count_needed_spares([]) == 0


def test_a_forecast_of_ten_thousand_nodes_is_the_same_in_any_order() -> None:
    events = [e for d in range(1, 40) for e in treated(d, node=d % 9 + 1, rule=RuleId("xid-48"))]
    state, now = replay_events(events), seconds(45 * DAY)
    nodes = [node_name(n) for n in range(1, 10_001)]
    found = forecast_node_failures(state, nodes, {}, now)
    assert found == forecast_node_failures(state, nodes[::-1], {}, now)
    assert forecast_node_failures(state, nodes, {}, now, of=nodes[:9]) == found[:9]

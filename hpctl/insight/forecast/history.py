"""What the journal shows of each instance's breaks, and the forecasts that follow."""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Final

from msgspec import Struct

from hpctl.engine.journal.state import RECENT_S, EngineState
from hpctl.engine.view import PlanningView
from hpctl.insight.forecast.decide import (
    AGAIN_CHANCE,
    CHECK,
    DAY,
    HORIZONS,
    MASS_NODES,
    MASS_WINDOW_S,
    PRIORS,
    SIGNS,
    STEPS,
    InstanceFailure,
    InstanceFailureRateModel,
    InstanceFailureTimeline,
    fit_failure_model,
    get_fault_class_of_rule,
)
from hpctl.toolkit.bounds import clamp_duration
from hpctl.vocabulary.identity import InstanceId, NodeName, RecoveryId
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase


class InstanceFailureForecast(Struct, frozen=True):
    """One instance: how likely it breaks within 1, 7 and 30 days if it is in service now, and why.

    `rules` by how often they treated it here; `classes`: what part each class has of the chance.
    """

    node: NodeName
    instance: InstanceId
    day: float
    week: float
    month: float
    breaks: int
    jobs: int
    escalated: int
    rules: Mapping[str, int]
    classes: Mapping[str, float]
    signs: tuple[str, ...]
    first: datetime | None
    last: datetime | None
    why: str

    @property
    def again(self) -> bool:
        """Return whether it breaks again and again."""
        return self.breaks > 2 and self.month >= AGAIN_CHANCE


class FleetFailureHistory(Struct, frozen=True):
    """The instances that were ever treated, as the journal has them. `since`: when it begins, in
    days. `gone`: those that were replaced."""

    since: float
    units: Mapping[InstanceId, InstanceFailureTimeline]
    treated: Mapping[InstanceId, tuple[NodeRecovery, ...]]
    gone: frozenset[InstanceId]
    of_node: Mapping[NodeName, InstanceId]


def list_failure_indicators(findings: Iterable[Finding]) -> tuple[str, ...]:
    """Return the indicators that are among the findings of a node."""
    there: set[str] = set()
    for finding in findings:
        if finding.verdict is not DeviceVerdict.OK:
            there |= {finding.check, f"{finding.check} {finding.code}"}
    return tuple(s.name for s in SIGNS if not there.isdisjoint(s.found))


def read_fleet_failure_history(state: EngineState, now: datetime) -> FleetFailureHistory:
    """Return what the journal of the last RECENT_S shows. A person's orders, what was withdrawn and
    mass events are no breaks of the node's own."""
    start = _convert_datetime_to_days(now) - RECENT_S / DAY
    since = (
        max(start, _convert_datetime_to_days(state.began))
        if state.began is not None
        else _convert_datetime_to_days(now)
    )
    treated_by_now = [
        r for r in state.nodes.values() if r.opened <= now and not r.is_for_capacity_change
    ]
    past = sorted(treated_by_now, key=lambda r: r.opened)
    shared = _find_mass_failure_recoveries([r for r in past if not (r.by or r.withdrawn)])
    treated: dict[InstanceId, list[NodeRecovery]] = {}
    born: dict[InstanceId, float] = {}
    of_node: dict[NodeName, InstanceId] = {}
    gone: set[InstanceId] = set()
    for rec in past:
        old, new = rec.opened_for.instance, rec.generation.instance
        of_node[rec.node] = new
        if old != new:
            gone.add(old)
            born[new] = _convert_datetime_to_days(rec.since)
        if not (rec.by or rec.withdrawn or rec.id in shared):
            treated.setdefault(old, []).append(rec)
    units = {}
    for instance, recs in treated.items():
        recent = [rec for rec in recs if _convert_datetime_to_days(rec.opened) >= since]
        breaks = tuple(_make_instance_failure(rec, state, instance in gone) for rec in recent)
        units[instance] = InstanceFailureTimeline(max(since, born.get(instance, since)), breaks)
    kept = {instance: tuple(recs) for instance, recs in treated.items()}
    return FleetFailureHistory(since, units, kept, frozenset(gone), of_node)


def _convert_datetime_to_days(at: datetime) -> float:
    return at.timestamp() / DAY


def _make_instance_failure(rec: NodeRecovery, state: EngineState, gone: bool) -> InstanceFailure:
    back = math.inf
    if rec.ended and rec.opened_for.instance == rec.generation.instance:
        back = _convert_datetime_to_days(rec.since)
        by_hand = state.returned.get(rec.node)
        if rec.phase is NodeRecoveryPhase.ESCALATED and by_hand is not None:
            back = max(back, _convert_datetime_to_days(by_hand))
    elif rec.ended and not gone:
        back = _convert_datetime_to_days(rec.since)
    return InstanceFailure(
        _convert_datetime_to_days(rec.opened),
        back,
        get_fault_class_of_rule(rec.rule),
        list_failure_indicators(rec.findings),
    )


def _find_mass_failure_recoveries(past: Iterable[NodeRecovery]) -> set[RecoveryId]:
    """Return the recoveries that were one event of many nodes."""
    by_rule: dict[str, list[NodeRecovery]] = {}
    for rec in past:
        by_rule.setdefault(rec.rule, []).append(rec)
    window = clamp_duration(MASS_WINDOW_S)
    shared: set[RecoveryId] = set()
    for recs in by_rule.values():
        first = 0
        for place, rec in enumerate(recs):
            while rec.opened - recs[first].opened > window:
                first += 1
            together = recs[first : place + 1]
            if len({r.node for r in together}) >= MASS_NODES:
                shared.update(r.id for r in together)
    return shared


def forecast_node_failures(
    state: EngineState,
    nodes: Collection[NodeName],
    health: Mapping[NodeName, NodeHealth],
    now: datetime,
    of: Collection[NodeName] | None = None,
) -> tuple[InstanceFailureForecast, ...]:
    """Return the forecast of every node, or of those `of` them, the worst first. A node that is out
    of service is taken to be back."""
    past = read_fleet_failure_history(state, now)
    signs = {
        node: list_failure_indicators(health[node].findings) for node in nodes if node in health
    }
    model = _fit_fleet_failure_model(past, nodes, signs, _convert_datetime_to_days(now))
    moved = Counter(job.cause for job in state.jobs.values())
    quiet, found = InstanceFailureTimeline(past.since), []
    alike: dict[tuple[str, ...], tuple[float, float, float]] = {}
    for node in nodes if of is None else of:
        known = health.get(node)
        instance = known.generation.instance if known else past.of_node.get(node, InstanceId(""))
        unit = past.units.get(instance, quiet)
        shown = signs.get(node, ())
        if unit.breaks:
            chances = _estimate_failure_chances(model, unit, shown)
        else:
            if shown not in alike:
                alike[shown] = _estimate_failure_chances(model, quiet, shown)
            chances = alike[shown]
        recs = past.treated.get(instance, ()) if unit.breaks else ()
        mine = _NodeForecastInput(node, instance, unit, recs, shown)
        jobs = sum(moved.get(rec.id, 0) for rec in recs)
        found.append(_make_instance_forecast(model, mine, chances, jobs))
    return tuple(sorted(found, key=lambda f: (-f.week, -f.month, f.node)))


def estimate_weekly_node_failure_risks(
    view: PlanningView, now: datetime, nodes: set[NodeName]
) -> dict[NodeName, float]:
    """Return how likely each of some nodes breaks within a week."""
    known = {*view.scheduler.nodes, *view.health}
    found = forecast_node_failures(view.state, known, view.health, now, of=nodes)
    return {forecast.node: forecast.week for forecast in found}


def _estimate_failure_chances(
    model: InstanceFailureRateModel, unit: InstanceFailureTimeline, signs: tuple[str, ...]
) -> tuple[float, float, float]:
    day, week, month = HORIZONS
    return (
        model.chance(unit, day, signs), model.chance(unit, week, signs),
        model.chance(unit, month, signs),
    )  # fmt: skip


def _fit_fleet_failure_model(
    past: FleetFailureHistory,
    nodes: Collection[NodeName],
    signs: Mapping[NodeName, tuple[str, ...]],
    now: float,
) -> InstanceFailureRateModel:
    there = Counter(chain.from_iterable(signs.values()))
    share = {name: n / max(len(nodes), 1) for name, n in there.items()}
    units = [u.at(now) for u in past.units.values() if u.since < now]
    broken = [u for u in units if u.breaks]
    return fit_failure_model(
        broken,
        _count_failure_free_nodes(past, len(nodes), now) * (now - past.since),
        now,
        PRIORS,
        share,
    )


def _count_failure_free_nodes(past: FleetFailureHistory, nodes: int, now: float) -> int:
    """Return how many of the nodes had not broken by then: an instance that is gone has a
    successor."""
    return max(0, nodes - sum(
        i not in past.gone and bool(u.at(now).breaks) for i, u in past.units.items()
    ))  # fmt: skip


class _NodeForecastInput(Struct, frozen=True):
    """One node with what is known of its instance: its breaks, their recoveries, its signs now."""

    node: NodeName
    instance: InstanceId
    unit: InstanceFailureTimeline
    recs: Sequence[NodeRecovery]
    signs: tuple[str, ...]


def _make_instance_forecast(
    model: InstanceFailureRateModel,
    of: _NodeForecastInput,
    chances: tuple[float, float, float],
    jobs: int,
) -> InstanceFailureForecast:
    """Return a node's forecast. `chances`: to break within a day, a week, a month. `jobs`: those
    that its breaks moved."""
    unit, recs, signs = of.unit, of.recs, of.signs
    shares = model.shares(unit, signs)
    total = sum(shares.values())
    rules = dict(sorted(Counter(str(r.rule) for r in recs).items(), key=_make_count_sort_key))
    day, week, month = chances
    return InstanceFailureForecast(
        of.node, of.instance, day, week, month,
        breaks=len(unit.breaks),
        jobs=jobs,
        escalated=sum(r.phase is NodeRecoveryPhase.ESCALATED for r in recs),
        rules=rules,
        classes={k: v / total for k, v in sorted(shares.items(), key=_make_count_sort_key)},
        signs=signs,
        first=recs[0].opened if recs else None,
        last=recs[-1].opened if recs else None,
        why=_explain_failure_risk_factors(model, unit, rules, signs),
    )  # fmt: skip


def _make_count_sort_key(item: tuple[str, float]) -> tuple[float, str]:
    return -item[1], item[0]


def _explain_failure_risk_factors(
    model: InstanceFailureRateModel,
    unit: InstanceFailureTimeline,
    rules: Mapping[str, int],
    signs: tuple[str, ...],
) -> str:
    """Return the factors in plain words, each with what it multiplies the fleet's rate by."""
    parts = [f"no break in {max(0.0, model.now - unit.since):.0f} d"]
    if unit.breaks:
        last = unit.breaks[-1]
        causes = ", ".join(f"{rule} ({n})" if n > 1 else rule for rule, n in rules.items())
        broke = f"broke {len(unit.breaks)} times" if len(unit.breaks) > 1 else "broke once"
        days = max(1, round(model.now - unit.breaks[0].begun))
        age = max(0.0, model.now - last.back)
        back = "out of service" if math.isinf(last.back) else f"back for {_format_age_in_days(age)}"
        seen, expected = model.own(unit)
        parts = [
            f"{broke} within {days} d: {causes}",
            f"{back} (x{model.recency[bisect_right(STEPS, age)]:.1f})",
            f"its own rate (x{seen / expected:.1f})",
        ]
    parts += [f"{name} (x{model.signs[name]:.1f})" for name in signs]
    return "; ".join(parts)


def _format_age_in_days(days: float) -> str:
    return f"{days:.0f} d" if days >= 2 else f"{24 * days:.0f} h"


def make_failure_forecast_finding(f: InstanceFailureForecast) -> Finding | None:
    """Return the advice as a finding of the head node: WARN, and never a reason to act."""
    if f.first is None or f.last is None:
        return None
    chance = f"{100 * f.month:.0f} % to break again within 30 d"
    return Finding(
        CHECK, DeviceVerdict.WARN, f.first, f.last, evidence=f"{chance}: {f.why}", count=f.breaks,
        clears=ClearCondition.GONE,
    )  # fmt: skip


class ForecastCalibrationBin(Struct, frozen=True):
    """Forecasts of a week that lay between two chances: how many node-weeks, what was predicted on
    average, and in what part of them the node broke."""

    low: float
    high: float
    node_weeks: int
    predicted: float
    happened: float


BANDS: Final = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)


WEEK: Final = 7.0


def measure_forecast_calibration(
    state: EngineState, nodes: Collection[NodeName], now: datetime
) -> tuple[ForecastCalibrationBin, ...]:
    """Return what would have been predicted at the beginning of each past week, from what was known
    then, and what happened in it. Weeks before the journal's first are no evidence."""
    past, end = read_fleet_failure_history(state, now), _convert_datetime_to_days(now)
    sums = [[0.0, 0.0, 0.0] for _ in BANDS[1:]]

    def add_forecast_outcome(chance: float, happened: float, count: int = 1) -> None:
        row = sums[min(bisect_right(BANDS, chance), len(sums)) - 1]
        row[0], row[1], row[2] = row[0] + count, row[1] + chance * count, row[2] + happened

    at = end - WEEK
    while at - WEEK >= past.since:
        model, firsts = _fit_fleet_failure_model(past, nodes, {}, at), 0
        for unit in past.units.values():
            then = unit.at(at)
            broke = any(at <= b.begun < at + WEEK for b in unit.breaks)
            if then.breaks and then.breaks[-1].back <= at:
                add_forecast_outcome(model.chance(then, WEEK), broke)
            elif not then.breaks and unit.since <= at:
                firsts += broke
        quiet = _count_failure_free_nodes(past, len(nodes), at)
        add_forecast_outcome(model.chance(InstanceFailureTimeline(past.since), WEEK), firsts, quiet)
        at -= WEEK
    return tuple(
        ForecastCalibrationBin(low, high, round(n), chance / n, happened / n)
        for low, high, (n, chance, happened) in zip(BANDS, BANDS[1:], sums, strict=False)
        if n
    )


def compute_forecast_calibration_error(bands: Sequence[ForecastCalibrationBin]) -> float:
    """Return the calibration error: how far predictions lay from what happened, by node-weeks."""
    total = sum(b.node_weeks for b in bands)
    return sum(abs(b.predicted - b.happened) * b.node_weeks for b in bands) / max(total, 1)


def compute_slurm_weights(found: Iterable[InstanceFailureForecast]) -> dict[int, list[NodeName]]:
    """Return the nodes by Slurm's Weight: one more for each 5 % of the chance to break within a
    week, so that slurmctld gives jobs the nodes that will last. Without a history it is 1, the
    default.

    https://slurm.schedmd.com/slurm.conf.html#OPT_Weight
    """
    by: dict[int, list[NodeName]] = {}
    for one in found:
        by.setdefault(1 + math.floor(20 * one.week), []).append(one.node)
    return dict(sorted(by.items()))


def count_needed_spares(found: Iterable[InstanceFailureForecast], sure: float = 0.95) -> int:
    """Return how many spares are enough for the breaks of one day, with that certainty: the
    quantile of the Poisson distribution of their sum."""
    mean = sum(f.day for f in found)
    part = total = math.exp(-mean)
    count = 0
    while total < sure and count < 10 * mean + 10:
        count += 1
        part *= mean / count
        total += part
    return count

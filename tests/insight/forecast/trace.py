"""Traces of breaking nodes, and forecasts that walk forward over them beside plainer rules.

`synthetic` draws what InfiniteHBD-Trace (stepfun-ai, Apache-2.0) counts: 400 servers in 349 days,
some 531 incidents on some 231 of them, and the chance of the next within 1, 7, 14 and 30 days.
None of its records is here; `read` takes the trace itself from a directory.
"""

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from msgspec import Struct

from hpctl.insight.forecast.decide import (
    PRIORS,
    STEPS,
    InstanceFailure,
    InstanceFailureTimeline,
    fit_failure_model,
)

Trace = Mapping[str, tuple[InstanceFailure, ...]]
"""By node: its incidents in order, in days since the trace begins."""
NODES, DAYS = 400, 349.0
HAZARDS = (0.36, 0.053, 0.019, 0.0142, 0.0102, 0.0073, 0.0040, 0.0031, 0.0026)
"""Of a node by STEPS since its last incident ended, a day; fitted to the counts above."""
UNLIKE = 0.2
"""The variance of nodes' own factor."""
CLASSES = (("GPU", 27), ("cable", 7), ("NIC", 5), ("power", 4), ("fan", 6), ("unknown", 25),
           ("stress test", 17), ("other", 9))  # fmt: skip
SAME_CLASS = 0.3
WINDOW = 90.0
"""What a journal keeps, in days."""


def synthetic(seed: int, nodes: int = NODES, days: float = DAYS) -> Trace:
    """A trace of one seed."""
    random, found = Random(f"forecast {seed}"), {}
    kinds, weights = zip(*CLASSES, strict=True)
    for node in range(nodes):
        factor = random.gammavariate(1 / UNLIKE, UNLIKE)
        breaks: list[InstanceFailure] = []
        at, fresh = 0.0, True
        while (at := at + _gap(random, factor, fresh)) < days:
            again = bool(breaks) and random.random() < SAME_CLASS
            kind = breaks[-1].kind if again else random.choices(kinds, weights)[0]
            back = at + math.exp(random.gauss(-0.4, 1.9))
            breaks.append(InstanceFailure(at, back, kind))
            at, fresh = back, False
        found[f"n{node}"] = tuple(breaks)
    return found


def _gap(random: Random, factor: float, fresh: bool) -> float:
    """Days until the next incident: of hazards that are constant between the steps."""
    left = random.expovariate(1.0) / factor
    begin = STEPS[-1] if fresh else 0.0
    start = begin
    for step, end in zip(HAZARDS, (*STEPS, math.inf), strict=True):
        if end <= begin:
            continue
        if left < step * (end - begin):
            break
        left -= step * (end - begin)
        begin = end
    return begin - start + left / step


def read(folder: Path, together: float = 1 / 24) -> Trace:
    """InfiniteHBD-Trace's `fault_trace.json`; faults of a node within an hour are one incident.
    Nodes without any are added: it counts 400."""
    open_: dict[tuple[str, str], list[float]] = defaultdict(list)
    faults: dict[str, list[InstanceFailure]] = defaultdict(list)
    for event in json.loads((folder / "fault_trace.json").read_text(encoding="utf-8")):
        kind = event["fault_type"]["Class"]
        key = (event["node_id"], json.dumps(event["fault_type"], sort_keys=True))
        if event["event_type"] == "fault_start":
            open_[key].append(event["event_time"])
        else:
            faults[key[0]].append(InstanceFailure(open_[key].pop(0), event["event_time"], kind))
    found: dict[str, tuple[InstanceFailure, ...]] = {}
    for node, breaks in faults.items():
        merged: list[InstanceFailure] = []
        for one in sorted(breaks, key=lambda b: b.begun):
            if merged and one.begun - merged[-1].back <= together:
                was = merged.pop()
                one = InstanceFailure(was.begun, max(was.back, one.back), was.kind)
            merged.append(one)
        found[node] = tuple(merged)
    return found | {f"quiet-{n}": () for n in range(NODES - len(found))}


class Scored(Struct):
    """One way to score nodes: each score with whether the node broke."""

    name: str
    pairs: list[tuple[float, bool]]

    @property
    def auc_pr(self) -> float:
        """The area under precision and recall, as average precision; equal scores count as one."""
        total, area, true, seen = sum(hit for _, hit in self.pairs), 0.0, 0, 0
        ordered = sorted(self.pairs, key=lambda pair: -pair[0])
        for place, (score, hit) in enumerate(ordered):
            true += hit
            if place + 1 == len(ordered) or ordered[place + 1][0] != score:
                area += (true - seen) / total * true / (place + 1)
                seen = true
        return area

    @property
    def calibration_error(self) -> float:
        """How far chance and outcome lie apart, in ten bands of equal width."""
        bands: dict[int, float] = defaultdict(float)
        for chance, hit in self.pairs:
            bands[min(int(10 * chance), 9)] += chance - hit
        return sum(map(abs, bands.values())) / len(self.pairs)

    def worst(self, share: float = 0.01) -> tuple[float, float]:
        """The mean chance of the worst share of forecasts, and how many of those came true."""
        top = sorted(self.pairs, key=lambda pair: -pair[0])[: max(1, int(share * len(self.pairs)))]
        return sum(c for c, _ in top) / len(top), sum(hit for _, hit in top) / len(top)


def lemon(past: Sequence[InstanceFailure], now: float) -> float:
    """The score that the forecast replaced: a point an incident and more for a class that is new or
    known, halved every 28 days."""
    score, known = 0.0, set[str]()
    for one in past:
        extra = 0.5 if one.kind in known else 0.25 if known else 0.0
        score += (1.0 + extra) * 0.5 ** ((now - one.begun) / 28)
        known.add(one.kind)
    return score


def recent(past: Sequence[InstanceFailure], now: float) -> float:
    """Whether it failed in the last 30 days."""
    return float(bool(past) and past[-1].back > now - 30)


RULES: tuple[tuple[str, Callable[[Sequence[InstanceFailure], float], float]], ...] = (
    ("lemon score", lemon),
    ("failed in 30 days", recent),
)


def walk(trace: Trace, days: float, every: float = 1.0, end: float = DAYS) -> list[Scored]:
    """Forecasts each day from what was known then, as a journal of 90 days would give them; then
    what the rules say of the same nodes on the same days, from all of their past."""
    scored = [Scored("forecast", []), *(Scored(name, []) for name, _ in RULES)]
    for now in _times(30.0, end - days, every):
        since = max(0.0, now - WINDOW)
        known = {
            n: InstanceFailureTimeline(0.0, breaks).at(now).breaks for n, breaks in trace.items()
        }
        units = {
            n: InstanceFailureTimeline(since, tuple(b for b in p if b.begun >= since))
            for n, p in known.items()
        }
        broken = [unit for unit in units.values() if unit.breaks]
        model = fit_failure_model(broken, (len(units) - len(broken)) * (now - since), now, PRIORS)
        usual = model.chance(InstanceFailureTimeline(since), days)
        for node, unit in units.items():
            past = known[node]
            if past and past[-1].back > now:
                continue
            hit = any(now <= b.begun < now + days for b in trace[node])
            chance = model.chance(unit, days) if unit.breaks else usual
            scored[0].pairs.append((chance, hit))
            for row, (_, rule) in zip(scored[1:], RULES, strict=True):
                row.pairs.append((rule(past, now), hit))
    return scored


def _times(begin: float, end: float, every: float) -> Iterator[float]:
    while begin < end:
        yield begin
        begin += every

"""Limits from the fleet: what a test's figure must be on a healthy node of its type. Pure.

A figure is compared with the median of the nodes of its type, each by the median of its own runs.
Slow is a failure: one GPU at 90 % of its peers holds back a job of a thousand. The margin below the
median follows the fleet's own spread (MAD), and stays between LEAST and MOST, half of the 10 % that
must be caught. A single run of a noisy test may lie: what is near the limit is measured again.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpctl.core.model import TEST, TEST_SUMMARY, Finding, Verdict

PEERS: Final = 5
"""Nodes of a type without which there is no limit but the data sheet's."""
LEAST: Final = 0.03
MOST: Final = 0.055
"""Margins below the median, as shares of it."""
SIGMAS: Final = 4.0
SIGMA_OF_MAD: Final = 1.4826
"""The standard deviation of what is normally distributed, by its MAD."""
RUNS: Final = 3
"""So many runs decide; one is enough where its figure is far from the limit."""
LOW_IS_GOOD: Final = ("_us", "_ms", "_s")

Figures = Mapping[str, float]

SHARES: Final[Figures] = {
    "bf16_tflops": 0.55, "hbm_gbs": 0.7, "h2d_gbs": 0.35, "d2h_gbs": 0.35, "p2p_gbs": 0.6,
}  # fmt: skip
"""What a healthy GPU sustains at least of its data sheet, whatever its peers do."""
_UNITS: Final = ("bf16_tflops", "hbm_gbs", "h2d_gbs", "d2h_gbs", "p2p_gbs")
SHEETS: Final[Mapping[str, Figures]] = {
    kind: dict(zip(_UNITS, row, strict=True))
    for kind, row in {
        "p4d.24xlarge": (312, 1555, 32, 32, 300),
        "p4de.24xlarge": (312, 2039, 32, 32, 300),
        "p5.48xlarge": (989, 3350, 64, 64, 450),
        "p5e.48xlarge": (989, 4800, 64, 64, 450),
        "p5en.48xlarge": (989, 4800, 64, 64, 450),
        "p6-b200.48xlarge": (2250, 8000, 64, 64, 900),
    }.items()
}
"""NVIDIA's data sheets of A100, H100, H200 and B200 (SXM): one GPU, dense, one way."""
Floors = Mapping[str, Figures]
"""The least that a data sheet allows, by instance type (without `ml.`) and figure."""
FLOORS: Final[Floors] = {
    kind: {name: SHARES[name] * value for name, value in sheet.items()}
    for kind, sheet in SHEETS.items()
}
FleetVerdict = Literal["fine", "slow", "again"]


class Measured(Struct, frozen=True):
    """One run of one test on one node. `healthy`: it passed, and nothing is wrong with the node."""

    instance_type: str
    node: str
    test: str
    figures: Figures
    healthy: bool = True


class FigureLimit(Struct, frozen=True):
    """What a figure must be. `median`, `mad` over `nodes`: 0 where the data sheet counts.

    `limit` is the least, or the most of a figure that is better low. `by`: fleet or data sheet.
    """

    instance_type: str
    test: str
    figure: str
    limit: float
    by: Literal["fleet", "data sheet"]
    median: float = 0.0
    mad: float = 0.0
    nodes: int = 0

    def share(self, value: float) -> float:
        """How good a value is: 1 at the median (without one: at the limit), less is worse."""
        of = self.median or self.limit
        if self.figure.endswith(LOW_IS_GOOD):
            return of / value if value > 0 else 0.0
        return value / of

    def verdict(self, values: Iterable[float]) -> FleetVerdict:
        """Of a node's latest runs, oldest first; `again` asks for one more run."""
        runs = list(values)[-RUNS:]
        share, least = self.share(median(runs)), self.share(self.limit)
        sigma = SIGMA_OF_MAD * self.mad / self.median if self.median else 0.0
        near = abs(share - least) < min(3 * sigma, MOST)
        if near and len(runs) < RUNS:
            return "again"
        return "slow" if share < least else "fine"


class SlowFigure(Struct, frozen=True):
    """A figure of a node that is not as it must be, or (`again`) may not be."""

    limit: FigureLimit
    value: float
    again: bool = False

    def __str__(self) -> str:
        kept = self.limit
        most = "over" if kept.figure.endswith(LOW_IS_GOOD) else "under"
        text = f"{kept.test} {kept.figure} {self.value:.4g} is {most} {kept.limit:.4g}"
        if kept.by == "data sheet":
            return f"{text}, the least of {kept.instance_type}'s data sheet"
        return f"{text}: {kept.share(self.value):.0%} of the median of {kept.nodes} nodes"


def limits(measured: Iterable[Measured], floors: Floors = FLOORS) -> tuple[FigureLimit, ...]:
    """The limits of all types, tests and figures that were measured, in their order by name."""
    runs: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for one in measured:
        for figure, value in one.figures.items():
            found = runs.setdefault((kind(one.instance_type), one.test, figure), {})
            if one.healthy and value > 0:
                found.setdefault(one.node, []).append(value)
    made = (_limit(key, nodes, floors) for key, nodes in sorted(runs.items()))
    return tuple(limit for limit in made if limit is not None)


def _limit(
    key: tuple[str, str, str], nodes: Mapping[str, list[float]], floors: Floors
) -> FigureLimit | None:
    of_type, test, figure = key
    floor = floors.get(of_type, {}).get(figure)
    low = figure.endswith(LOW_IS_GOOD)
    if len(nodes) < PEERS:
        return None if floor is None else FigureLimit(of_type, test, figure, floor, "data sheet")
    values = [median(runs[-RUNS:]) for runs in nodes.values()]
    middle = median(values)
    mad = median(abs(value - middle) for value in values)
    margin = min(max(SIGMAS * SIGMA_OF_MAD * mad / middle, LEAST), MOST)
    limit = middle / (1 - margin) if low else middle * (1 - margin)
    worse = floor is not None and (limit > floor if low else limit < floor)
    if floor is not None and worse:
        return FigureLimit(of_type, test, figure, floor, "data sheet")
    return FigureLimit(of_type, test, figure, limit, "fleet", middle, mad, len(values))


def slow(runs: Iterable[Measured], known: Iterable[FigureLimit]) -> tuple[SlowFigure, ...]:
    """What of a node's runs, oldest first, is not as the limits have it: the surely slow first."""
    values: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for run in runs:
        for figure, value in run.figures.items():
            values[kind(run.instance_type), run.test, figure].append(value)
    found = []
    for limit in known:
        mine = values.get((limit.instance_type, limit.test, limit.figure))
        if mine and (verdict := limit.verdict(mine)) != "fine":
            found.append(SlowFigure(limit, median(mine[-RUNS:]), verdict == "again"))
    return tuple(sorted(found, key=lambda one: one.again))


def runs_of(instance_type: str, node: str, tests: Iterable[Finding]) -> list[Measured]:
    """What the findings of a run of acceptance tests measured; of none of it where one failed."""
    found = [f for f in tests if f.check.startswith(TEST) and f.check != TEST_SUMMARY]
    healthy = all(f.verdict is not Verdict.FAIL for f in found)
    return [
        Measured(instance_type, node, f.check.removeprefix(TEST), figures, healthy)
        for f in found
        if (figures := _figures(f.evidence))
    ]


def _figures(evidence: str) -> Figures:
    try:
        return msgspec.json.decode(evidence or "{}", type=dict[str, float])
    except (msgspec.MsgspecError, RecursionError):
        return {}  # cut short on its way


def judged(
    results: tuple[Finding, ...], instance_type: str, known: Iterable[FigureLimit]
) -> tuple[Finding, ...]:
    """The findings of one run, those failed whose figures are surely slow: no single run condemns
    what is near its limit."""
    behind = slow(runs_of(instance_type, "", results), known)
    why = {TEST + one.limit.test: str(one) for one in behind if not one.again}
    return tuple(
        replace(f, verdict=Verdict.FAIL, detail=f"slow: {why[f.check]}")
        if f.check in why and f.verdict is Verdict.OK
        else f
        for f in results
    )


def kind(instance_type: str) -> str:
    """EC2's name of a type, without SageMaker's `ml.`."""
    return instance_type.removeprefix("ml.")

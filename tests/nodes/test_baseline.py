"""Limits of the fleet: the slow are caught, the healthy are not rejected, the floor holds."""

import random

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.nodes.acceptance.limits import (
    AcceptanceMeasurement,
    FigureLimit,
    compute_figure_limits,
    find_slow_figures,
    judge_test_results_by_limits,
    list_newest_measurements,
)
from hpctl.vocabulary.cloud_facts import InstanceGroup
from hpctl.vocabulary.model import TEST, DeviceVerdict, Finding
from tests.fakes.values import at, opened, view_of

FLOORS = {"p5.48xlarge": {"bf16_tflops": 544.0}}
# Median, spread between nodes, spread between runs of one node (shares): of GPUs the clocks and the
# temperature, of networks who else talks.
FIGURES = {
    "gpu.speed": {"bf16_tflops": (700, 0.010, 0.006), "hbm_gbs": (2900, 0.004, 0.003)},
    "disk.quick": {"read_gbs": (7.0, 0.010, 0.015)},
    "group.all_reduce": {"busbw_gbs": (440, 0.008, 0.020), "latency_us": (30, 0.010, 0.020)},
}
SLOW = {"compute": "bf16_tflops", "memory": "hbm_gbs", "network": "busbw_gbs"}


class Fleet:
    """Simulated nodes, of which `sick` have one figure that is slower."""

    def __init__(self, seed: int, nodes: int = 200, sick: int = 20) -> None:
        self.random = random.Random(seed)
        self.sick = {n: self.random.choice([*SLOW.values()]) for n in range(sick)}
        self.lost = {n: self.random.uniform(0.10, 0.25) for n in self.sick}
        self.own = [
            {f: self.random.gauss(0, s[1]) for t in FIGURES.values() for f, s in t.items()}
            for _ in range(nodes)
        ]

    def run(self, node: int) -> list[AcceptanceMeasurement]:
        def figures(spreads):
            return {f: self.value(node, f, spread) for f, spread in spreads.items()}

        kind, name = "ml.p5.48xlarge", f"n{node}"
        return [
            AcceptanceMeasurement(kind, name, test, figures(spreads))
            for test, spreads in FIGURES.items()
        ]

    def value(self, node: int, figure: str, spread: tuple[float, float, float]) -> float:
        middle, _, run = spread
        heavy = self.random.gauss(0, 3 * run) if self.random.random() < 0.02 else 0.0
        good = (1 + self.own[node][figure]) * (1 + self.random.gauss(0, run) + min(0.0, heavy))
        good *= 1 - self.lost[node] if self.sick.get(node) == figure else 1
        return middle / good if figure.endswith("_us") else middle * good

    def rejected(self) -> set[int]:
        first = {n: self.run(n) for n in range(len(self.own))}
        known = compute_figure_limits([run for runs in first.values() for run in runs], FLOORS)
        return {n for n, runs in first.items() if self.judged(n, runs, known)}

    def judged(
        self, node: int, runs: list[AcceptanceMeasurement], known: tuple[FigureLimit, ...]
    ) -> bool:
        while (found := find_slow_figures(runs, known)) and found[0].again:
            runs = [*runs, *self.run(node)]
        return bool(found)


def test_nodes_a_tenth_slow_are_caught_and_healthy_ones_are_not_rejected() -> None:
    caught = sick = rejected = healthy = 0
    for seed in range(10):
        fleet = Fleet(seed)
        found = fleet.rejected()
        caught, sick = caught + len(found & fleet.sick.keys()), sick + len(fleet.sick)
        rejected += len(found - fleet.sick.keys())
        healthy += len(fleet.own) - len(fleet.sick)
    print(f"caught {caught}/{sick}, rejected {rejected}/{healthy}")
    assert caught >= 0.95 * sick
    assert rejected <= 0.01 * healthy


def one(
    value: float, node: str = "n1", figure: str = "bf16_tflops", **more: object
) -> AcceptanceMeasurement:
    return AcceptanceMeasurement("ml.p5.48xlarge", node, "gpu.speed", {figure: value}, **more)


def test_the_floor_counts_where_the_fleet_is_too_small_or_all_slow() -> None:
    for nodes, value in ((3, 700.0), (9, 400.0)):
        (limit,) = compute_figure_limits([one(value, f"n{n}") for n in range(nodes)], FLOORS)
        assert (limit.by, limit.limit) == ("site", 544.0)
        (bad,) = find_slow_figures([one(500.0)], [limit])
        assert "under 544, the limit in acceptance.floors" in str(bad)
    assert not compute_figure_limits([one(1.0, figure="other_gbs")], FLOORS)


def test_what_failed_says_nothing_of_the_healthy_and_latency_is_better_low() -> None:
    runs = [one(v, f"n{n}", "p_us") for n, v in enumerate([30, 30.1, 29.9, 30, 30.2])]
    (limit,) = compute_figure_limits(
        [*runs, *(one(90, f"x{n}", "p_us", healthy=False) for n in range(9))], {}
    )
    assert (limit.median, limit.limit) == (pytest.approx(30), pytest.approx(30 / 0.97))
    assert str(find_slow_figures([one(33.0, figure="p_us")], [limit])[0]).startswith(
        "gpu.speed p_us 33 is over"
    )
    assert not find_slow_figures([one(20.0, figure="p_us")], [limit])


TFLOPS = '{"bf16_tflops": %d}'


def finding(
    figures: str, verdict: DeviceVerdict = DeviceVerdict.OK, test: str = "gpu.speed"
) -> Finding:
    return Finding(TEST + test, verdict, at(1), at(2), "r-1", evidence=figures)


def test_a_run_that_passed_and_is_slow_beside_the_fleet_has_failed() -> None:
    nodes = {}
    for n in range(1, 8):
        rec = replay_events([opened(f"n-{n}", f"n{n}")]).nodes[f"n-{n}"]
        speed = finding(
            TFLOPS % (700 if n < 7 else 100), DeviceVerdict.OK if n < 7 else DeviceVerdict.FAIL
        )
        nodes[rec.id] = replace(rec, tests=(speed, finding("{", test="x"), finding("{}", test="y")))
    view = view_of(state=EngineState(nodes=nodes))
    groups = {i.group: InstanceGroup(i.group, "ml.p5.48xlarge") for i in view.instances.values()}
    view = replace(view, provider=replace(view.provider, groups=groups))
    (limit,) = compute_figure_limits(list_newest_measurements(view))
    assert (limit.instance_type, limit.nodes, limit.median) == ("p5.48xlarge", 6, 700)
    kind, good, bad = view.instance_type("n1"), finding(TFLOPS % 690), finding(TFLOPS % 600)
    assert judge_test_results_by_limits((good,), kind, list_newest_measurements(view)) == (good,)
    (failed,) = judge_test_results_by_limits((bad,), kind, list_newest_measurements(view))
    assert (failed.verdict, failed.code) == (DeviceVerdict.FAIL, "")
    assert failed.detail.startswith(
        "slow: gpu.speed bf16_tflops 600 is under 679: 86% of the median"
    )


def test_near_the_limit_three_runs_decide() -> None:
    values = [700, 690, 710, 695, 705, 680, 720]
    known = compute_figure_limits([one(v, f"n{n}") for n, v in enumerate(values)], {})
    assert [s.again for s in find_slow_figures([one(665.0)], known)] == [True]
    assert not find_slow_figures([one(v) for v in (655.0, 690.0, 691.0)], known)
    assert [s.again for s in find_slow_figures([one(v) for v in (655.0, 640.0, 691.0)], known)] == [
        False
    ]

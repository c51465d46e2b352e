"""Floors of GPUs by card: a card a tenth slower fails on the first node, a healthy one passes.

Rests on tests/gpu/recordings/h200-580.159/acceptance.json, two runs on a real H200.
"""

from pathlib import Path
from statistics import median

import msgspec
import pytest
from msgspec.structs import replace

from hpctl.engine.journal.state import EngineState
from hpctl.nodes.acceptance.cards import (
    CARDS,
    COMPARISONS,
    FIGURES,
    FLOOR_SHARE,
    GpuCard,
    find_gpu_reference_figure,
)
from hpctl.nodes.acceptance.limits import (
    NO_FLOORS,
    AcceptanceMeasurement,
    Floors,
    compute_figure_limits,
    find_slow_figures,
    judge_test_results_by_limits,
)
from hpctl.nodes.acceptance.result import (
    AcceptanceRunResults,
    AcceptanceTestResult,
    make_acceptance_result_findings,
)
from hpctl.vocabulary.cloud_facts import InstanceGroup
from hpctl.vocabulary.model import TEST_SUMMARY, DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.node_recovery import NodeRecoverySignal
from tests.fakes.engine import advance_all
from tests.fakes.values import at, view_of
from tests.gpu.recordings import read_json
from tests.nodes.test_acceptance import BOOTED, OPEN, TESTED

RECORDED = read_json("acceptance.json")
RUNS = [
    msgspec.convert(result, AcceptanceTestResult)
    for run in RECORDED["runs"]
    for result in run["results"]
    if result["test"] == "gpu.speed"
]
FIGURE_NAMES = ("bf16_tflops", "hbm_gbs", "h2d_gbs", "d2h_gbs")
H200 = GpuCard("NVIDIA H200", 700.0, 700.0, "Standard PC")


def results_of(
    figures: dict[str, float], card: GpuCard = H200, test: str = "gpu.speed"
) -> AcceptanceRunResults:
    """A run of the acceptance test with these figures, as its file holds it."""
    result = AcceptanceTestResult(test, "Passed", figures=figures)
    return AcceptanceRunResults(
        OPEN.id + "-1", "quick", at(2).timestamp(), at(3).timestamp(), (result,), card
    )


def judged(
    figures: dict[str, float],
    card: GpuCard = H200,
    instance_type: str = "",
    site: Floors = NO_FLOORS,
) -> Finding:
    """What a first node without any peers is told of them."""
    found = judge_test_results_by_limits(
        make_acceptance_result_findings(results_of(figures, card)), instance_type, (), site
    )
    return found[0]


def failed(*arguments: object, **changes: object) -> bool:
    return judged(*arguments, **changes).verdict is DeviceVerdict.FAIL  # type: ignore[arg-type]


def slower(figure: str, share: float) -> dict[str, float]:
    """The recording with one figure lower by a share."""
    return {**RUNS[0].figures, figure: RUNS[0].figures[figure] * (1 - share)}


@pytest.mark.parametrize("figure", FIGURE_NAMES)
def test_a_card_a_tenth_slower_than_the_recording_fails_on_the_first_node(figure: str) -> None:
    found = judged(slower(figure, 0.10))
    assert found.verdict is DeviceVerdict.FAIL
    known = find_gpu_reference_figure("NVIDIA H200", figure, "")
    assert known is not None
    for word in (
        f"gpu.speed {figure} {RUNS[0].figures[figure] * 0.9:.4g} is under the floor",
        f"the floor {known.floor:.4g}",
        f"a healthy NVIDIA H200 gives {known.expected:.4g}",
        f"measured by hpctl: {known.source}",
        "(nvidia-smi -q); test again; acceptance.floors sets other floors",
    ):
        assert word in found.detail
    assert not [other for other in FIGURE_NAMES if other != figure and other in found.detail]


@pytest.mark.parametrize("figure", FIGURE_NAMES)
def test_a_card_a_twentieth_slower_passes(figure: str) -> None:
    assert not failed(slower(figure, 0.05))


def test_the_recorded_runs_pass_and_so_does_what_lies_within_their_spread() -> None:
    assert len(RUNS) == 2
    for run in RUNS:
        assert not failed(run.figures)
    longer = RECORDED["longer_8s"]["out"].splitlines()[0]
    assert not failed(msgspec.json.decode(longer)["figures"])
    for name in FIGURE_NAMES:
        spread = RECORDED["spread"][f"gpu.speed {name}"]["spread_pct"] / 100
        assert spread <= 0.0025
        assert not failed({name: min(run.figures[name] for run in RUNS) * (1 - spread)})


def test_the_first_node_of_a_cluster_fails_its_recovery_at_once() -> None:
    for share, signal in (
        (0.10, NodeRecoverySignal.TEST_FAILED),
        (0.05, NodeRecoverySignal.TEST_PASSED),
    ):
        found = make_acceptance_result_findings(results_of(slower("bf16_tflops", share)))
        mine = tuple(replace(f, device="n-1-1") for f in found)
        state = EngineState(nodes={OPEN.id: OPEN}, open_nodes={OPEN.node: OPEN.id})
        view = view_of(state=state, health={OPEN.node: NodeHealth(BOOTED, at(3), mine)})
        (move,) = advance_all(view, TESTED, at(3)).moves
        assert move.signal == signal, move.why
        assert ("a healthy NVIDIA H200 gives 679" in move.why) is (share > 0.05)


def test_every_slow_figure_of_a_test_is_named_and_the_advice_once() -> None:
    found = judged({name: value * 0.9 for name, value in RUNS[0].figures.items()})
    assert [name for name in FIGURE_NAMES if f" {name} " in found.detail] == [*FIGURE_NAMES]
    for once in ("clocks, power and temperature", "the PCIe link", "memory clock", "test again"):
        assert found.detail.count(once) == 1


def test_the_link_to_the_host_is_the_machines_and_the_rest_the_cards() -> None:
    half = slower("h2d_gbs", 0.5)
    assert failed(half)
    assert failed(half, instance_type="ml.p5en.48xlarge")
    assert not failed(half, instance_type="ml.p5e.48xlarge")
    assert failed(slower("hbm_gbs", 0.1), instance_type="ml.p5e.48xlarge")
    # Nobody tells the type: the firmware of the node does.
    assert not failed(half, card=replace(H200, machine="p5e.48xlarge"))
    assert failed({"p2p_gbs": 200.0}, instance_type="p5en.48xlarge")
    assert not failed({"p2p_gbs": 200.0})


@pytest.mark.parametrize("name", ["NVIDIA H200 NVL", "MIG of NVIDIA H200", "NVIDIA T4", ""])
def test_a_card_that_is_not_in_the_table_has_no_floor(name: str) -> None:
    figures = dict.fromkeys(FIGURE_NAMES, 1.0)
    assert not failed(figures, card=GpuCard(name))
    assert failed(figures)


def test_a_result_that_names_no_card_is_judged_by_its_instance_type() -> None:
    assert failed({"bf16_tflops": 560.0}, card=GpuCard(), instance_type="ml.p5.48xlarge")
    assert not failed({"bf16_tflops": 600.0}, card=GpuCard(), instance_type="ml.p5.48xlarge")
    assert failed({"bf16_tflops": 600.0}, card=GpuCard(), instance_type="ml.p5en.48xlarge")


@pytest.mark.parametrize(
    "evidence", ["{", "[]", '{"name": 7}', "[" * 9000, '{"name": "x"' + " " * 9]
)
def test_a_card_that_was_cut_short_is_none(evidence: str) -> None:
    speed, closing = make_acceptance_result_findings(results_of({"bf16_tflops": 100.0}))
    assert closing.check == TEST_SUMMARY
    told = (speed, replace(closing, evidence=evidence))
    assert judge_test_results_by_limits(told, "", ()) == told


def test_a_lowered_power_limit_is_named_beside_a_figure_that_it_explains() -> None:
    capped = replace(H200, power_limit_w=500.0)
    found = judged(slower("bf16_tflops", 0.1), card=capped)
    assert "its power limit is 500 W, not 700 W" in found.detail
    assert "power limit is" not in judged(slower("bf16_tflops", 0.1)).detail
    assert "power limit is" not in judged(slower("h2d_gbs", 0.1), card=capped).detail
    assert "power limit is" not in judged(slower("hbm_gbs", 0.1), card=capped).detail


def test_cards_of_one_instance_type_are_not_compared_with_each_other() -> None:
    runs = [
        AcceptanceMeasurement("", f"n{n}", "gpu.speed", {"bf16_tflops": value}, card=GpuCard(name))
        for n, (name, value) in enumerate([("NVIDIA H200", 680.0), ("NVIDIA L4", 50.0)] * 5)
    ]
    known = compute_figure_limits(runs)
    assert {(k.card, k.by, k.median) for k in known} == {
        ("NVIDIA H200", "fleet", 680.0),
        ("NVIDIA L4", "fleet", 50.0),
    }
    assert not find_slow_figures(runs, known)


@pytest.mark.parametrize(
    ("site", "fails"),
    [
        ({"NVIDIA H200": {"bf16_tflops": 600.0}}, False),
        ({"NVIDIA H200": {"bf16_tflops": 0.0}}, False),
        ({"NVIDIA H200": {"bf16_tflops": 620.0}}, True),
        ({"NVIDIA H200": {"bf16_tflops": 620.0}, "p5en.48xlarge": {"bf16_tflops": 600.0}}, False),
        ({"ml.p5en.48xlarge": {"bf16_tflops": 600.0}}, False),
        ({"NVIDIA H100 80GB HBM3": {"bf16_tflops": 1.0}}, True),
        ({"NVIDIA H200": {"hbm_gbs": 1.0}}, True),
    ],
)
def test_a_site_sets_other_floors(site: Floors, fails: bool) -> None:
    slow_card = slower("bf16_tflops", 0.10)  # 611
    assert failed(slow_card, instance_type="ml.p5en.48xlarge", site=site) is fails


def test_the_policy_hands_its_floors_to_the_judgment() -> None:
    floors = {"NVIDIA H200": {"bf16_tflops": 600.0}}
    policy = replace(TESTED, acceptance=replace(TESTED.acceptance, floors=floors))
    found = make_acceptance_result_findings(results_of(slower("bf16_tflops", 0.10)))
    mine = tuple(replace(f, device="n-1-1") for f in found)
    state = EngineState(nodes={OPEN.id: OPEN}, open_nodes={OPEN.node: OPEN.id})
    view = view_of(state=state, health={OPEN.node: NodeHealth(BOOTED, at(3), mine)})
    groups = {i.group: InstanceGroup(i.group, "ml.p5en.48xlarge") for i in view.instances.values()}
    view = replace(view, provider=replace(view.provider, groups=groups))
    (move,) = advance_all(view, policy, at(3)).moves
    assert move.signal == NodeRecoverySignal.TEST_PASSED


def test_a_floor_may_be_of_any_test_and_of_a_figure_that_is_better_low() -> None:
    site = {"p5en.48xlarge": {"read_gbs": 20.0, "latency_us": 5.0}}
    runs = [
        AcceptanceMeasurement(
            "ml.p5en.48xlarge", "n1", "site.x", {"read_gbs": 19.0, "latency_us": 6.0}
        )
    ]
    behind = find_slow_figures(runs, compute_figure_limits((), site, runs))
    assert [str(one) for one in behind] == [
        "site.x latency_us 6 is over 5, the limit in acceptance.floors",
        "site.x read_gbs 19 is under 20, the limit in acceptance.floors",
    ]


def fleet(value: float, nodes: int = 5) -> list[AcceptanceMeasurement]:
    return [
        AcceptanceMeasurement("", f"n{n}", "gpu.speed", {"bf16_tflops": value}, card=H200)
        for n in range(nodes)
    ]


def test_the_run_that_is_judged_is_no_runs_peer() -> None:
    mine = [replace(run, node="new") for run in fleet(645.0, 1)]
    (limit,) = compute_figure_limits(fleet(679.0, 4), also=mine)
    assert (limit.by, limit.nodes) == ("measured", 0)
    (limit,) = compute_figure_limits(fleet(679.0, 5), also=mine)
    assert (limit.by, limit.nodes, limit.median) == ("fleet", 5, 679.0)
    assert [s.value for s in find_slow_figures(mine, [limit])] == [
        645.0
    ]  # the floor alone lets it pass


def test_a_fleet_that_is_slow_as_a_whole_does_not_lower_the_floor() -> None:
    (limit,) = compute_figure_limits(fleet(600.0, 9))
    assert (limit.by, limit.limit) == ("measured", pytest.approx(679 * FLOOR_SHARE))


def test_the_measured_rows_are_what_the_recording_says() -> None:
    rows = [row for row in FIGURES if row.kind == "measured"]
    assert {row.figure for row in rows} == set(FIGURE_NAMES)
    for row in rows:
        assert (row.card, row.on, row.share) == ("NVIDIA H200", (), 1.0)
        assert row.healthy == pytest.approx(median(r.figures[row.figure] for r in RUNS), rel=0.002)
        assert (Path(__file__).parents[2] / row.reference).is_file()


def test_every_other_row_names_a_public_page_and_is_discounted() -> None:
    for row in FIGURES:
        if row.kind != "measured":
            assert row.reference.startswith("https://"), row
            assert row.share <= (0.75 if row.kind == "data sheet" else 0.97), row
        assert row.floor < row.expected <= row.healthy


def test_the_share_of_a_published_figure_is_found_on_the_h200() -> None:
    for row in COMPARISONS:
        own = find_gpu_reference_figure("NVIDIA H200", row.figure, "")
        assert own is not None
        assert own.kind == "measured"
        most = min(own.healthy / row.theirs * FLOOR_SHARE, 0.99)
        assert most - 0.06 < row.share <= most, row
    shares = {(row.program, row.figure): row.share for row in COMPARISONS}
    compared = 0
    for known in (row for row in FIGURES if row.kind == "published"):
        program = known.source.partition(",")[0].removesuffix(" of 8192 rows")
        share = shares.get((program, known.figure))
        compared += share is not None
        assert known.share <= (0.93 if share is None else share), known
    assert compared >= 12


def test_every_card_of_ec2_has_floors_for_compute_and_memory() -> None:
    for family, card in CARDS.items():
        for figure in ("bf16_tflops", "hbm_gbs"):
            assert find_gpu_reference_figure(card, figure, f"{family}.48xlarge") is not None, (
                family,
                figure,
            )

"""The test of a node before it serves again, and the limits that its figures must meet. Pure.

ACCEPTING, and UNRESERVING after it: the node is held by a reservation for hpctl only, resumed
inside it, and tested by one batch job there. Whatever ends the test, the node is drained again
unless it has passed, then the job and the reservation go, and only then the recovery moves on: so a
crash leaves nothing behind that the next cycle does not find. The node's agent reports the result;
the exit code of the job is no evidence.

Limits come from the fleet: a figure is compared with the median of the nodes of its type and card,
each by the median of its runs. Slow is a failure: one GPU at 90 % of its peers holds back a job of
a thousand. The margin below the median follows the fleet's own spread (MAD), and stays between
LEAST and MOST, half of the 10 % that must be caught. A single run of a noisy test may be wrong:
what is near the limit is measured again.

Until PEERS nodes were tested, and below them always, a figure has a floor by its card (cards.py)
or by the site (`acceptance.floors`). A floor decides by one run, also on the first node of all.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from statistics import median
from types import MappingProxyType
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.test_reservation import ADDED, ORDER, TEST_LADDER, UPDATED
from hpctl.engine.view import PlanningView, RecoveryCandidate
from hpctl.nodes.acceptance.cards import (
    GpuCard,
    find_gpu_reference_figure,
    find_instance_type_gpu_card,
)
from hpctl.toolkit.bounds import add_seconds_within_bounds
from hpctl.vocabulary.assessment import FaultClass, Remedy, Urgency
from hpctl.vocabulary.change import ChangeKind, ClusterChangePhase
from hpctl.vocabulary.identity import NodeName, RuleId
from hpctl.vocabulary.model import TEST, TEST_SUMMARY, DeviceVerdict, Finding
from hpctl.vocabulary.node_recovery import TEST_ASKS, NodeRecoverySignal
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy

PEERS: Final = 5
"""Nodes of a type and card without which there is no limit but the floor."""


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


Floors = Mapping[str, Figures]
"""A site's own floors: by card or EC2 instance type (without `ml.`), then by figure.

The instance type goes before the card, and both before cards.py; 0 is no floor. For a figure
that is better low it is the most that passes.
"""


NO_FLOORS: Final[Floors] = MappingProxyType({})


Source = Literal["fleet", "measured", "published", "data sheet", "site"]
"""Where a limit comes from: the nodes' own median, the card's figure (cards.Evidence), the site."""


FleetVerdict = Literal["fine", "slow", "again"]


class AcceptanceMeasurement(Struct, frozen=True):
    """One run of one test on one node. `healthy`: it passed, and nothing is wrong with the node."""

    instance_type: str
    node: str
    test: str
    figures: Figures
    healthy: bool = True
    card: GpuCard = GpuCard()

    @property
    def place(self) -> tuple[str, str]:
        """Return the instance type and the card, of which nodes are compared with each other."""
        return strip_instance_type_ml_prefix(
            self.instance_type
        ), self.card.name or find_instance_type_gpu_card(self.instance_type)


class FigureLimit(Struct, frozen=True):
    """What a figure must be. `median`, `mad` over `nodes`: 0 where the floor counts.

    `limit` is the least, or the most of a figure that is better low. `card` is empty where no GPU
    is known. `expected` is what a healthy card gives in this test, and `source` who says so: 0 and
    empty unless `by` is one of cards.Evidence.
    """

    instance_type: str
    test: str
    figure: str
    limit: float
    by: Source
    median: float = 0.0
    mad: float = 0.0
    nodes: int = 0
    card: str = ""
    expected: float = 0.0
    source: str = ""

    def share(self, value: float) -> float:
        """Return how good a value is: 1 at the median (without one: at the limit), less is
        worse."""
        of = self.median or self.limit
        if self.figure.endswith(LOW_IS_GOOD):
            return of / value if value > 0 else 0.0
        return value / of

    def verdict(self, values: Iterable[float]) -> FleetVerdict:
        """Return the verdict on a node's latest runs, oldest first; `again` asks for one more
        run."""
        runs = list(values)[-RUNS:]
        share, least = self.share(median(runs)), self.share(self.limit)
        sigma = SIGMA_OF_MAD * self.mad / self.median if self.median else 0.0
        near = abs(share - least) < min(3 * sigma, MOST)
        if near and len(runs) < RUNS:
            return "again"
        return "slow" if share < least else "fine"


_ORIGINS: Final[Mapping[str, str]] = {
    "measured": "measured by hpctl",
    "published": "by public measurements",
    "data sheet": "by its data sheet",
}


_LIMITED_BY_POWER: Final = ("bf16_tflops",)


_LOOK_AT: Final[Mapping[str, str]] = {
    "bf16_tflops": "look at clocks, power and temperature (nvidia-smi -q)",
    "hbm_gbs": "look at memory clock and ECC errors (nvidia-smi -q)",
    "h2d_gbs": "look at the PCIe link (nvidia-smi -q)",
    "d2h_gbs": "look at the PCIe link (nvidia-smi -q)",
    "p2p_gbs": "look at NVLink (nvidia-smi nvlink -s)",
}
"""By figure, what a person looks at first."""


class SlowFigure(Struct, frozen=True):
    """A figure of a node that is not as it must be, or (`again`) may not be.

    `card` is the node's own, as this run saw it.
    """

    limit: FigureLimit
    value: float
    again: bool = False
    card: GpuCard = GpuCard()

    def __str__(self) -> str:
        kept = self.limit
        low = kept.figure.endswith(LOW_IS_GOOD)
        text = f"{kept.test} {kept.figure} {self.value:.4g} is {'over' if low else 'under'}"
        if kept.by == "fleet":
            share = f"{kept.share(self.value):.0%} of the median of {kept.nodes} nodes"
            return f"{text} {kept.limit:.4g}: {share}"
        if kept.by == "site":
            return f"{text} {kept.limit:.4g}, the limit in acceptance.floors"
        healthy = f"a healthy {kept.card} gives {kept.expected:.4g}"
        origin = f"{_ORIGINS[kept.by]}: {kept.source}"
        return (
            f"{text} the floor {kept.limit:.4g}; {healthy} ({origin}){self._explain_power_limit()}"
        )

    def _explain_power_limit(self) -> str:
        """Return what a lowered power limit has to do with it; empty where none is known."""
        if not self.card.is_power_limited or self.limit.figure not in _LIMITED_BY_POWER:
            return ""
        limits = f"{self.card.power_limit_w:g} W, not {self.card.default_power_limit_w:g} W"
        return f"; its power limit is {limits}, which alone can explain it"

    @property
    def look(self) -> str:
        """Return what a person looks at first; empty next to the fleet, and for what is no GPU's
        figure."""
        return "" if self.limit.by == "fleet" else _LOOK_AT.get(self.limit.figure, "")


def explain_slow_figures(figures: Sequence[SlowFigure]) -> str:
    """Return the message about slow figures: what is known of each, then what to do."""
    parts = [str(one) for one in figures]
    parts += dict.fromkeys(one.look for one in figures if one.look)
    if any(one.limit.by != "fleet" for one in figures):
        parts.append("test again; acceptance.floors sets other floors")
    return "; ".join(parts)


_Place = tuple[str, str, str, str]
"""Instance type, card, test, figure."""


def compute_figure_limits(
    measured: Iterable[AcceptanceMeasurement],
    site: Floors = NO_FLOORS,
    also: Iterable[AcceptanceMeasurement] = (),
) -> tuple[FigureLimit, ...]:
    """Return the limits of all types, cards, tests and figures that were measured, in order by
    name.

    `also` are runs that are to be judged: they have limits too, and are no one's peers.
    """
    runs: dict[_Place, dict[str, list[float]]] = {}
    for one in measured:
        for figure, value in one.figures.items():
            found = runs.setdefault((*one.place, one.test, figure), {})
            if one.healthy and value > 0:
                found.setdefault(one.node, []).append(value)
    for one in also:
        for figure in one.figures:
            runs.setdefault((*one.place, one.test, figure), {})
    made = (_compute_figure_limit(place, nodes, site) for place, nodes in sorted(runs.items()))
    return tuple(limit for limit in made if limit is not None)


def _compute_figure_limit(
    place: _Place, nodes: Mapping[str, list[float]], site: Floors
) -> FigureLimit | None:
    of_type, card, test, figure = place
    floor = _find_site_or_card_floor(place, site)
    low = figure.endswith(LOW_IS_GOOD)
    if len(nodes) < PEERS:
        return floor
    values = [median(runs[-RUNS:]) for runs in nodes.values()]
    middle = median(values)
    mad = median(abs(value - middle) for value in values)
    margin = min(max(SIGMAS * SIGMA_OF_MAD * mad / middle, LEAST), MOST)
    limit = middle / (1 - margin) if low else middle * (1 - margin)
    if floor is not None and (limit > floor.limit if low else limit < floor.limit):
        return floor
    return FigureLimit(of_type, test, figure, limit, "fleet", middle, mad, len(values), card)


def _find_site_or_card_floor(place: _Place, site: Floors) -> FigureLimit | None:
    """Return the floor of the site, else that of the card; None where there is none."""
    of_type, card, test, figure = place
    names = (of_type, f"ml.{of_type}", card)
    for name in names if of_type else (card,):
        own = site.get(name, {}).get(figure)
        if own is not None:
            return FigureLimit(of_type, test, figure, own, "site", card=card) if own else None
    known = find_gpu_reference_figure(card, figure, of_type)
    if known is None:
        return None
    return FigureLimit(
        of_type,
        test,
        figure,
        known.floor,
        known.kind,
        card=card,
        expected=known.expected,
        source=known.source,
    )


def find_slow_figures(
    runs: Iterable[AcceptanceMeasurement], known: Iterable[FigureLimit]
) -> tuple[SlowFigure, ...]:
    """Return what of a node's runs, oldest first, is not as the limits have it: the surely slow
    first."""
    values: dict[_Place, list[float]] = defaultdict(list)
    cards: dict[_Place, GpuCard] = {}
    for run in runs:
        for figure, value in run.figures.items():
            place = (*run.place, run.test, figure)
            values[place].append(value)
            cards[place] = run.card
    found = []
    for limit in known:
        place = (limit.instance_type, limit.card, limit.test, limit.figure)
        mine = values.get(place)
        if mine and (verdict := limit.verdict(mine)) != "fine":
            again = verdict == "again"
            found.append(SlowFigure(limit, median(mine[-RUNS:]), again, cards[place]))
    return tuple(sorted(found, key=lambda one: one.again))


def list_measurements(
    instance_type: str, node: str, tests: Iterable[Finding]
) -> list[AcceptanceMeasurement]:
    """Return what the findings of a run of acceptance tests measured; nothing where one failed.

    Where the provider does not report the instance type, the machine's own report counts, as of an
    EC2 family.
    """
    findings = list(tests)
    found = [f for f in findings if f.check.startswith(TEST) and f.check != TEST_SUMMARY]
    healthy = all(f.verdict is not DeviceVerdict.FAIL for f in found)
    card = _find_tested_gpu_card(findings)
    of_type = instance_type or (card.machine if find_instance_type_gpu_card(card.machine) else "")
    return [
        AcceptanceMeasurement(of_type, node, f.check.removeprefix(TEST), figures, healthy, card)
        for f in found
        if (figures := _parse_finding_evidence_figures(f.evidence))
    ]


def _find_tested_gpu_card(tests: Iterable[Finding]) -> GpuCard:
    """Return the GPUs of the node, by the finding that closes its tests."""
    closing = [f for f in tests if f.check == TEST_SUMMARY]
    try:
        return (
            msgspec.json.decode(closing[-1].evidence or "{}", type=GpuCard)
            if closing
            else GpuCard()
        )
    except (msgspec.MsgspecError, RecursionError):
        return GpuCard()  # cut short on its way


def _parse_finding_evidence_figures(evidence: str) -> Figures:
    try:
        return msgspec.json.decode(evidence or "{}", type=dict[str, float])
    except (msgspec.MsgspecError, RecursionError):
        return {}  # cut short on its way


def judge_test_results_by_limits(
    results: tuple[Finding, ...],
    instance_type: str,
    measured: Iterable[AcceptanceMeasurement],
    site: Floors = NO_FLOORS,
) -> tuple[Finding, ...]:
    """Return the findings of one run, those failed whose figures are surely slow.

    They are held to what the fleet has measured and to the floors. No single run condemns what is
    near the fleet's limit.
    """
    runs = list_measurements(instance_type, "", results)
    behind = find_slow_figures(runs, compute_figure_limits(measured, site, runs))
    return tuple(_mark_slow_finding_failed(finding, behind) for finding in results)


def _mark_slow_finding_failed(finding: Finding, behind: Iterable[SlowFigure]) -> Finding:
    mine = [one for one in behind if not one.again and TEST + one.limit.test == finding.check]
    if not mine or finding.verdict is not DeviceVerdict.OK:
        return finding
    return replace(
        finding, verdict=DeviceVerdict.FAIL, detail=f"slow: {explain_slow_figures(mine)}"
    )


def strip_instance_type_ml_prefix(instance_type: str) -> str:
    """Return EC2's name of a type, without SageMaker's `ml.`."""
    return instance_type.removeprefix("ml.")


# A test that is broken must not have a cluster replaced: what no fault began, a person ends.
ORDERS: Final = {
    f"accept-{level}": FaultClass(
        RuleId(f"{ORDER}{level}"),
        f"an operator asked for a {level} test",
        Urgency.AFTER_JOBS,
        TEST_LADDER,
        source="an operator",
    )
    for level in ("quick", "full")
}


BURNED: Final = FaultClass(
    RuleId("burn-in-failed"),
    "the idle node failed its burn-in",
    Urgency.AFTER_JOBS,
    (Remedy.ASK_HUMAN,),
    source="idle",
)


NEW_S: Final = 5400.0
"""Seconds after its launch for which an instance is new, and after its boot a node recently
booted."""


def find_untested_node_candidates(
    view: PlanningView, policy: RecoveryPolicy, treated: Collection[NodeName], now: datetime
) -> list[RecoveryCandidate]:
    """Return the nodes with a recent instance or boot that no recovery explains, where those are
    tested.

    As in `plan._record_restored_job_start`, no budget applies: nothing is wrong with them, and
    their jobs may end
    first.
    """
    wanted, found = policy.acceptance, list[RecoveryCandidate]()
    if policy.mode is OperatingMode.OBSERVE or {wanted.add, wanted.software_update} == {"off"}:
        return found
    treated_before = [r for r in view.state.nodes.values() if not r.is_for_capacity_change]
    explained = set(chain.from_iterable((r.opened_for, r.generation) for r in treated_before))
    instances = {generation.instance for generation in explained}
    for node in view.scheduler.nodes.values():
        health, instance = view.health.get(node.name), view.instance(node.name)
        if (
            health is None
            or instance is None
            or node.name in treated
            or view.is_quarantined(node.name)
        ):
            continue
        here, launched, booted = health.generation, instance.launched, node.boot_time
        if here.instance != instance.id or here in explained or not node.in_service or not launched:
            continue
        new = now < add_seconds_within_bounds(launched, NEW_S)
        rebooted = booted is not None and now < add_seconds_within_bounds(booted, NEW_S)
        if new and wanted.add != "off" and here.instance not in instances:
            found.append(RecoveryCandidate(here, node, ADDED, now, "it is new", by="hpctl"))
        elif rebooted and not new and wanted.software_update != "off":
            found.append(RecoveryCandidate(here, node, UPDATED, now, "it has booted", by="hpctl"))
    return found


def find_failed_burn_in_candidates(
    view: PlanningView, treated: Collection[NodeName]
) -> list[RecoveryCandidate]:
    """Return the nodes whose instance has failed its newest burn-in, and that were not treated
    since.

    By every gate, as of any fault: a test that is broken must not take the cluster.
    """
    state, found = view.state, list[RecoveryCandidate]()
    newest = {
        change.opened.node: change
        for change in state.changes.values()
        if change.opened.kind is ChangeKind.BURN_IN and change.phase is ClusterChangePhase.DONE
    }
    for name, change in newest.items():
        if name is None or not change.tests or name in treated or view.is_quarantined(name):
            continue
        node, health = view.scheduler.nodes.get(name), view.health.get(name)
        if node is None or health is None or health.generation.instance != change.opened.instance:
            continue
        last = state.nodes[state.last_of_node[name]] if name in state.last_of_node else None
        if last is not None and last.since >= change.since and not last.withdrawn:
            continue
        found.append(
            RecoveryCandidate(
                health.generation, node, BURNED, change.since, change.trail[-1].why,
                heard=health.last_heard, findings=change.tests,
            )
        )  # fmt: skip
    return found


def list_newest_measurements(view: PlanningView) -> list[AcceptanceMeasurement]:
    """Return what the nodes' newest acceptance tests measured, by recovery, oldest first."""
    tested = (rec for rec in view.state.nodes.values() if rec.tests)
    found: list[AcceptanceMeasurement] = []
    for rec in tested:
        found += list_measurements(view.instance_type(rec.node), rec.node, rec.tests)
    return found


FAILED_SIGNALS: Final = frozenset(
    {NodeRecoverySignal.FAULT_AGAIN, NodeRecoverySignal.TEST_FAILED, *TEST_ASKS}
)


REMEDY_SIGNALS: Final = {
    "replace": NodeRecoverySignal.TEST_ASKS_REPLACE,
    "reboot": NodeRecoverySignal.TEST_ASKS_REBOOT,
    "reset": NodeRecoverySignal.TEST_ASKS_RESET,
}
"""What a failed test may ask for (a finding's `code`), the strongest first."""


FIGURES_SHOWN: Final = 3


PATIENCE_S: Final = 30
"""The most seconds after a refusal until what must take effect is ordered again: a second longer
each time."""


def list_complete_test_findings(test: str, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return what the node's agent reports of a test; nothing until it has reported all."""
    mine = tuple(f for f in findings if f.device == test and f.check.startswith(TEST))
    return mine if any(f.check == TEST_SUMMARY for f in mine) else ()

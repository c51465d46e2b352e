"""How likely a node breaks in the next days: to order tests, weigh placement and advise spares.

The hazard of a node and class of fault is base rate x recency x the node's own factor x the class's
share x indicators. Each factor is a gamma-Poisson rate: so many events in so much exposure, a prior
counting as some of both, so that the answer is a closed form and a new cluster begins with what
others published. What counts is the instance and not the node's name: after a replacement the name
starts from the beginning. A forecast never drains a node.

Priors. Base: 6.50, 2.34, 3.79 and 2.3 failures per 1,000 node-days (Meta RSC, arXiv 2410.21680;
Llama 3, 2407.21783; FT-HSDP, 2602.00277), as the gamma distribution of their mean and variance.
Recency: times between failures of a node as a Weibull distribution of shape 0.7 (Schroeder and
Gibson, DSN 2006), each step worth `recency_events`. Classes: Llama 3.
Indicators: no public data has them together with outcomes; twice the rate is a guess, and what the
journal shows overrules it after a few breaks.
"""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.vocabulary.identity import RuleId

CHECK: Final = "history.forecast"


DAY: Final = 86400.0


HORIZONS: Final = (1.0, 7.0, 30.0)
"""Days that are forecast."""


STEPS: Final = (0.25, 1.0, 3.0, 7.0, 14.0, 30.0, 60.0, 90.0)
"""Days since a node's last break ended at which its hazard changes; the last step has no end, and
is that of a node that never broke too."""


AGAIN_CHANCE: Final = 0.35
"""From this chance of breaking within 30 days on, what broke three times is pointed out."""


MASS_NODES, MASS_WINDOW_S = 3, 600.0
"""So many nodes by one rule within so many seconds are one event, and no node's own break."""


CLASSES: Final = (
    ("GSP", r"xid-(119|120)\b"),
    ("GPU memory", r"(xid-(48|63|64|92|94|95|140|171|172)\b|gpu-(ecc|remap|retired))"),
    ("NVLink", r"(xid-(74|14[4-9]|150)\b|sxid|gpu-(nvlink|fabric)|kernel-nvidia-nvlink)"),
    ("network", r"(efa|rdma|kernel-(efa|mlx5))|host-dstate-efa"),
    ("GPU", r"(xid|gpu|neuron|kernel-(nvidia|neuron)|host-dstate-(nvidia|neuron))"),
    ("out of reach", r"(node|slurm|agent|cloud)-"),
    ("HyperPod's health agent", r"hma"),
    ("host", r"(host|kernel)-"),
)
"""A fault's class by its rule, the first that fits; a site's own rules are `other`."""


def get_fault_class_of_rule(rule: RuleId) -> str:
    """Return the class of a rule's faults."""
    name = rule.removeprefix("gpu-") if rule.startswith("gpu-xid-") else rule
    return next((kind for kind, pattern in CLASSES if re.match(pattern, name)), "other")


class FailureIndicator(Struct, frozen=True):
    """An indicator: a finding that starts no recovery, and the classes it may announce.

    `found`: check, or check and code. No class: all of them.
    """

    name: str
    found: tuple[str, ...]
    classes: tuple[str, ...] = ()


SIGNS: Final = (
    FailureIndicator("remapped rows", ("gpu.remap bank-low", "kernel.xid 63"), ("GPU memory",)),
    FailureIndicator(
        "corrected memory errors", ("gpu.ecc.corrected", "kernel.xid 92"), ("GPU memory",)
    ),
    FailureIndicator(
        "PCIe replays", ("gpu.pcie replays", "gpu.pcie replays-peers", "peer.replay"), ("GPU",)
    ),
    FailureIndicator(
        "link flaps",
        ("gpu.nvlink.errors", "rdma.errors", "rdma.link", "efa.link", "kernel.mlx5 link"),
        ("NVLink", "network"),
    ),
    FailureIndicator("throttling", ("gpu.throttle", "peer.throttle"), ("GPU",)),
    FailureIndicator(
        "slower than its peers", ("peer.clock", "gpu.clocks", "peer.retrans", "peer.remote")
    ),
)


class ForecastPriors(Struct, frozen=True):
    """What is believed before the journal says anything. Rates are a node and day.

    `events` in `node_days`: the base rate. `recency`: by STEPS, times the base rate. `spread`: how
    unlike nodes are, the variance of their own factor. `half_life`: days after which a break of a
    node's own counts half. `classes`: events by class. `own_class`: events that a node's class is
    drawn to the fleet's by. `sign_times`: what an indicator multiplies by, worth `sign_events`.
    """

    events: float = 3.57
    node_days: float = 957.0
    recency: tuple[float, ...] = (9.6, 5.2, 3.7, 2.8, 2.2, 1.8, 1.4, 1.2, 0.9)
    recency_events: float = 2.0
    spread: float = 0.5
    spread_events: float = 5.0
    half_life: float = 28.0
    classes: Mapping[str, float] = field(
        default_factory=lambda: {
            "GPU": 3.5, "GPU memory": 2.2, "GSP": 0.4, "network": 0.8, "NVLink": 0.3,
            "out of reach": 1.0, "host": 1.0, "HyperPod's health agent": 0.4, "other": 0.4,
        }
    )  # fmt: skip
    own_class: float = 2.0
    sign_times: float = 2.0
    sign_events: float = 2.0


PRIORS: Final = ForecastPriors()


class InstanceFailure(Struct, frozen=True):
    """A failure of an instance: when it began and when it was back in service, in days since 1970
    (infinity: it is not), its class, and the indicators that were there as it began."""

    begun: float
    back: float
    kind: str
    signs: tuple[str, ...] = ()


class InstanceFailureTimeline(Struct, frozen=True):
    """One instance: since when it is watched, and its breaks, oldest first."""

    since: float
    breaks: tuple[InstanceFailure, ...] = ()

    def at(self, now: float) -> "InstanceFailureTimeline":
        """Return what was known of it at a time."""
        return replace(self, breaks=tuple(b for b in self.breaks if b.begun < now))


class InstanceFailureRateModel(Struct, frozen=True):
    """What was learned up to `now`: the factors, each the mean of its posterior."""

    now: float
    base: float
    recency: tuple[float, ...]
    shape: float
    classes: Mapping[str, float]
    signs: Mapping[str, float]
    breaks: int
    priors: ForecastPriors = PRIORS

    def own(self, unit: InstanceFailureTimeline) -> tuple[float, float]:
        """Return an instance's own breaks and how many were expected of one like all others, both
        discounted, each with the prior's share: their quotient is its factor."""
        decay = math.log(2) / self.priors.half_life
        expected = 0.0
        for step, begin, end, _ in _list_service_periods(unit, self.now):
            part = math.exp(-decay * (self.now - end)) - math.exp(-decay * (self.now - begin))
            expected += self.base * self.recency[step] * part / decay
        seen = sum(math.exp(-decay * (self.now - b.begun)) for b in unit.breaks)
        return self.shape + seen, self.shape + expected

    def shares(
        self, unit: InstanceFailureTimeline, signs: Collection[str] = ()
    ) -> dict[str, float]:
        """Return by class what part of its breaks is expected to be of it, times its indicators."""
        mine, weight = Counter(b.kind for b in unit.breaks), self.priors.own_class
        whole = weight + len(unit.breaks)
        found = {k: (weight * p + mine[k]) / whole for k, p in self.classes.items()}
        for sign in SIGNS:
            if sign.name in signs:
                for kind in sign.classes or found:
                    found[kind] = found.get(kind, 0.0) * self.signs[sign.name]
        return found

    def chance(
        self, unit: InstanceFailureTimeline, days: float, signs: Collection[str] = ()
    ) -> float:
        """Return how likely an instance in service breaks within so many days (negative
        binomial)."""
        seen, expected = self.own(unit)
        # What sets a node apart wears off as its past does.
        part = days * math.log(2) / self.priors.half_life
        factor = 1.0 + (seen / expected - 1.0) * -math.expm1(-part) / part
        hazard = factor * sum(self.shares(unit, signs).values())
        ahead = InstanceFailureTimeline(
            unit.since, tuple(replace(b, back=min(b.back, self.now)) for b in unit.breaks[-1:])
        )
        until = self.now + days
        exposed = sum(
            self.recency[step] * (end - max(begin, self.now))
            for step, begin, end, _ in _list_service_periods(ahead, until)
            if end > self.now
        )
        return -math.expm1(-seen * math.log1p(self.base * hazard * exposed / seen))


def _list_service_periods(
    unit: InstanceFailureTimeline, now: float
) -> Iterator[tuple[int, float, float, bool]]:
    """Yield an instance's time in service: step of recency, begin, end, whether it ended in a
    break."""
    begin, last = unit.since, -math.inf
    for number in range(len(unit.breaks) + 1):
        broke = number < len(unit.breaks)
        end = min(unit.breaks[number].begun, now) if broke else now
        while begin < end:
            age = begin - last
            step = bisect_right(STEPS, age)
            upto = min(end, last + STEPS[step]) if step < len(STEPS) else end
            # Two adjacent floats have no middle.
            upto = upto if upto > begin else end
            yield step, begin, upto, broke and upto == end
            begin = upto
        if broke:
            last = unit.breaks[number].back
            begin = max(last, unit.since)


def fit_failure_model(
    units: Iterable[InstanceFailureTimeline],
    quiet_days: float,
    now: float,
    priors: ForecastPriors = PRIORS,
    prevalence: Mapping[str, float] | None = None,
) -> InstanceFailureRateModel:
    """Return the factors from all that was seen. `quiet_days`: node-days of instances that never
    broke. `prevalence`: the share of nodes that have each indicator now."""
    units = list(units)
    events, exposure = [0.0] * (len(STEPS) + 1), [0.0] * (len(STEPS) + 1)
    exposure[-1] = quiet_days
    kinds, signs = Counter[str](), Counter[str]()
    for unit in units:
        for step, begin, end, broke in _list_service_periods(unit, now):
            exposure[step] += end - begin
            events[step] += broke
        kinds.update(b.kind for b in unit.breaks)
        for one in unit.breaks:
            signs.update(one.signs)
    base = (priors.events + sum(events)) / (priors.node_days + sum(exposure))
    weight = priors.recency_events
    recency = [
        (weight + n) / (weight / times + base * days)
        for times, n, days in zip(priors.recency, events, exposure, strict=True)
    ]
    total = kinds.total() + sum(priors.classes.values())
    names = {*priors.classes, *kinds}
    there = prevalence or {}
    model = InstanceFailureRateModel(
        now, base, tuple(recency), 1.0 / priors.spread,
        {k: (priors.classes.get(k, 0.0) + kinds[k]) / total for k in sorted(names)},
        {
            s.name: (priors.sign_events + signs[s.name])
            / (priors.sign_events / priors.sign_times + kinds.total() * there.get(s.name, 0.0))
            for s in SIGNS
        },
        kinds.total(), priors,
    )  # fmt: skip
    return replace(model, shape=1.0 / _estimate_factor_variance(model, units))


def _estimate_factor_variance(
    model: InstanceFailureRateModel, units: Sequence[InstanceFailureTimeline]
) -> float:
    """Return the variance of nodes' own factor, by moments: what counts vary by beyond chance."""
    weight = model.priors.spread_events
    excess, square = weight * model.priors.spread, weight
    for unit in units:
        parts = _list_service_periods(unit, model.now)
        mean = sum(model.base * model.recency[k] * (end - begin) for k, begin, end, _ in parts)
        excess += (len(unit.breaks) - mean) ** 2 - mean
        square += mean**2
    return max(excess / square, 0.05)

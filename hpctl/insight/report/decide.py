"""What a period of a journal amounts to: what failed, what it cost, what was saved. Pure.

Intervals are cut at the period's ends. GPU-hours count whole nodes. Published rates are those of
the papers named, as failures per 1,000 node-days; where a paper has counts, their quotient.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import fmean, median
from typing import Final

from msgspec import Struct

from hpctl.engine.job_losses import find_job_interruption_times
from hpctl.engine.journal.state import EngineState
from hpctl.engine.timeline import find_earliest_fault_time
from hpctl.insight.forecast.decide import get_fault_class_of_rule
from hpctl.insight.forecast.history import InstanceFailureForecast, forecast_node_failures
from hpctl.insight.report.held import UntreatedFault
from hpctl.vocabulary import change, job_recovery, node_recovery
from hpctl.vocabulary.identity import NodeName, RuleId
from hpctl.vocabulary.job_recovery import JobRecovery
from hpctl.vocabulary.node_recovery import NodeRecovery, NodeRecoveryPhase, NodeRecoverySignal

PLAIN_RESTART_S: Final = 121.0
"""How long plain Slurm keeps a requeued batch job waiting: cred_expire, 120 s, and one."""
_LLAMA: Final = 2048 * 54 / 1000
"""Thousands of node-days: 16,384 GPUs, eight in a node, 54 days."""
_SOURCE: Final = "Llama 3, arXiv 2407.21783"


class PublishedFailureRate(Struct, frozen=True):
    """A published rate of failures per 1,000 node-days."""

    source: str
    rate: float


PUBLISHED: Final[Mapping[str, tuple[PublishedFailureRate, ...]]] = {
    "all": (
        PublishedFailureRate("Meta RSC-1, arXiv 2410.21680", 6.50),
        PublishedFailureRate("Meta RSC-2, arXiv 2410.21680", 2.34),
        PublishedFailureRate(_SOURCE, 419 / _LLAMA),
        PublishedFailureRate("InfiniteHBD-Trace", 3.8),
        PublishedFailureRate("FT-HSDP, arXiv 2602.00277", 2.3),
    ),
    "GPU": (PublishedFailureRate(_SOURCE, 148 / _LLAMA),),
    "GPU memory": (PublishedFailureRate(_SOURCE, (72 + 19) / _LLAMA),),
    "GSP": (PublishedFailureRate(_SOURCE, 17 / _LLAMA),),
    "network": (PublishedFailureRate(_SOURCE, 35 / _LLAMA),),
}
"""By class. GPU memory: HBM3 and SRAM. Network: switches and cables."""
_MOST: Final = 10


class PricedNode(Struct, frozen=True):
    """What a node has, and the price of an hour of one of its GPUs, where that is known."""

    gpus: int = 0
    price: float | None = None


class CostTotal(Struct, frozen=True):
    """So many of something, and their GPU-hours; `cost` is null where a price is not known."""

    count: int = 0
    gpu_hours: float = 0.0
    cost: float | None = 0.0

    def add_node_hours(self, hours: float, node: PricedNode, nodes: int = 1) -> "CostTotal":
        """Add one more: hours of so many nodes of a kind."""
        spent = hours * node.gpus * nodes
        known = self.cost is not None and node.price is not None
        cost = self.cost + spent * node.price if known else None  # type: ignore[operator]
        return CostTotal(self.count + 1, self.gpu_hours + spent, cost)


class FaultCostRow(Struct, frozen=True):
    """Failures of a class, per 1,000 node-days too, and what was lost by them."""

    name: str
    failures: int
    per_1000: float
    lost: CostTotal
    published: tuple[PublishedFailureRate, ...] = ()


class StageRow(Struct, frozen=True):
    """How long recoveries stayed in one stage, in seconds."""

    name: str
    count: int
    mean_s: float
    median_s: float


class SpareRow(Struct, frozen=True):
    """How many spares of a group were reserved: fewest, most, and at the end."""

    group: str
    fewest: int
    most: int
    last: int


class CostReport(Struct, frozen=True):
    """The figures. `idle`: jobs that did not run; `out`: nodes out of service; `restarts` and
    `kept`: what hpctl saved of each; `unneeded`: drained, and returned without a remedy; `held`:
    how many faults of nodes each gate held that nothing treated. They count as failures, but for
    those of mass events (gate `correlated`)."""

    since: datetime
    until: datetime
    nodes: int
    gpus: int
    node_days: float
    all: FaultCostRow
    classes: tuple[FaultCostRow, ...]
    runs: Mapping[str, int]
    orders: int
    idle: CostTotal
    out: CostTotal
    restarts: CostTotal
    kept: CostTotal
    unneeded: CostTotal
    escalated: int
    node_stages: tuple[StageRow, ...]
    job_stages: tuple[StageRow, ...]
    again: tuple[InstanceFailureForecast, ...]
    spares: tuple[SpareRow, ...]
    held: Mapping[str, int]


class _ReportPeriod(Struct, frozen=True):
    state: EngineState
    fleet: Mapping[NodeName, PricedNode]
    since: datetime
    until: datetime
    by_hand: timedelta
    usual: PricedNode

    def has(self, at: datetime) -> bool:
        return self.since <= at < self.until

    def hours(self, begin: datetime, end: datetime) -> float:
        """Return the hours between two times that are in the period."""
        seconds = (min(end, self.until) - max(begin, self.since)).total_seconds()
        return max(0.0, seconds) / 3600

    def node(self, *names: NodeName) -> PricedNode:
        """Return the first node that is still known; a usual one in place of those that are
        gone."""
        return next((self.fleet[n] for n in names if n in self.fleet), self.usual)

    def back(self, rec: NodeRecovery, nxt: datetime | None) -> datetime:
        """Return when a node was in service again after a recovery, or treated again: one whose
        recovery was escalated or called off by an operator stays drained."""
        stays = (
            rec.trail[-1].signal == NodeRecoverySignal.OPERATOR_CANCELLED if rec.trail else False
        )
        if rec.phase in (NodeRecoveryPhase.RETURNED, NodeRecoveryPhase.CANCELLED) and not stays:
            return rec.since
        by_hand = self.state.returned.get(rec.node)
        later = [at for at in (nxt, by_hand) if at is not None and at >= rec.since]
        return min(later, default=self.until)


def build_cost_report(  # noqa: PLR0913 -- pure: all that decides is an argument
    state: EngineState,
    fleet: Mapping[NodeName, PricedNode],
    since: datetime,
    until: datetime,
    by_hand: timedelta,
    held: Sequence[UntreatedFault] = (),
) -> CostReport:
    """Return the figures of a period. `fleet`: the nodes there are now, taken to be there all the
    time. `by_hand`: after what time a person would have repaired a node; `held`: the faults that
    gates held."""
    usual = Counter(fleet.values()).most_common(1)
    p = _ReportPeriod(state, fleet, since, until, by_hand, usual[0][0] if usual else PricedNode())
    node_days = len(fleet) * (until - since) / timedelta(days=1)
    treated = [rec for rec in state.nodes.values() if not rec.is_for_capacity_change]
    nodes = sorted(treated, key=lambda rec: rec.opened)
    here = [rec for rec in nodes if p.has(rec.opened)]
    faults = [rec for rec in here if not rec.by and not rec.withdrawn]
    hit = (job for job in state.jobs.values() if not job.is_without_fault)
    jobs = [
        job
        for job in hit
        if p.hours(*find_job_interruption_times(job, p.until)) or p.has(job.opened)
    ]
    troubles = Counter(j.trouble.kind.value for j in jobs if j.trouble and p.has(j.opened))
    lost: dict[str, CostTotal] = {}
    out, kept, unneeded = _sum_node_outage_costs(p, nodes, lost)
    idle, restarts = _sum_job_idle_costs(p, jobs, lost)
    untreated = [one for one in held if p.has(one.begun)]
    of_nodes = [one for one in untreated if one.gate != "correlated"]
    counts = Counter(get_fault_class_of_rule(rec.rule) for rec in faults)
    counts.update(get_fault_class_of_rule(one.rule) for one in of_nodes)

    def make_fault_cost_row(name: str, count: int, cost: CostTotal) -> FaultCostRow:
        rate = 1000 * count / node_days if node_days else 0.0
        return FaultCostRow(name, count, rate, cost, PUBLISHED.get(name, ()))

    names = sorted(lost.keys() | counts.keys(), key=lambda n: (-counts[n], n))
    both = [total.cost for total in (out, idle) if total.cost is not None]
    every = CostTotal(0, out.gpu_hours + idle.gpu_hours, sum(both) if len(both) == 2 else None)
    return CostReport(
        since, until, len(fleet), sum(n.gpus for n in fleet.values()), node_days,
        all=make_fault_cost_row("all", len(faults) + len(of_nodes), every),
        classes=tuple(
            make_fault_cost_row(name, counts[name], lost.get(name, CostTotal())) for name in names
        ),
        runs=dict(troubles.most_common()),
        orders=sum(bool(rec.by) and not rec.is_for_maintenance for rec in here),
        idle=idle, out=out, restarts=restarts, kept=kept, unneeded=unneeded,
        escalated=sum(rec.phase is NodeRecoveryPhase.ESCALATED for rec in here),
        node_stages=_summarize_recovery_stages(
            _measure_node_stages(r, state) for r in here if r.phase is NodeRecoveryPhase.RETURNED
        ),
        job_stages=_summarize_recovery_stages(
            _measure_job_stages(j) for j in jobs if p.has(j.opened) and _find_run_start(j)
        ),
        again=tuple(
            f for f in forecast_node_failures(state, list(fleet), {}, until) if f.breaks > 1
        )[:_MOST],
        spares=tuple(_list_spare_reservation_rows(p)),
        held=dict(Counter(one.gate for one in untreated).most_common()),
    )  # fmt: skip


def _add_fault_class_cost(
    lost: dict[str, CostTotal], rule: RuleId, hours: float, node: PricedNode, nodes: int = 1
) -> None:
    name = get_fault_class_of_rule(rule)
    lost[name] = lost.get(name, CostTotal()).add_node_hours(hours, node, nodes)


def _sum_node_outage_costs(
    p: _ReportPeriod, nodes: list[NodeRecovery], lost: dict[str, CostTotal]
) -> tuple[CostTotal, CostTotal, CostTotal]:
    """Time out of service; time in service before a person would have repaired the node; time out
    of service of nodes that needed no remedy."""
    out, kept, unneeded = CostTotal(), CostTotal(), CostTotal()
    following: dict[NodeName, datetime] = {}
    for rec in reversed(nodes):
        nxt = following.get(rec.node)
        following[rec.node] = rec.opened
        drained = next(
            (m.at for m in rec.trail if m.signal == NodeRecoverySignal.CORDON_SEEN), None
        )
        if drained is None or drained >= p.until:
            continue
        node, back = p.node(rec.node), p.back(rec, nxt)
        hours = p.hours(drained, back)
        if hours:
            out = out.add_node_hours(hours, node)
            _add_fault_class_cost(lost, rec.rule, hours, node)
        if not p.has(rec.since):
            continue
        if rec.phase is NodeRecoveryPhase.RETURNED and rec.remedied:
            kept = kept.add_node_hours(
                p.hours(back, min(drained + p.by_hand, nxt or p.until)), node
            )
        elif (rec.phase is NodeRecoveryPhase.RETURNED or rec.withdrawn) and not (
            rec.remedied or rec.by
        ):
            unneeded = unneeded.add_node_hours(hours, node)
    return out, kept, unneeded


def _sum_job_idle_costs(
    p: _ReportPeriod, jobs: list[JobRecovery], lost: dict[str, CostTotal]
) -> tuple[CostTotal, CostTotal]:
    """Return the time in which jobs made no progress, and what plain Slurm's restart would have
    added to it."""
    idle, saved = CostTotal(), CostTotal()
    for job in jobs:
        cause = p.state.nodes.get(job.cause)
        node = p.node(*job.ran_on, *job.bad_nodes)
        width = job.nodes or len(job.ran_on) or len(job.bad_nodes) or 1
        begin, end = find_job_interruption_times(job, p.until)
        hours = p.hours(begin, end)
        idle = idle.add_node_hours(hours, node, width)
        if cause is not None:
            _add_fault_class_cost(lost, cause.rule, hours, node, width)
            if _find_run_start(job) and p.has(end):
                gained = PLAIN_RESTART_S - (end - begin).total_seconds()
                saved = saved.add_node_hours(max(0.0, gained) / 3600, node, width)
    return idle, saved


def _find_run_start(job: JobRecovery) -> datetime | None:
    seen = job_recovery.JobRecoverySignal.RUNNING_SEEN
    return next((move.at for move in job.trail if move.signal == seen), None)


def _measure_node_stages(rec: NodeRecovery, state: EngineState) -> dict[str, float]:
    """Return seconds by stage: from the first finding to the recovery, then by phase."""
    first = find_earliest_fault_time(rec, state)
    times = {"detect": (rec.opened - first).total_seconds()}
    return times | _measure_phase_times(rec, NodeRecoveryPhase.OPEN, rec.since)


def _measure_job_stages(job: JobRecovery) -> dict[str, float]:
    return _measure_phase_times(
        job, job_recovery.JobRecoveryPhase.HIT, _find_run_start(job) or job.since
    )


def _measure_phase_times(
    rec: NodeRecovery | JobRecovery, phase: str, end: datetime
) -> dict[str, float]:
    times, at = dict[str, float](), rec.opened
    for move in rec.trail:
        if move.at <= end:
            times[str(phase)] = times.get(phase, 0.0) + (move.at - at).total_seconds()
            phase, at = move.phase, move.at
    return {**times, "total": (end - rec.opened).total_seconds()}


def _summarize_recovery_stages(times: Iterable[Mapping[str, float]]) -> tuple[StageRow, ...]:
    """Return each stage over all that passed through it, in the order of phases."""
    found: dict[str, list[float]] = {}
    for one in times:
        for name, seconds in one.items():
            found.setdefault(name, []).append(seconds)
    order = [
        "detect",
        *map(str, node_recovery.NodeRecoveryPhase),
        *map(str, job_recovery.JobRecoveryPhase),
        "total",
    ]
    return tuple(
        StageRow(name, len(here), fmean(here), median(here))
        for name in order
        if (here := found.get(name))
    )


def _list_spare_reservation_rows(p: _ReportPeriod) -> Iterator[SpareRow]:
    """Yield the sizes of each group's reservation: the last before the period, and all in it."""
    sizes: dict[str, list[int]] = {}
    done = (c for c in p.state.changes.values() if c.phase is change.ClusterChangePhase.DONE)
    for one in sorted(done, key=lambda c: c.since):
        if one.opened.kind is change.ChangeKind.SPARES and one.since < p.until:
            known = sizes.setdefault(one.opened.group, [])
            if one.since <= p.since:
                known.clear()
            known.append(len(one.opened.nodes))
    for group, counts in sorted(sizes.items()):
        yield SpareRow(group, min(counts), max(counts), counts[-1])

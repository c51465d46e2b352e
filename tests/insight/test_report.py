"""The report's figures, by small journals whose sums are done by hand."""

from datetime import timedelta

import pytest

from hpctl.engine.journal.events import (
    Event,
    GateBlocked,
    HoldLifted,
    JobRecoveryOpened,
    RequestTaken,
    SignalSeen,
)
from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.insight.report.decide import PricedNode, build_cost_report, get_fault_class_of_rule
from hpctl.insight.report.held import UntreatedFault, UntreatedFaultCollector
from hpctl.vocabulary.change import ChangeKind, ChangeOpened, ClusterChangeSignal
from hpctl.vocabulary.identity import JobAttempt, JobId, NodeName, RecoveryId, RuleId
from hpctl.vocabulary.recovery import StepKind
from tests.cli.worlds import OK, T0, at, gen, node_opened, seen, step

HOUR, DAY = 3600.0, 86400.0
FLEET = {NodeName(f"ip-10-1-0-{n}"): PricedNode(8, 2.0) for n in range(1, 11)}
UNTIL = T0 + timedelta(days=10)


def figures(*events, since=T0, fleet=FLEET):
    state = replay_events(sorted((e for some in events for e in some), key=lambda e: e.at))
    return build_cost_report(state, fleet, since, UNTIL, timedelta(days=1))


def repaired(rid, n, t, hours, rule="xid-79", **how):
    """Drained at once, rebooted, and returned after so many hours."""
    g = gen(n)
    return [
        node_opened(rid, g, t, rule=RuleId(rule), findings=(), **how),
        *step(rid, StepKind.DRAIN, g.node, t, OK),
        seen(rid, "cordon_seen", t, ""),
        seen(rid, "jobs_gone", t + 60, ""),
        *step(rid, StepKind.REBOOT, g.instance, t + 60, OK),
        seen(rid, "remedy_accepted", t + 61, ""),
        seen(rid, "new_generation_seen", t + 600, "", gen(n, boot="b")),
        seen(rid, "rejoined", t + 660, ""),
        seen(rid, "return_seen", t + hours * HOUR, ""),
    ]


def hit(jid: str, cause: str, n: int, t: float, down_s: float, nodes: int) -> list[Event]:
    """A job of so many nodes that ran again after so many seconds."""
    name, job = NodeName(f"ip-10-1-0-{n}"), JobId(int(jid[2:]))
    opened = JobRecoveryOpened(
        at(t), RecoveryId(jid), JobAttempt(job, T0, 0), RecoveryId(cause), (name,), "", nodes=nodes
    )
    moves = [("stop_wanted", 1.0), ("queued", 2.0), ("started", 3.0), ("running_seen", down_s)]
    return [opened, *(seen(jid, what, t + s, "") for what, s in moves)]


def test_failures_costs_and_savings_add_up() -> None:
    r = figures(
        repaired("n-1", 1, DAY, 5.0),
        repaired("n-2", 2, 2 * DAY, 2.0, "gpu-xid-94"),
        repaired("n-3", 3, 3 * DAY, 1.0, by="carol"),
        hit("j-11", "n-1", 1, DAY, 11.0, nodes=4),
    )
    # Ten nodes, ten days: two failures in 100 node-days, and one order.
    assert (r.nodes, r.gpus, r.node_days, r.orders) == (10, 80, 100.0, 1)
    assert (r.all.failures, r.all.per_1000) == (2, 20.0)
    # 5 + 2 + 1 hours of 8 GPUs, each 2.00 an hour; the job: 4 nodes of 8 GPUs for 11 seconds.
    assert (r.out.count, r.out.gpu_hours, r.out.cost) == (3, 64.0, 128.0)
    assert r.idle.gpu_hours == pytest.approx(32 * 11 / 3600)
    assert r.all.lost.cost == pytest.approx(2 * (64 + 32 * 11 / 3600))
    by_class = {row.name: (row.failures, round(row.lost.gpu_hours, 2)) for row in r.classes}
    assert by_class == {"GPU": (1, 48.1), "GPU memory": (1, 16.0)}  # The order was for a GPU.
    # Plain Slurm: 121 s instead of 11; a person after a day, instead of 5, 2 and 1 hours.
    assert r.restarts.gpu_hours == pytest.approx(32 * 110 / 3600)
    assert (r.kept.count, r.kept.gpu_hours) == (3, 8 * (19 + 22 + 23))
    stages = {s.name: (s.count, s.mean_s, s.median_s) for s in r.node_stages}
    assert (stages["cordoned"], stages["remedying"]) == ((3, 60.0, 60.0), (3, 539.0, 539.0))
    assert stages["total"] == (3, 8 * HOUR / 3, 2 * HOUR)
    assert {s.name: s.mean_s for s in r.job_stages}["total"] == 11.0


def test_what_lies_across_the_ends_is_cut_and_what_lies_outside_does_not_count() -> None:
    crossing = repaired("n-1", 1, DAY - 2 * HOUR, 3.0)
    r = figures(crossing, repaired("n-2", 2, 2 * DAY, 1.0), since=T0 + timedelta(days=1))
    assert (r.all.failures, r.node_days, r.out.gpu_hours) == (1, 90.0, 16.0)
    r = figures(repaired("n-3", 3, 10 * DAY - HOUR, 1.0)[:5], repaired("n-4", 4, 11 * DAY, 1.0))
    assert (r.all.failures, r.out.gpu_hours, r.kept.count) == (1, 8.0, 0)


def held(node: str, gate: str, t: float, rule: str = "xid-79") -> GateBlocked:
    return GateBlocked(at(t), node, gate, "why", RuleId(rule))


def collect_held(*events: Event) -> tuple[UntreatedFault, ...]:
    """What the command makes of a journal."""
    state, found = EngineState(), UntreatedFaultCollector()
    for event in sorted(events, key=lambda e: e.at):
        state.fold(event)
        found.take(event, state)
    return tuple(found.list_untreated_faults())


def test_faults_that_a_gate_held_are_counted_and_those_that_were_treated_then_are_not_twice():
    one, two, three = (gen(n).node for n in (1, 2, 3))
    treated = repaired("n-2", 2, DAY + 100, 1.0)
    journal = [
        held(one, "paused", DAY), held(one, "drain_budget", DAY + 60),
        HoldLifted(at(DAY + 600), one), held(one, "paused", 2 * DAY, "gpu-xid-94"),
        held(two, "paused", DAY), HoldLifted(at(DAY + 100), two), *treated,
        held(two, "budget", DAY + 101),
        held(three, "correlated", DAY), held("4444", "not_recoverable", DAY),
        held(three, "internal_error", 3 * DAY),
    ]  # fmt: skip
    found = collect_held(*journal)
    assert [(f.node, f.gate) for f in found] == [
        (one, "drain_budget"), (three, "correlated"), (one, "paused")
    ]  # fmt: skip
    r = build_cost_report(replay_events(treated), FLEET, T0, UNTIL, timedelta(days=1), found)
    assert r.held == {"drain_budget": 1, "correlated": 1, "paused": 1}
    assert (r.all.failures, {row.name: row.failures for row in r.classes}) == (
        3, {"GPU": 2, "GPU memory": 1}
    )  # fmt: skip
    late = build_cost_report(
        replay_events(treated), FLEET, T0 + timedelta(days=5), UNTIL, timedelta(days=1), found
    )
    assert late.held == {}


def test_a_drain_without_need_and_one_that_a_person_ended() -> None:
    g = gen(5)
    needless = [
        node_opened("n-5", g, DAY, findings=()),
        seen("n-5", "cordon_seen", DAY, ""),
        seen("n-5", "withdrawn", DAY + 6 * HOUR, ""),
    ]
    escalated = [
        node_opened("n-6", gen(6), DAY, findings=()),
        seen("n-6", "cordon_seen", DAY, ""),
        seen("n-6", "needs_human", DAY + HOUR, ""),
        RequestTaken(at(DAY + 4 * HOUR), 1, "return", "ip-10-1-0-6", "ann", "", True),
    ]
    r = figures(needless, escalated)
    assert (r.unneeded.count, r.unneeded.gpu_hours) == (1, 48.0)
    assert (r.all.failures, r.escalated, r.out.gpu_hours) == (1, 1, 80.0)
    assert figures(escalated[:3]).out.gpu_hours == 8 * 24 * 9.0
    off = [*escalated[:2], seen("n-6", "operator_cancelled", DAY + HOUR, ""), escalated[3]]
    assert figures(off).out.gpu_hours == 32.0


def test_offenders_spares_and_unknown_prices() -> None:
    twice = repaired("n-1", 1, DAY, 1.0) + repaired("n-2", 1, 2 * DAY, 1.0)
    spares: list[Event] = []
    for day, size in ((-2, 5), (-1, 2), (3, 0), (4, 1)):
        rid, names = RecoveryId(f"s-{day}"), tuple(NodeName(f"n{i}") for i in range(size))
        spares.append(ChangeOpened(at(day * DAY), rid, ChangeKind.SPARES, "g1", "", nodes=names))
        spares.append(SignalSeen(at(day * DAY), rid, ClusterChangeSignal.SET_SEEN, ""))
    r = figures(twice, spares, fleet={**FLEET, NodeName("ip-10-1-0-1"): PricedNode(8)})
    assert [(i.node, i.breaks) for i in r.again] == [("ip-10-1-0-1", 2)]
    assert [(s.group, s.fewest, s.most, s.last) for s in r.spares] == [("g1", 0, 2, 1)]
    assert (r.out.gpu_hours, r.out.cost, r.all.lost.cost) == (16.0, None, None)
    nothing = figures(fleet={})
    assert (nothing.all.per_1000, nothing.node_stages) == (0.0, ())


@pytest.mark.parametrize(
    ("rule", "name"),
    [("xid-119", "GSP"), ("gpu-xid-95", "GPU memory"), ("xid-149", "NVLink"), ("xid-79", "GPU"),
     ("efa-link-down", "network"), ("kernel-efa", "network"), ("kernel-fs-readonly", "host"),
     ("node-lost", "out of reach"), ("hma-replace", "HyperPod's health agent"),
     ("report-nhc", "other"), ("xid-1190", "GPU")],
)  # fmt: skip
def test_a_rule_has_a_class(rule: str, name: str) -> None:
    assert get_fault_class_of_rule(RuleId(rule)) == name

"""Every gate: a row that holds, one that passes, and the boundary between them."""

from collections.abc import Callable
from functools import partial

import pytest
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.gates import GATES, build_recovery_gate_counts, is_target_approved_by_operator
from hpctl.engine.journal.events import Event, GateBlocked, RequestTaken
from hpctl.engine.view import PlanningView, RecoveryCandidate
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition, Remedy
from hpctl.vocabulary.cloud_facts import CloudProviderView, Instance, InstanceStatus
from hpctl.vocabulary.policy import (
    ConcurrentRecoveryBudgets,
    NodeRecoveryPolicy,
    OperatingMode,
    RecoveryPolicy,
)
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmReservation
from tests.fakes.values import (
    FAULT,
    OWN,
    at,
    faulty,
    generation,
    node_name,
    opened,
    slurm_node,
    view_of,
)

ROWS = {row.name: row for row in GATES}
N1 = "n1"


def candidate(**changes) -> RecoveryCandidate:
    values = {"heard": at(0), **changes}
    return (
        RecoveryCandidate(generation(), slurm_node(1), FAULT, at(-10), "Xid 79", **values)
        if ("node" not in values)
        else RecoveryCandidate(generation(), fault=FAULT, since=at(-10), why="Xid 79", **values)
    )


def instance(**changes) -> Instance:
    return replace(Instance("i-n1", InstanceStatus.RUNNING, node=N1), **changes)


def listing(**changes):
    """A view's provider part with n1's instance changed."""
    one = instance(**changes)
    return {
        "provider": CloudProviderView(at(0), True, instances={one.id: one}),
        "instances": {N1: one},
    }


WORKED_ON = sorted(set(InstanceStatus) - {InstanceStatus.RUNNING, InstanceStatus.FAILURE})


def view_status(status: InstanceStatus) -> PlanningView:
    """A view in which the service gives n1's instance this state."""
    return view_of(**listing(status=status))


def others(count: int, seconds: float = 0, **changes) -> list[Event]:
    """Recoveries open on n2, n3, ..."""
    return [opened(f"n-{i}", node_name(i), seconds, **changes) for i in range(2, count + 2)]


def marked_besides(*names: str) -> Callable[[], PlanningView]:
    """Nodes with the fault of n1 that have a stronger one besides."""
    mark = replace(FAULT, rule="hma-replace")
    seen = [replace(faulty(n, mark), also={FAULT.rule: at(-10)}) for n in names]
    return lambda: view_of(sick=seen)


def closed_by_us(*names: str) -> Callable[[], PlanningView]:
    """Nodes that are drained still by recoveries that ended in a person's hands."""

    def made() -> PlanningView:
        view = view_of()
        reason, flags = format_hpctl_node_reason("n-gone", "xid 79"), frozenset({"DRAIN"})
        closed = {n: replace(view.scheduler.nodes[n], flags=flags, reason=reason) for n in names}
        nodes = {**view.scheduler.nodes, **closed}
        return replace(view, scheduler=replace(view.scheduler, nodes=nodes))

    return made


ILL = candidate()
AUTOMATIC = CloudProviderView(at(0), True, automatic=True)


class Row(Struct):
    gate: str
    holds: bool
    view: Callable[[], PlanningView]
    c: RecoveryCandidate = ILL
    policy: RecoveryPolicy = OWN
    note: str = ""


def slurm_at(seconds: float) -> Callable[[], PlanningView]:
    return lambda: view_of(scheduler=SchedulerView(at(seconds), view_of().scheduler.nodes))


def log(events: list[Event], **changes) -> Callable[[], PlanningView]:
    return lambda: view_of(log=events, **changes)


DRAINED = frozenset({"DRAIN"})
MAINTENANCE = SlurmReservation("bios", (N1,), at(-60), at(3600), True)
CASES = [
    Row("kill_switch", True, lambda: view_of(stopped="the file exists")),
    Row("kill_switch", False, view_of),
    Row("paused", True, log([RequestTaken(at(-1), 1, "pause", "", "eve", "", True)])),
    Row("paused", False, view_of),
    Row("stale_facts", False, slurm_at(-60), note="as old as may be"),
    Row("stale_facts", True, slurm_at(-60.1)),
    Row("stale_facts", True, slurm_at(60.1), note="from the future"),
    Row("stale_facts", True, lambda: view_of(current=False)),
    Row("stale_facts", False, view_of, candidate(heard=at(-120)), note="as old as may be"),
    Row("stale_facts", True, view_of, candidate(heard=at(-121))),
    Row("stale_facts", False, view_of, candidate(heard=at(-121), by="eve")),
    Row(
        "stale_facts",
        False,
        view_of,
        candidate(heard=at(-999), node=slurm_node(1, state="DOWN")),
        note="Slurm agrees",
    ),
    Row("stale_facts", True, lambda: view_of(provider=CloudProviderView(at(0), True))),
    Row("stale_facts", False, lambda: view_of(provider=CloudProviderView(at(0), False))),
    Row("wrong_instance", True, lambda: view_of(**listing(id="i-new"))),
    Row("wrong_instance", False, view_of),
    Row(
        "wrong_instance",
        False,
        lambda: view_of(**{**listing(id="i-new"), "provider": CloudProviderView(at(-301), True)}),
        note="too old to contradict",
    ),
    *(Row("provider_acts", True, partial(view_status, status)) for status in WORKED_ON),
    Row("provider_acts", False, lambda: view_of(**listing(status=InstanceStatus.FAILURE))),
    Row("provider_acts", False, lambda: view_of(instances={})),
    Row("provider_auto_recovery", True, lambda: view_of(provider=AUTOMATIC)),
    Row(
        "provider_auto_recovery",
        False,
        lambda: view_of(provider=AUTOMATIC),
        policy=replace(OWN, mode=OperatingMode.ASSIST),
    ),
    Row("provider_auto_recovery", False, view_of),
    *(
        Row("power_saving", holds, view_of, candidate(node=slurm_node(1, flags=frozenset({flag}))))
        for flag, holds in (
            ("POWERED_DOWN", True),
            ("POWERING_DOWN", True),
            ("POWERING_UP", True),
            ("POWER_UP", True),
            ("POWER_DOWN", False),
            ("CLOUD", False),
        )
    ),
    Row(
        "foreign_drain",
        True,
        view_of,
        candidate(node=slurm_node(1, flags=DRAINED, reason="bad fan")),
    ),
    Row(
        "foreign_drain",
        False,
        view_of,
        candidate(node=slurm_node(1, flags=DRAINED, reason=format_hpctl_node_reason("n-0", "x"))),
    ),
    Row(
        "foreign_drain",
        False,
        view_of,
        candidate(node=slurm_node(1, flags=frozenset({"DRAIN"}), reason="Prolog error")),
    ),
    Row(
        "foreign_drain",
        True,
        view_of,
        candidate(
            node=slurm_node(1, flags=frozenset({"DRAIN"}), reason="Prolog error", reason_by="ann")
        ),
    ),
    Row(
        "foreign_drain",
        False,
        view_of,
        candidate(node=slurm_node(1, reason="bad fan")),
        note="a reason, but open",
    ),
    Row("foreign_drain", True, view_of, candidate(node=slurm_node(1, flags=frozenset({"FAIL"})))),
    *(
        Row(
            "foreign_drain",
            holds,
            view_of,
            candidate(node=slurm_node(1, flags=frozenset({flag}), reason=reason)),
        )
        for reason, holds in (
            ("Action:Replace", False),
            ("Action:Reboot", False),
            ("Action:Replace : Not responding", False),
            ("action:replace", True),
            ("Action:Replace please", True),
            ("Action:Replace.", True),
            ("Action:Reset", True),
        )
        for flag in ("FAIL", "DRAIN")
    ),
    Row("maintenance", True, lambda: view_of(maintenance={N1: MAINTENANCE})),
    Row("maintenance", True, lambda: view_of(maintenance={N1: MAINTENANCE}), candidate(by="eve")),
    Row("maintenance", False, lambda: view_of(maintenance={"n2": MAINTENANCE})),
    Row("protected", True, lambda: view_of(**listing(protected=True))),
    Row(
        "protected",
        True,
        view_of,
        policy=replace(OWN, node=NodeRecoveryPolicy(protected=frozenset({N1}))),
    ),
    Row("protected", False, view_of),
    Row("not_allowed", True, view_of, policy=replace(OWN, partitions=frozenset({"other"}))),
    Row("not_allowed", False, view_of, policy=replace(OWN, partitions=frozenset({"all", "x"}))),
    Row("correlated", False, log(others(1)), note="two of eight"),
    Row("correlated", True, log(others(2)), note="three of eight"),
    Row("correlated", False, log(others(2, rule="another"))),
    Row("correlated", True, log(others(2, seconds=-599)), note="just within the window"),
    Row("correlated", False, log(others(2, seconds=-600))),
    Row("correlated", False, log(others(2), nodes=40), note="three of forty: a tenth is four"),
    Row("correlated", True, log(others(3), nodes=40)),
    Row("correlated", True, marked_besides("n2", "n3"), note="two are marked besides"),
    Row("correlated", False, marked_besides("n2"), note="one is"),
    Row("drain_budget", False, log(others(3))),
    Row("drain_budget", True, log(others(4)), note="half of eight are treated"),
    Row("drain_budget", True, closed_by_us("n2", "n3", "n4", "n5"), note="or left to a person"),
    Row("drain_budget", False, closed_by_us("n2", "n3", "n4"), note="three are"),
    Row("drain_budget", False, closed_by_us("n1", "n2", "n3", "n4"), note="its own counts not"),
    Row("drain_budget", False, log(others(1), nodes=2), note="one of two"),
    Row("drain_budget", True, log(others(2), nodes=3), note="two of three"),
    Row(
        "drain_budget",
        False,
        log(others(5)),
        policy=replace(OWN, budgets=ConcurrentRecoveryBudgets(open_min=6, partition_min=6)),
        note="never less than the remedies under way",
    ),
    Row(
        "drain_budget",
        True,
        log(others(2), nodes=80),
        policy=replace(
            OWN,
            budgets=ConcurrentRecoveryBudgets(
                drain_fraction=0.01, partition_fraction=0.01, open_fraction=0.01
            ),
        ),
    ),
    Row("observing", True, view_of, policy=RecoveryPolicy()),
    Row("observing", False, view_of),
]


def name(row: Row) -> str:
    return f"{row.gate}-{'holds' if row.holds else 'passes'}-{row.note}"


@pytest.mark.parametrize("row", CASES, ids=name)
def test_gate(row: Row) -> None:
    view = row.view()
    counts = build_recovery_gate_counts(view, [row.c], row.policy, at(0))
    why = ROWS[row.gate].gate(row.c, view, counts, row.policy, at(0))
    assert bool(why) is row.holds, why


@pytest.mark.parametrize(("seconds", "stands"), [(3599, True), (3600, False)])
def test_approval_lasts_an_hour(seconds: float, stands: bool) -> None:
    view = view_of(log=[RequestTaken(at(0), 1, "approve", "n1", "eve", "", True)])
    assert is_target_approved_by_operator("n1", view, OWN, at(seconds)) is stands
    assert not is_target_approved_by_operator("n2", view, OWN, at(1))


CHECK = replace(FAULT, rule="gpu-count-nvml")
HELD_BACK = GateBlocked(at(-10), "n9", "correlated", "3 nodes within 10 min", CHECK.rule)


def test_a_node_that_is_well_and_an_order_by_hand_keep_no_mass_event_alive() -> None:
    well = NodeAssessment(generation("n2"), NodeCondition.HEALTHY, at(-10), None, ())
    found = RecoveryCandidate(
        generation(), slurm_node(1), CHECK, at(-10), "a GPU less", heard=at(0)
    )
    ordered = replace(found, by="eve")
    view = view_of(sick=[well], log=[HELD_BACK])
    assert build_recovery_gate_counts(view, [ordered], OWN, at(0)).lasting == {}
    assert build_recovery_gate_counts(view, [found], OWN, at(0)).lasting == {CHECK.rule: 1}
    still = view_of(sick=[well, faulty("n2", CHECK)], log=[HELD_BACK])
    assert build_recovery_gate_counts(still, [ordered], OWN, at(0)).lasting == {CHECK.rule: 1}


def test_an_instance_that_the_service_works_on_can_be_deleted() -> None:
    removal = replace(FAULT, ladder=(Remedy.DELETE,))
    leaving = RecoveryCandidate(
        generation(), slurm_node(1), removal, at(-10), "scaled down", heard=at(0)
    )
    view = view_status(InstanceStatus.PENDING)
    counts = build_recovery_gate_counts(view, [leaving], OWN, at(0))
    assert ROWS["provider_acts"].gate(leaving, view, counts, OWN, at(0)) in (None, "")

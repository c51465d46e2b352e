"""Which remedies may begin: what takes a slot, what holds a remedy, and who goes first."""

import pytest
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.gates import count_consecutive_launch_failures
from hpctl.engine.journal.events import Event, GateBlocked, RequestTaken, SignalSeen, StepStarted
from hpctl.engine.remedies import count_remedy_budget_use, find_blocked_remedies
from hpctl.engine.view import PlanningView
from hpctl.vocabulary.assessment import Urgency
from hpctl.vocabulary.cloud_facts import InstanceStatus
from hpctl.vocabulary.identity import InstanceId
from hpctl.vocabulary.policy import ConcurrentRecoveryBudgets, OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import StepKind
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmReservation
from tests.fakes.engine import advance_all, plan
from tests.fakes.values import (
    N1,
    OWN,
    at,
    faulty,
    node_name,
    opened,
    slurm_job,
    slurm_node,
    view_of,
)

LOST = ("cordon_seen", "jobs_gone", "remedy_accepted", "deadline")
CANCELLED = ("operator_cancelled",)
WITHDRAWN = ("cordon_seen", "withdrawn")
UNDER_REMEDY = ("cordon_seen", "jobs_gone", "remedy_accepted")
VACATED = ("cordon_seen", "jobs_gone")
ROOMY = ConcurrentRecoveryBudgets(correlated_min=99, open_min=9, partition_min=9, per_hour=99)


def recovery(number: int, seconds: float, *signals: str, **changes) -> list[Event]:
    """A recovery of a node that went through these signals, of a rule of its own."""
    rid = f"n-{number}"
    first = opened(rid, node_name(number), seconds, **{"rule": f"xid-{number}", **changes})
    return [first, *(SignalSeen(at(seconds + 1), rid, s, "") for s in signals)]


def ended(number: int, seconds: float, *signals: str, node: int = 1) -> list[Event]:
    """A recovery of the past."""
    rid = f"n-old{number}"
    first = opened(rid, node_name(node), seconds, rule="another")
    return [first, *(SignalSeen(at(seconds + 1), rid, s, "") for s in signals)]


def drained(*numbers: int, nodes: int = 8, owner: str = "n-{}") -> SchedulerView:
    """Slurm's nodes, of which some are drained by hpctl."""
    flags = frozenset({"DRAIN"})
    shown = {node_name(i): slurm_node(i) for i in range(1, nodes + 1)}
    for i in numbers:
        reason = format_hpctl_node_reason(owner.format(i), "x")
        shown[node_name(i)] = slurm_node(i, flags=flags, reason=reason)
    return SchedulerView(at(0), shown)


MINE = recovery(1, -100, *VACATED)
"""The recovery of n1 waits for its remedy to be ordered."""


class Row(Struct):
    gate: str
    log: list[Event]
    budgets: ConcurrentRecoveryBudgets = ConcurrentRecoveryBudgets(correlated_min=99)
    scheduler: SchedulerView | None = None
    note: str = ""


def under_way(*numbers: int, seconds: float = -500, by: str = "") -> list[Event]:
    """Recoveries whose remedy has begun."""
    return [e for i in numbers for e in recovery(i, seconds, *UNDER_REMEDY, by=by)]


FEW = replace(ROOMY, per_hour=2)
CASES = [
    Row("", [], note="nothing else is under way"),
    Row("", under_way(2)),
    Row("budget", under_way(2, 3), note="two are under way"),
    Row("budget", under_way(2, 3, by="ann"), note="two of an operator's"),
    Row("", recovery(2, -500, "cordon_seen") + recovery(3, -500, "cordon_seen"),
        note="two wait for jobs"),
    Row("budget", [], scheduler=drained(2, 3, owner="n-gone{}"), note="two are left closed"),
    Row("", [], scheduler=drained(2, owner="n-gone{}"), note="one is"),
    Row("budget", under_way(2), scheduler=drained(2, 3, owner="n-gone{}"), note="one each"),
    Row("", under_way(2, 3), replace(ROOMY, open_min=1), drained(nodes=80),
        note="a twentieth of 80 is four"),
    Row("budget", under_way(2, 3, 4, 5), replace(ROOMY, open_min=1), drained(nodes=80)),
    Row("budget", under_way(2, 3, 4), replace(ROOMY, partition_min=3, partition_fraction=0),
        note="three in the partition"),
    Row("budget", under_way(2, 3, seconds=-3599), FEW, note="two within the hour"),
    Row("", under_way(2, 3, seconds=-3602), FEW, note="an hour ago"),
    Row("", ended(1, -300, *WITHDRAWN, node=2) + ended(2, -300, *WITHDRAWN, node=3), FEW,
        note="withdrawn"),
    Row("", ended(1, -300, *CANCELLED) + ended(2, -300, *CANCELLED)),
    Row("offender", [e for i in (1, 2, 3) for e in ended(i, -300 * i, *CANCELLED)]),
    Row("", [e for i in (1, 2, 3) for e in ended(i, -300 * i, *CANCELLED, node=2)],
        note="of another node"),
    Row("", [e for i in (1, 2, 3) for e in ended(i, -300 * i, *WITHDRAWN)],
        note="never treated"),
    Row("offender", [e for i in (1, 2, 3) for e in ended(i, -300 * i, *CANCELLED)]
        + ended(4, -100, *WITHDRAWN), note="withdrawn once besides"),
    Row("", ended(1, -31 * 86400, *CANCELLED) + ended(2, -9, *CANCELLED)
        + ended(3, -5, *CANCELLED), note="one is forgotten"),
    Row("", ended(1, -900, *LOST, node=2)),
    Row("launch_breaker", ended(1, -900, *LOST, node=2) + ended(2, -600, *LOST, node=3)),
    Row("", ended(1, -90_000, *LOST, node=2) + ended(2, -600, *LOST, node=3),
        note="a day ago"),
    Row("", ended(1, -900, "deadline", node=2) + ended(2, -600, "deadline", node=3),
        note="never drained"),
]  # fmt: skip


def held(view: PlanningView, policy: RecoveryPolicy = OWN, seconds: float = 0) -> dict[str, str]:
    """The recoveries whose remedy waits, and the gate."""
    return {r: one.gate for r, one in find_blocked_remedies(view, policy, at(seconds)).items()}


def view_with(log: list[Event], scheduler: SchedulerView | None = None, **changes) -> PlanningView:
    return view_of(log=log, scheduler=scheduler or drained(), **changes)


@pytest.mark.parametrize("row", CASES, ids=lambda row: f"{row.gate or 'free'}-{row.note}")
def test_what_holds_the_remedy_of_a_vacated_node(row: Row) -> None:
    view = view_with([*row.log, *MINE], row.scheduler)
    assert held(view, replace(OWN, budgets=row.budgets)).get("n-1", "") == row.gate


def test_a_return_resets_the_launch_breaker() -> None:
    well = ("cordon_seen", "jobs_gone", "nothing_to_remedy", "return_seen")
    events = ended(1, -900, *LOST, node=2) + ended(2, -800, *LOST, node=3)
    assert count_consecutive_launch_failures(view_of(log=events).state, at(0), 86400) == 2
    events += ended(3, -700, *well, node=4)
    assert count_consecutive_launch_failures(view_of(log=events).state, at(0), 86400) == 0


def test_a_recovery_that_holds_a_slot_keeps_it_over_all_its_rungs() -> None:
    again = under_way(2, 3)[: len(UNDER_REMEDY) + 1]
    again += [SignalSeen(at(-400), "n-2", "reboot_in_vain", "")]
    order = StepStarted(at(-450), "n-3", StepKind.RESET, "n3", 1)
    log = [*again, *recovery(3, -500, *VACATED), order, *MINE]
    assert held(
        view_with(log), replace(OWN, budgets=ConcurrentRecoveryBudgets(correlated_min=99))
    ) == {"n-1": "budget"}


def test_free_slots_go_to_the_longest_open_recoveries() -> None:
    log = [e for i in (4, 2, 3, 1) for e in recovery(i, -100 * i, *VACATED)]
    policy = replace(OWN, budgets=ConcurrentRecoveryBudgets(correlated_min=99))
    assert held(view_with(log), policy) == {"n-1": "budget", "n-2": "budget"}
    why = find_blocked_remedies(view_with(log), policy, at(0))["n-1"].why
    assert "n-4 of n4" in why
    assert "n-3 of n3" in why
    assert len(count_remedy_budget_use(view_with(log), at(0)).holders) == 0, "before it is ordered"


@pytest.mark.parametrize(
    "changes",
    [{"by": "ann"}, {"ladder": ("await",)}, {"ladder": ("none",)}, {"ladder": ("ask_human",)}],
    ids=str,
)
def test_recovery_that_orders_nothing_needs_no_slot(changes) -> None:
    log = under_way(2, 3) + recovery(1, -100, *VACATED, **changes)
    assert held(view_with(log)) == {}


@pytest.mark.parametrize("mode", [OperatingMode.ASSIST, OperatingMode.OBSERVE])
def test_other_modes_order_nothing_and_need_no_slot(mode: OperatingMode) -> None:
    assert held(view_with(MINE + under_way(2, 3)), replace(OWN, mode=mode)) == {}


def test_node_in_maintenance_takes_no_slot_while_it_waits() -> None:
    log = recovery(2, -300, *VACATED) + recovery(3, -200, *VACATED) + MINE
    policy = replace(OWN, budgets=ConcurrentRecoveryBudgets(correlated_min=99))
    assert held(view_with(log), policy) == {"n-1": "budget"}
    kept = {"n2": SlurmReservation("bios", (node_name(2),), at(-60), at(3600), True)}
    assert held(view_with(log, maintenance=kept), policy) == {}


ONE_SLOT = replace(
    OWN,
    budgets=ConcurrentRecoveryBudgets(
        open_min=1, open_fraction=0.0, partition_min=1, partition_fraction=0.0, correlated_min=99
    ),
)
TWO_VACATED = [*MINE, *recovery(2, -50, *VACATED)]


def with_instance(status: InstanceStatus, instance: str = "i-n1") -> PlanningView:
    """Two recoveries wait for one slot; the instance of the first is in this state."""
    view = view_with(TWO_VACATED, drained(1, 2))
    mine = replace(view.instances[N1], id=InstanceId(instance), status=status)
    return replace(view, instances={**view.instances, N1: mine})


@pytest.mark.parametrize(
    ("view", "waits"),
    [
        (with_instance(InstanceStatus.RUNNING), "n-2"),
        (with_instance(InstanceStatus.FAILURE), "n-2"),
        (with_instance(InstanceStatus.SYSTEM_UPDATING), ""),
        (with_instance(InstanceStatus.PENDING), ""),
        # Somebody replaced it: that is a remedy under way.
        (with_instance(InstanceStatus.PENDING, "i-other"), "n-2"),
        (replace(view_with(TWO_VACATED, drained(1, 2)), instances={}), ""),
    ],
)
def test_an_instance_that_takes_no_order_takes_no_slot(view: PlanningView, waits: str) -> None:
    assert list(held(view, ONE_SLOT)) == ([waits] if waits else [])


def test_an_approval_lets_a_remedy_begin() -> None:
    word = RequestTaken(at(-1), 1, "approve", N1, "eve", "", True)
    assert held(view_with([*MINE, *under_way(2, 3), word])) == {}


def test_the_hold_is_in_the_plan_and_names_what_takes_the_slots() -> None:
    view = view_with(MINE + under_way(2, 3), drained(1, 2, 3))
    (hold,) = plan_holds(view)
    assert (hold.target, hold.gate, hold.approvable) == (N1, "budget", True)
    assert "2 remedies are under way (n-2 of n2, n-3 of n3)" in hold.why


def plan_holds(view: PlanningView) -> list[GateBlocked]:
    from hpctl.faults.catalogue import build_fault_rules

    return list(plan(view, OWN, build_fault_rules(), {}, at(0)).holds)


def test_proven_faults_close_their_nodes_whatever_takes_the_slots() -> None:
    """Two nodes wait for jobs, two are under remedy: three more are closed at once."""
    from hpctl.faults.catalogue import build_fault_rules

    log = under_way(2, 3) + recovery(4, -100, "cordon_seen") + recovery(5, -100, "cordon_seen")
    log += [e for i in (1, 2, 3) for e in ended(i, -300 * i, *CANCELLED)]
    sick = [faulty(node_name(i)) for i in (1, 6, 7)]
    view = view_of(20, sick, log=log)
    opens = plan(view, OWN, build_fault_rules(), {}, at(0)).opens
    assert [o.generation.node for o in opens] == ["n1", "n6", "n7"]


def test_a_remedy_waits_for_its_slot_and_its_deadline_begins_then() -> None:
    """It waits for days without an end, is allowed once, and has its whole time again."""
    day = 86400.0
    hold = GateBlocked(at(1), N1, "budget", "2 remedies are under way", "xid-1", True)
    full = MINE + under_way(2, 3)
    log: list[Event] = [*full, hold]

    def look(log: list[Event], seconds: float):
        scheduler = replace(drained(1, 2, 3), as_of=at(seconds))
        view = view_of(log=log, seconds=seconds, scheduler=scheduler)
        made = advance_all(view, OWN, at(seconds))
        mine = [move for move in made.moves if move.recovery == "n-1"]
        return mine, [due.do.kind for due in made.due if due.recovery == "n-1"]

    assert look(log, 2 * day) == ([], [])
    (late,), _ = look(log, 15 * day)
    assert late.signal == "deadline"
    free = [*log, *(SignalSeen(at(2 * day), f"n-{i}", "deadline", "") for i in (2, 3))]
    # Both are escalated; a person has put their nodes back into service.
    scheduler = replace(drained(1), as_of=at(2 * day))
    state = view_of(log=free, seconds=2 * day, scheduler=scheduler)
    policy = replace(OWN, budgets=ConcurrentRecoveryBudgets(launch_failures=9))
    (move,) = advance_all(state, policy, at(2 * day)).moves
    assert (move.recovery, move.signal) == ("n-1", "remedy_allowed")
    after = [*free, move]
    state = view_of(log=after, seconds=2 * day, scheduler=scheduler)
    made = advance_all(state, policy, at(2 * day))
    assert made.moves == ()
    assert [due.do.kind for due in made.due] == [StepKind.REBOOT]


def test_a_node_that_waits_for_a_job_takes_no_slot_until_the_job_ends() -> None:
    job = slurm_job(3, requeue=False, user="alice")
    log = recovery(2, -500, "cordon_seen", urgency=Urgency.NOW) + MINE
    view = view_of(log=log, scheduler=replace(drained(1, 2), jobs={job.id: job}))
    assert (
        held(view, replace(OWN, budgets=ConcurrentRecoveryBudgets(open_min=1, partition_min=1)))
        == {}
    )

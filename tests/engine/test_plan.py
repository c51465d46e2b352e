"""What becomes a candidate, and how ids, ladders and rungs come about."""

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import (
    Event,
    GateBlocked,
    JobRecoveryOpened,
    NodeRecoveryOpened,
    RequestTaken,
    SignalSeen,
)
from hpctl.engine.journal.state import replay_events
from hpctl.engine.kinds import RecoveryPlan
from hpctl.engine.view import PlanningView, Request, group_jobs_by_node
from hpctl.faults.catalogue import build_fault_rules as catalogue_rules
from hpctl.vocabulary.assessment import NodeAssessment, NodeCondition, Remedy, Urgency
from hpctl.vocabulary.cloud_facts import Instance, InstanceStatus
from hpctl.vocabulary.model import NodeHealth
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import StepKind
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.fakes.engine import advance_all, plan, take
from tests.fakes.values import (
    OWN,
    at,
    attempt,
    faulty,
    finding,
    generation,
    node_name,
    opened,
    slurm_job,
    slurm_node,
    view_of,
)

RULES = catalogue_rules()
N1, N2 = node_name(1), node_name(2)
CANCEL = SignalSeen(at(-1), "n-1", "operator_cancelled", "eve")
BROKEN_CHECK = RULES.classes["gpu-count-nvml"]
WELL = ("cordon_seen", "jobs_gone", "nothing_to_remedy", "return_seen")


def planned(view: PlanningView) -> RecoveryPlan:
    return plan(
        view,
        OWN,
        RULES,
        group_jobs_by_node(list(view.state.open_nodes), view.scheduler.jobs),
        at(0),
    )


def node_opens(view: PlanningView) -> list[NodeRecoveryOpened]:
    return [e for e in planned(view).opens if isinstance(e, NodeRecoveryOpened)]


def test_a_faulty_node_opens_with_its_evidence():
    (event,) = node_opens(view_of(sick=[faulty()]))
    assert (event.generation, event.rule, event.rung) == (generation(), "xid-79", 0)
    assert (event.findings, event.passed[-1]) == (faulty().findings, "observing")


def given_back(
    reason: str = "hpctl:n-1 xid 79", ended: tuple[str, ...] = WELL, *flags: str
) -> PlanningView:
    """A node that bears the Reason of a recovery which is over."""
    over = [SignalSeen(at(-5), "n-1", signal, "") for signal in ended]
    node = replace(slurm_node(1), flags=frozenset({"DRAIN", *flags}), reason=reason)
    return view_of(scheduler=SchedulerView(at(0), {N1: node}, {}), log=[opened(), *over])


def test_a_drain_that_slurmctld_restored_is_lifted_again():
    (event,) = node_opens(given_back())
    assert (event.rule, event.ladder, event.by) == ("drain-restored", (Remedy.NONE,), "hpctl")
    assert event.urgency is Urgency.AFTER_JOBS
    assert "drain_budget (waived by hpctl)" in event.passed
    watching = plan(given_back(), replace(OWN, mode=OperatingMode.OBSERVE), RULES, {}, at(0))
    assert (watching.opens, watching.holds[0].why) == ((), "mode observe: would give n1 back")


def test_plan_lifts_no_drain_of_another_user():
    for reason in ("bad fan", "hpctl:n-2 xid 79"):
        assert node_opens(given_back(reason)) == []
    for end in ("operator_cancelled", "needs_human"):
        assert node_opens(given_back(ended=("cordon_seen", end))) == []


@pytest.mark.parametrize(("code", "opens"), [("silent", 0), ("down", 1)])
def test_a_slurmd_that_does_not_answer_after_a_resume_is_no_new_evidence(code, opens):
    """slurmctld says so of each node for a moment after its RESUME."""
    sign = replace(finding(code, -0.5), check="slurm", device="")
    sick = faulty()
    judged = replace(sick, findings=(*sick.findings, sign))
    log = [opened(), SignalSeen(at(-5), "n-1", "cordon_seen", ""), CANCEL]
    assert len(node_opens(view_of(sick=[judged], log=log))) == opens


def test_slurms_own_drain_that_keeps_our_reason_is_not_lifted():
    assert node_opens(given_back("hpctl:n-1 xid 79", WELL, "INVALID_REG")) == []


def test_a_node_that_slurm_does_not_know_is_no_candidate():
    assert planned(view_of(sick=[faulty("n99")])) == RecoveryPlan()


def silent(seconds: float = -100) -> NodeAssessment:
    return NodeAssessment(generation(), NodeCondition.UNKNOWN, at(seconds), why="agent-silent")


def lost_view(node=None, instance: Instance | None = None, heard: float = -100) -> PlanningView:
    view = view_of(sick=[silent()])
    view = replace(view, health={**view.health, N1: NodeHealth(generation(), at(heard))})
    if node is not None:
        nodes = {**view.scheduler.nodes, N1: node}
        view = replace(view, scheduler=SchedulerView(at(0), nodes))
    return view if instance is None else replace(view, instances={N1: instance})


def test_silent_agent_is_not_a_fault():
    assert planned(lost_view()) == RecoveryPlan()
    # Nor is a node lost whose agent speaks, whatever its checks cannot tell.
    assert planned(lost_view(slurm_node(1, state="DOWN"), heard=-20)) == RecoveryPlan()


@pytest.mark.parametrize(
    "view",
    [
        lost_view(slurm_node(1, state="DOWN", reason="Not responding")),
        lost_view(slurm_node(1, flags=frozenset({"NOT_RESPONDING"}))),
        lost_view(instance=Instance("i-n1", InstanceStatus.FAILURE, node=N1)),
    ],
    ids=["down", "not responding", "cloud says Failure"],
)
def test_silence_that_a_second_observer_confirms_is_a_lost_node(view):
    decided = planned(view)
    assert [*(o.rule for o in node_opens(view)), *(h.rule for h in decided.holds)] == ["node-lost"]


@pytest.mark.parametrize(
    ("seconds", "again"), [(-2, False), (-1, False), (-0.5, True)], ids=["older", "same", "newer"]
)
def test_a_person_is_not_overruled_by_old_lines(seconds, again):
    log: list[Event] = [opened(seconds=-60), CANCEL]
    assert bool(node_opens(view_of(sick=[faulty(seconds=seconds)], log=log))) is again


@pytest.mark.parametrize(("first", "again"), [(-300, False), (-0.5, True)], ids=["lasts", "anew"])
def test_a_person_is_not_overruled_by_a_condition_that_lasts(first, again):
    log: list[Event] = [opened(seconds=-60), CANCEL]
    ill = faulty(seconds=first)
    lasting = replace(ill.findings[0], check="efa.devices", first=at(first), last=at(0))
    assert bool(node_opens(view_of(sick=[replace(ill, findings=(lasting,))], log=log))) is again


def test_the_same_rule_on_the_same_instance_climbs_one_rung():
    rid = "n-old"
    before = [opened("n-old", seconds=-900)]
    well = [SignalSeen(at(-800), rid, s, "") for s in WELL]
    (event,) = node_opens(view_of(sick=[faulty()], log=[*before, *well]))
    assert event.rung == 1
    other = [opened("n-old", seconds=-900, rule="another")]
    (event,) = node_opens(view_of(sick=[faulty()], log=[*other, *well]))
    assert event.rung == 0


def test_many_that_lost_their_own_hardware_stay_closed_and_wait_for_a_word():
    """Given back, they would take the very job that was moved away from them."""
    sick = [faulty(node_name(i)) for i in (1, 2, 3)]
    roomy = replace(OWN, budgets=replace(OWN.budgets, open_min=5, partition_min=5))
    decided = plan(view_of(sick=sick), roomy, RULES, {}, at(0))
    assert len(decided.opens) == 3
    assert not decided.holds
    drained = ("cordon_seen", "jobs_gone")
    log: list[Event] = list(decided.opens)
    log += [SignalSeen(at(1), e.recovery, s, "") for e in decided.opens for s in drained]
    reasons = {e.generation.node: format_hpctl_node_reason(e.recovery, "x") for e in decided.opens}
    flags = frozenset({"DRAIN"})
    nodes = {n: replace(slurm_node(), name=n, flags=flags, reason=r) for n, r in reasons.items()}
    closed = view_of(sick=sick, log=log, scheduler=SchedulerView(at(0), nodes, {}))
    assert not [m for m in advance_all(closed, roomy, at(2)).moves if m.signal == "withdrawn"]
    assert not advance_all(closed, roomy, at(600 - 1)).due
    blocked = plan(closed, roomy, RULES, {}, at(2)).holds
    assert {(h.target, h.gate, h.approvable) for h in blocked} == {
        (node_name(i), "correlated", True) for i in (1, 2, 3)
    }
    word = RequestTaken(at(3), 1, "approve", N1, "eve", "", True)
    approved = view_of(sick=sick, log=[*log, word], scheduler=closed.scheduler)
    assert {h.target for h in plan(approved, roomy, RULES, {}, at(4)).holds} == {N2, node_name(3)}


def test_budget_does_not_count_a_node_that_serves_again():
    well = [SignalSeen(at(-20), "n-1", s, "") for s in WELL]
    before = opened("n-1", N1, -300, rule=BROKEN_CHECK.rule)
    sick = [faulty(node_name(i), BROKEN_CHECK) for i in (2, 3)]
    roomy = replace(OWN, budgets=replace(OWN.budgets, open_min=5, partition_min=5))
    assert not plan(view_of(sick=sick, log=[before, *well]), roomy, RULES, {}, at(0)).holds
    still = view_of(sick=sick, log=[before])
    assert {h.gate for h in plan(still, roomy, RULES, {}, at(0)).holds} == {"correlated"}


@pytest.mark.parametrize("sinces", [(-2000, -1, 0), (-2000, -1300, -650)])
def test_recovery_is_not_withdrawn_for_facts_that_the_gate_has_seen(sinces):
    """Old faults of one rule that come free together must not open, be withdrawn, open again."""
    sick = [faulty(node_name(i), BROKEN_CHECK, seconds=s) for i, s in enumerate(sinces, 1)]
    policy = replace(OWN, budgets=replace(OWN.budgets, open_min=5, partition_min=5))
    decided = plan(view_of(sick=sick), policy, RULES, {}, at(0))
    assert "correlated" in {h.gate for h in decided.holds}
    assert not advance_all(view_of(sick=sick, log=decided.opens), policy, at(0)).moves


def test_an_approved_recovery_is_not_withdrawn_when_the_hour_is_over():
    """The hour is for opening: its node may wait for days until its jobs have ended."""
    later = 3 * OWN.budgets.approval_s
    sick = [faulty(node_name(i), BROKEN_CHECK, seconds=-1) for i in (1, 2, 3)]
    approval = RequestTaken(at(-1), 1, "approve", "n1", "ann", "as you wish", True)
    slow = opened(urgency=Urgency.AFTER_JOBS, rule=BROKEN_CHECK.rule)
    log: list[Event] = [slow, SignalSeen(at(1), slow.recovery, "cordon_seen", "")]
    reason = format_hpctl_node_reason(slow.recovery, "Xid 79")
    nodes = {
        N1: slurm_node(1, flags=frozenset({"DRAIN"}), reason=reason),
        **{node_name(i): slurm_node(i) for i in range(2, 9)},
    }
    jobs = {j.id: j for j in [slurm_job()]}
    scheduler = SchedulerView(at(later), nodes, jobs)

    def due(log: list[Event]) -> list[StepKind]:
        view = view_of(sick=sick, log=log, seconds=later, scheduler=scheduler)
        return [d.do.kind for d in advance_all(view, OWN, at(later)).due]

    assert due(log) == [StepKind.RETURN], "a mass event gives back what nobody approved"
    assert due([approval, *log]) == []


def two_faulty_nodes_of_a_job(first=(), second=(), seconds=1, **job):
    """The DOWN orders for n1 and n2, which both are drained; `first`, `second`: more flags."""
    flags = [frozenset({"DRAIN", *more}) for more in (first, second)]
    nodes = {
        node_name(i): slurm_node(i, flags=each, reason=format_hpctl_node_reason(f"n-{i}", "x"))
        for i, each in enumerate(flags, 1)
    }
    log: list[Event] = [opened(f"n-{i}", node_name(i)) for i in (1, 2)]
    log += [SignalSeen(at(0), f"n-{i}", "cordon_seen", "") for i in (1, 2)]
    # The job's own recovery goes by what becomes of n2.
    log.append(JobRecoveryOpened(at(0), "j-1", attempt(), "n-2", (N1, N2), "x"))
    log.append(SignalSeen(at(0), "j-1", "stop_wanted", ""))
    scheduler = SchedulerView(at(seconds), nodes, {1: slurm_job(**job)})
    view = view_of(log=log, seconds=seconds, scheduler=scheduler)
    due = advance_all(view, OWN, at(seconds)).due
    return [d.do.target for d in due if d.do.kind is StepKind.DOWN]


def test_one_node_of_a_job_is_set_down_and_silent_ones_come_first():
    silent = ("NOT_RESPONDING",)
    assert two_faulty_nodes_of_a_job() == [N2]
    assert two_faulty_nodes_of_a_job(first=silent) == [N1]
    assert sorted(two_faulty_nodes_of_a_job(silent, silent)) == [N1, N2]
    requeued = {"state": "PENDING", "flags": frozenset({"COMPLETING"}), "restarts": 1}
    assert two_faulty_nodes_of_a_job(**requeued) == []
    assert two_faulty_nodes_of_a_job(first=silent, **requeued) == [N1]


HOLD = GateBlocked(at(-5), "n2", "budget", "2 are open", "xid-79", True)
FIRM = GateBlocked(at(-5), "n3", "foreign_drain", "bad fan", "xid-79", False)
OURS = {"flags": frozenset({"DRAIN"}), "reason": format_hpctl_node_reason("n-0", "x")}


def asked(
    verb: str, target: str, view: PlanningView, policy: RecoveryPolicy = OWN
) -> tuple[RequestTaken, list[Event]]:
    *events, taken = take(Request(7, at(-1), verb, target, "eve", "MUNGE"), view, policy, at(0))
    assert (taken.request, taken.by) == (7, "eve")
    return taken, events


def ordered(verb: str, view: PlanningView) -> NodeRecoveryOpened:
    """The recovery that a request about n1 opens."""
    taken, (order,) = asked(verb, "n1", view)
    assert taken.ok, taken.answer
    assert isinstance(order, NodeRecoveryOpened)
    return order


def with_node(**changes) -> PlanningView:
    return view_of(scheduler=SchedulerView(at(0), {node_name(1): slurm_node(1, **changes)}))


@pytest.mark.parametrize(
    ("verb", "target", "log", "why"),
    [
        ("dance", "", [], "no such request"),
        ("approve", "n9", [HOLD], "nothing is held for 'n9'; held now: n2"),
        ("approve", "n3", [FIRM], "no approval can lift"),
        ("cancel", "n-7", [], "no open recovery 'n-7'"),
        ("replace", "n99", [], "Slurm knows no node 'n99'"),
        ("replace", "n1", [opened()], "treats n1 already"),
        ("return", "n1", [], "not drained by hpctl"),
    ],
)
def test_impossible_order_is_refused_with_the_reason(verb, target, log, why):
    taken, events = asked(verb, target, view_of(log=log))
    assert not taken.ok
    assert why in taken.answer
    assert events == []


def test_an_approval_names_the_gate():
    taken, _ = asked("approve", "n2", view_of(log=[HOLD]))
    assert (taken.ok, "budget" in taken.answer) == (True, True)
    assert replay_events([HOLD, taken]).approvals == {"n2": at(0)}


@pytest.mark.parametrize("target", ["n-1", "n1", "j-1"])
def test_cancel_takes_a_recovery_or_a_node(target):
    log = [opened(), JobRecoveryOpened(at(-1), "j-1", attempt(), "n-1", (), "its node")]
    taken, events = asked("cancel", target, view_of(log=log))
    assert taken.ok
    (signal,) = events
    assert signal.recovery == ("j-1" if target == "j-1" else "n-1")
    state = replay_events([*log, signal])
    assert len(state.open_nodes) + len(state.open_jobs) == 1


@pytest.mark.parametrize(
    ("verb", "remedy", "urgency"),
    [
        ("replace", Remedy.REPLACE, Urgency.AFTER_JOBS),
        ("reboot", Remedy.REBOOT, Urgency.AFTER_JOBS),
        ("replace-now", Remedy.REPLACE, Urgency.NOW),
        ("reboot-now", Remedy.REBOOT, Urgency.NOW),
    ],
)
def test_an_order_opens_a_recovery_past_the_counting_gates(verb, remedy, urgency):
    order = ordered(verb, view_of(log=[opened(f"n-{i}", node_name(i)) for i in (2, 3)]))
    assert (order.by, order.ladder, order.urgency) == ("eve", (remedy,), urgency)
    assert order.rule == f"operator-{remedy}"
    assert "drain_budget (waived by eve)" in order.passed


@pytest.mark.parametrize("verb", ["replace", "reboot-now"])
def test_mode_assist_refuses_at_once_what_only_its_deadline_would_end(verb):
    view, assist = view_of(), replace(OWN, mode=OperatingMode.ASSIST)
    taken, events = asked(verb, "n1", view, assist)
    assert (taken.ok, events) == (False, [])
    assert "in mode assist the daemon re" in taken.answer
    assert f"`hpctl cluster {verb.removesuffix('-now')} n1`" in taken.answer
    # Without a cloud a person repairs the node, and the recovery asks for one.
    absent = replace(view, provider=replace(view.provider, present=False))
    assert asked(verb, "n1", absent, assist)[0].ok
    assert asked("return", "n1", with_node(**OURS), assist)[0].ok


def test_an_order_does_not_pass_the_safety_gates():
    taken, events = asked("replace", "n1", with_node(flags=frozenset({"DRAIN"}), reason="bad fan"))
    assert (taken.ok, events) == (False, [])
    assert "foreign_drain" in taken.answer


def test_a_return_needs_a_node_that_hpctl_drained():
    assert ordered("return", with_node(**OURS)).ladder == (Remedy.NONE,)


def test_order_names_the_present_instance():
    """An agent's word, or else the cloud's; for an instance that never came up, the cloud's."""
    assert ordered("replace", view_of()).generation == generation()
    assert ordered("replace", view_of(health={})).generation.instance == "i-n1"
    fresh = Instance("i-new", InstanceStatus.FAILURE, node=node_name(1))
    heard = {node_name(1): NodeHealth(generation(), at(-900))}
    view = view_of(instances={node_name(1): fresh}, health=heard)
    assert ordered("replace", view).generation.instance == "i-new"

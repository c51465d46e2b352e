"""Which changes of capacity open, what moves them, and what they must never touch."""

import pytest
from msgspec.structs import replace

from hpctl.capacity.advance import decide_next_capacity_change_step
from hpctl.capacity.change_facts import CapacityChangeFacts
from hpctl.capacity.facts import is_node_idle, list_jobs_waiting_for_nodes, make_scaling_input
from hpctl.capacity.plan import make_empty_node_risks, plan_all_capacity_changes
from hpctl.capacity.removals import list_ended_removal_undrain_candidates
from hpctl.engine.gates import build_recovery_gate_counts, count_consecutive_launch_failures
from hpctl.engine.journal.events import (
    Event,
    JobRecoveryOpened,
    SignalSeen,
    StepResolved,
    StepStarted,
)
from hpctl.engine.journal.state import InconsistentEventError, replay_events
from hpctl.engine.view import PlanningView, RecoveryCandidate
from hpctl.vocabulary.assessment import Remedy
from hpctl.vocabulary.change import (
    ENDS,
    TRANSITIONS,
    ChangeKind,
    ChangeOpened,
    ClusterChangePhase,
    ClusterChangeSignal,
    create_cluster_change,
)
from hpctl.vocabulary.cloud_facts import Instance, InstanceStatus
from hpctl.vocabulary.demand import JobResourceRequest
from hpctl.vocabulary.job_recovery import JobRecoveryPhase
from hpctl.vocabulary.node_recovery import (
    REMOVAL_OVER,
    SCALE_DOWN,
    NodeRecoveryPhase,
    NodeRecoverySignal,
)
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.pause import Pause
from hpctl.vocabulary.policy import InstanceGroupSizeLimits, OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import RecoveryPhaseMove, StepKind, StepStartDecision
from hpctl.vocabulary.spares_reservation import RESERVATION
from tests.fakes.capacity import N1, N2, N3, SCALE, SPARE, cluster, moves, pending, removal, steps
from tests.fakes.values import at, attempt, faulty, generation, node_name, opened, slurm_job
from tests.unflawed import unflawed


def opens(view, policy, now):
    return unflawed(plan_all_capacity_changes(view, policy, now, make_empty_node_risks))


def test_idle_nodes_leave_one_change_each_and_a_waiting_job_brings_more() -> None:
    gone = opens(cluster(), SCALE, at(0))
    assert ([c.rule for c in gone], len({c.recovery for c in gone})) == ([SCALE_DOWN] * 6, 6)
    assert {(c.ladder, c.by, c.group) for c in gone} == {((Remedy.DELETE,), "autoscale", "workers")}
    (grows,) = opens(cluster(idle=0, jobs=(pending(wants=3),)), SCALE, at(0))
    assert (grows.kind, grows.count, grows.size) == (ChangeKind.ADD, 3, 11)


@pytest.mark.parametrize(
    "what",
    [
        {"flags": frozenset({"DRAIN"})}, {"flags": frozenset({"COMPLETING"})},
        {"flags": frozenset({"MAINTENANCE", "RESERVED"})}, {"flags": frozenset({"NOT_RESPONDING"})},
        {"state": "DOWN"}, {"state": "ALLOCATED"}, {"last_busy": None}, {"last_busy": at(-599)},
    ],
)  # fmt: skip
def test_a_node_that_is_not_plainly_idle_never_leaves(what):
    changes = opens(cluster(change={N1: what}), SCALE, at(0))
    assert N1 not in {c.generation.node for c in changes}
    assert changes


def test_neither_a_spare_nor_a_suspect_nor_one_under_recovery_leaves() -> None:
    log = (opened(node=N2),)
    view = cluster(sick=[faulty(N3)], log=log, reservations={"hers": (N1,)})
    assert not {N1, N2, N3} & {c.generation.node for c in opens(view, SCALE, at(0))}
    assert is_node_idle(view.scheduler.nodes[node_name(4)], view)


PAUSED = cluster()
PAUSED.state.pauses = {"": Pause("", "ana", at(0))}


@pytest.mark.parametrize(
    "view",
    [
        cluster(stopped="the kill switch"), cluster(current=False), cluster(seconds=-61),
        replace(cluster(), provider=replace(cluster().provider, cluster_status="Updating")),
        replace(cluster(), provider=replace(cluster().provider, as_of=at(-301))), PAUSED,
    ],
    ids=["stopped", "slurm unread", "slurm old", "updating", "cloud old", "paused"],
)  # fmt: skip
def test_nothing_opens_where_nothing_may_be_concluded(view):
    assert opens(view, SCALE, at(0)) == ()
    assert opens(cluster(), replace(SCALE, mode=OperatingMode.OBSERVE), at(0)) == ()


LACKS_NODES = (
    "Resources",
    "Priority",
    "ReqNodeNotAvail,_May_be_reserved_for_other_job",
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_pri",
)
LACKS_MORE = (
    "ReqNodeNotAvail,_UnavailableNodes:n7 JobHeldUser Dependency BeginTime QOSMaxNodePerUserLimit"
    " AssocGrpNodeLimit Licenses None"
)


@pytest.mark.parametrize("reason", [*LACKS_NODES, *LACKS_MORE.split()])
def test_only_a_job_that_lacks_nodes_and_nothing_else_counts(reason: str) -> None:
    view = cluster(jobs=(pending(reason=reason),))
    assert any(w.grows for w in list_jobs_waiting_for_nodes(view, at(0))) is (reason in LACKS_NODES)


def test_a_limit_of_the_partition_counts_only_where_more_nodes_lift_it() -> None:
    assert list_jobs_waiting_for_nodes(
        cluster(jobs=(pending(wants=9, reason="PartitionNodeLimit"),)), at(0)
    )
    assert not list_jobs_waiting_for_nodes(
        cluster(jobs=(pending(wants=8, reason="PartitionNodeLimit"),)), at(0)
    )
    array = pending(wants=100, reason="PartitionConfig", asks=JobResourceRequest(tasks=100))
    assert not list_jobs_waiting_for_nodes(cluster(jobs=(array,)), at(0)), (
        "a task alone is not too large"
    )


ADD = ChangeOpened(at(0), "s-2", ChangeKind.ADD, "workers", "job 9", count=2, size=10)
ARRIVING = (
    ADD,
    StepStarted(at(1), ADD.recovery, StepKind.ADD, 1, "workers"),
    StepResolved(at(2), ADD.recovery, StepKind.ADD, 1, Outcome.accepted()),
    SignalSeen(at(2), ADD.recovery, ClusterChangeSignal.ORDER_TAKEN, "x"),
)
REMOVE = removal()
OURS = {"flags": frozenset({"DRAIN"}), "reason": format_hpctl_node_reason(REMOVE.recovery, "x")}


def ours(log, **more):
    """The cluster after these events, with n1 drained by us."""
    return cluster(log=log, change={N1: OURS}, **more)


def closed(*more: Event) -> tuple[Event, ...]:
    return (
        REMOVE,
        SignalSeen(at(1), REMOVE.recovery, NodeRecoverySignal.CORDON_SEEN, "x"),
        SignalSeen(at(1), REMOVE.recovery, NodeRecoverySignal.JOBS_GONE, "x"),
        *more,
    )


def test_a_node_is_closed_first_and_deleted_by_its_id_when_it_is_seen_closed_and_idle() -> None:
    (drain,) = steps(cluster(log=(REMOVE,)))
    assert (drain.kind, drain.target) == (StepKind.DRAIN, N1)
    assert moves(ours((REMOVE,))) == [NodeRecoverySignal.CORDON_SEEN]
    for policy in (SCALE, replace(SCALE, mode=OperatingMode.ASSIST)):
        (delete,) = steps(ours(closed()), policy, seconds=2)
        assert (delete.kind, delete.target) == (StepKind.REMOVE, "i-n1")


def test_a_node_that_got_work_meanwhile_is_given_back() -> None:
    job = slurm_job(5, nodes=(N1,))
    assert moves(cluster(log=(REMOVE,), jobs=(job,))) == [NodeRecoverySignal.WITHDRAWN]
    (give,) = steps(ours(closed(), jobs=(job,)), seconds=3)
    assert (give.kind, give.target) == (StepKind.RETURN, N1)
    begun = closed(StepStarted(at(3), REMOVE.recovery, StepKind.RETURN, 1, N1))
    (again,) = steps(ours(begun), seconds=30)
    assert again.kind is StepKind.RETURN, "what is being given back is not deleted after all"
    assert moves(cluster(log=begun), seconds=4) == [NodeRecoverySignal.WITHDRAWN]


def test_a_node_whose_drain_is_in_doubt_and_that_got_work_is_not_drained_again() -> None:
    view = cluster(log=(REMOVE, StepStarted(at(0), REMOVE.recovery, StepKind.DRAIN, 1, N1)))
    assert [s.kind for s in steps(view, seconds=30)] == [StepKind.DRAIN]
    busy = replace(view, scheduler=replace(view.scheduler, jobs={5: slurm_job(5, nodes=(N1,))}))
    assert moves(busy, seconds=30) == [NodeRecoverySignal.WITHDRAWN]
    assert replay_events((REMOVE,)).last_of_node == {}, "the last fault of the node is another one"


@pytest.mark.parametrize("reason", ["Resources", "None"])
def test_a_job_that_comes_while_a_node_is_closed_has_it(reason: str) -> None:
    job = pending(reason=reason, eligible=at(1))
    assert moves(cluster(log=(REMOVE,), jobs=(job,))) == [NodeRecoverySignal.WITHDRAWN]
    assert [s.kind for s in steps(ours(closed(), jobs=(job,)), seconds=2)] == [StepKind.RETURN]
    elsewhere = pending(partition="dev", eligible=at(1))
    view = ours(closed(), jobs=(elsewhere,))
    assert [s.kind for s in steps(view, seconds=2)] == [StepKind.REMOVE]
    assert opens(cluster(jobs=(pending(reason=reason, eligible=at(-1)),)), SCALE, at(0)) == ()


def test_an_operator_who_resumes_or_takes_the_node_keeps_it() -> None:
    assert moves(cluster(log=closed()), seconds=2) == [NodeRecoverySignal.OPERATOR_TOOK_OVER]
    hers = {"flags": frozenset({"DRAIN"}), "reason": "disk swap, Ada"}
    begun = StepStarted(at(1), REMOVE.recovery, StepKind.RETURN, 1, N1)
    for log in ((REMOVE,), closed(), closed(begun)):
        assert moves(cluster(log=log, change={N1: hers}), seconds=2) == [
            NodeRecoverySignal.OPERATOR_TOOK_OVER
        ]


@pytest.mark.parametrize("mode", [OperatingMode.OWN, OperatingMode.ASSIST])
def test_a_node_that_the_health_agent_marks_is_left_to_its_fault(mode: OperatingMode) -> None:
    marked = {N1: {"flags": frozenset({"FAIL"}), "reason": "Action:Reboot"}}
    policy = replace(SCALE, mode=mode)
    for log in ((REMOVE,), closed()):
        view = cluster(log=log, change=marked)
        assert moves(view, policy, seconds=2) == [NodeRecoverySignal.OPERATOR_TOOK_OVER]
    under_way = cluster(log=deleting(Outcome.accepted()), change=marked)
    assert moves(under_way, policy, seconds=5) == [NodeRecoverySignal.REMEDY_ACCEPTED]


def deleting(outcome: Outcome | None) -> tuple[Event, ...]:
    begun = StepStarted(at(2), REMOVE.recovery, StepKind.REMOVE, 1, "i-n1")
    if outcome is None:
        return closed(begun)
    return closed(begun, StepResolved(at(3), REMOVE.recovery, StepKind.REMOVE, 1, outcome))


def without(view: PlanningView, instance: str) -> PlanningView:
    """The view without an instance."""
    listed = {i: x for i, x in view.provider.instances.items() if i != instance}
    joined = {n: x for n, x in view.instances.items() if x.id != instance}
    return replace(view, provider=replace(view.provider, instances=listed), instances=joined)


def test_a_deletion_in_doubt_is_looked_for_before_it_is_repeated() -> None:
    for outcome in (None, Outcome.ambiguous("timeout")):
        assert steps(ours(deleting(outcome), seconds=10), seconds=10) == []
        late = ours(deleting(outcome), seconds=200)
        assert [s.attempt for s in steps(late, seconds=200)] == [2]
        seen = without(late, "i-n1")
        assert moves(seen, seconds=200) == [NodeRecoverySignal.REMEDY_ACCEPTED]
        gone = (
            *deleting(outcome),
            SignalSeen(at(200), "n-1", NodeRecoverySignal.REMEDY_ACCEPTED, "x"),
        )
        assert moves(replace(seen, state=replay_events(gone)), seconds=200) == [
            NodeRecoverySignal.INSTANCE_GONE
        ]


def test_a_deletion_that_stays_in_doubt_is_waited_for() -> None:
    log: tuple[Event, ...] = closed()
    lost = Outcome.ambiguous("timeout")
    for number in range(1, SCALE.node.step_attempts + 1):
        when = at(200 * number)
        log += (
            StepStarted(when, REMOVE.recovery, StepKind.REMOVE, number, "i-n1"),
            StepResolved(when, REMOVE.recovery, StepKind.REMOVE, number, lost),
        )
    view = ours(log, seconds=2000)
    assert steps(view, seconds=2000) == moves(view, seconds=2000) == []


def test_nothing_takes_back_a_deletion_that_may_be_under_way() -> None:
    job = slurm_job(5, nodes=(N1,))
    for view in (ours(deleting(None), jobs=(job,)), cluster(log=deleting(None))):
        assert moves(view, seconds=5) == [], "neither a job nor a resume"
        assert steps(view, seconds=5) == []


def test_a_refusal_after_a_doubt_takes_no_doubt_away() -> None:
    """NodeIdInUse is what our own deletion under way looks like: the node must get no work."""
    log: tuple[Event, ...] = deleting(None)
    busy = Outcome.rejected("NodeIdInUse", "wait", transient=True)
    for number in range(2, 19):
        when = at(200 * number)
        log += (
            StepStarted(when, REMOVE.recovery, StepKind.REMOVE, number, "i-n1"),
            StepResolved(when, REMOVE.recovery, StepKind.REMOVE, number, busy),
        )
    for seconds, moved in ((3590, []), (3700, [NodeRecoverySignal.DEADLINE])):
        view = ours(log, seconds=seconds)
        assert moves(view, seconds=seconds) == moved
        assert steps(view, seconds=seconds) == [], "nothing is given back"


def left_closed(view: PlanningView, seconds: float) -> list[RecoveryCandidate]:
    return list_ended_removal_undrain_candidates(view, SCALE, view.state.open_nodes, at(seconds))


def test_a_node_that_was_closed_for_nothing_is_given_back_however_long_that_takes() -> None:
    """The cloud was away for an hour; then slurmctld would not resume; then it would."""
    view = ours(closed(), seconds=3700)
    away = replace(view, provider=replace(view.provider, as_of=at(0)))
    assert [s.kind for s in steps(away, seconds=3700)] == [StepKind.RETURN]
    log = closed(SignalSeen(at(3900), REMOVE.recovery, NodeRecoverySignal.NEEDS_HUMAN, "x"))
    assert left_closed(ours(log, seconds=4000), 4000)[0].fault.rule == REMOVAL_OVER
    back = removal("n-2", rule=REMOVAL_OVER, ladder=(Remedy.NONE,), at=at(4000))
    no = (*log, back, SignalSeen(at(4001), back.recovery, NodeRecoverySignal.NEEDS_HUMAN, "no"))
    for seconds, tried in ((4002, 0), (4601, 1)):
        drained = {**OURS, "reason": format_hpctl_node_reason(back.recovery, "x")}
        seen = cluster(log=no, change={N1: drained}, seconds=seconds)
        assert len(left_closed(seen, seconds)) == tried
    cancelled = closed(
        SignalSeen(at(5), REMOVE.recovery, NodeRecoverySignal.OPERATOR_CANCELLED, "x")
    )
    assert left_closed(ours(cancelled, seconds=10), 10) == [], "it waits for `hpctl undrain`"
    doubt = (
        *deleting(None),
        SignalSeen(at(3700), REMOVE.recovery, NodeRecoverySignal.DEADLINE, "x"),
    )
    assert left_closed(ours(doubt, seconds=4000), 4000) == [], "it may still be deleted"


def test_a_refused_deletion_gives_the_node_back_and_a_busy_one_is_asked_again() -> None:
    view = ours(deleting(Outcome.rejected("ValidationException", "no")), seconds=10)
    assert [s.kind for s in steps(view, seconds=10)] == [StepKind.RETURN]
    busy = deleting(Outcome.rejected("NodeIdInUse", "wait", transient=True))
    for seconds, again in ((20, [2]), (200, [2])):
        assert [s.attempt for s in steps(ours(busy, seconds=seconds), seconds=seconds)] == again
    gone = ours(deleting(Outcome.rejected("NodeIdNotFound", "gone")), seconds=10)
    assert steps(gone, seconds=10) == moves(gone, seconds=10) == [], "the list still has it"


def test_an_addition_has_its_size_and_ends_when_all_is_in_slurm() -> None:
    (order,) = steps(cluster(log=(ADD,)))
    assert (order.kind, order.target, order.count, order.size) == (StepKind.ADD, "workers", 2, 10)
    assert moves(cluster(log=ARRIVING[:-1]), seconds=2) == [ClusterChangeSignal.ORDER_TAKEN]
    view = cluster(log=ARRIVING, seconds=5)
    ten = {"workers": replace(view.provider.groups["workers"], target=10)}
    assert moves(replace(view, provider=replace(view.provider, groups=ten)), seconds=5) == []
    full = replace(view.provider, instances={**view.provider.instances, **more(2)})
    full = replace(full, groups=ten)
    there = cluster(log=ARRIVING, seconds=5, provider=full)
    assert moves(replace(there, provider=full), seconds=5) == [], "not in Slurm yet"
    old = {i: replace(x, launched=at(-5400)) for i, x in more(2).items()}
    broken = replace(full, instances={**view.provider.instances, **old})
    assert moves(replace(there, provider=broken), seconds=5) == [ClusterChangeSignal.ARRIVED]


def more(count: int) -> dict[str, Instance]:
    """Instances that run, of which Slurm knows nothing yet."""
    ids = [f"i-new{i}" for i in range(count)]
    return {i: Instance(i, InstanceStatus.RUNNING, "workers", i.replace("i-", "ip-")) for i in ids}


@pytest.mark.parametrize(
    ("status", "arriving"),
    [
        (InstanceStatus.RUNNING, 0),
        (InstanceStatus.ATTACHING, 1),
        (InstanceStatus.UNKNOWN, 1),
        (InstanceStatus.SHUTTING_DOWN, 1),
        (InstanceStatus.DETACHING, 1),
    ],
)
def test_an_instance_in_any_other_state_than_running_is_none_that_serves(status, arriving) -> None:
    """One that leaves is made up for by the service: the group's target is as before."""
    view = cluster()
    one = replace(next(iter(view.provider.instances.values())), status=status)
    instances = {**view.provider.instances, one.id: one}
    seen = replace(view, provider=replace(view.provider, instances=instances))
    (before,) = make_scaling_input(view, SCALE, at(0)).groups.values()
    (group,) = make_scaling_input(seen, SCALE, at(0)).groups.values()
    assert (before.alive - group.alive, group.arriving) == (arriving, arriving)


def test_an_addition_that_a_user_takes_back_is_not_ordered_again_at_once() -> None:
    """Nor is one ordered twice because the service tells of it a moment later."""
    job = pending(wants=10)
    for seconds, moved in ((5, []), (182, [ClusterChangeSignal.REFUSED])):
        assert moves(cluster(log=ARRIVING, seconds=seconds, jobs=(job,)), seconds=seconds) == moved
    over = (*ARRIVING, SignalSeen(at(182), ADD.recovery, ClusterChangeSignal.REFUSED, "x"))
    assert opens(cluster(log=over, seconds=781, jobs=(job,)), SCALE, at(781)) == ()
    assert opens(cluster(log=over, seconds=782, jobs=(job,)), SCALE, at(782))


@pytest.mark.parametrize(
    "policy",
    [
        replace(SCALE, autoscale=replace(SCALE.autoscale, enabled=False)),
        replace(SCALE, mode=OperatingMode.OBSERVE),
        replace(SCALE, autoscale=replace(SCALE.autoscale, groups={})),
        replace(
            SCALE,
            autoscale=replace(SCALE.autoscale, groups={"workers": InstanceGroupSizeLimits(8, 12)}),
        ),
    ],
    ids=["off", "observe", "not named", "at the minimum by now"],
)
def test_what_is_no_longer_wanted_is_not_ordered(policy: RecoveryPolicy) -> None:
    assert moves(cluster(log=(REMOVE,)), policy) == [NodeRecoverySignal.WITHDRAWN]
    if policy.mode is not OperatingMode.OBSERVE:
        given_back = steps(ours(closed()), policy, seconds=2)
        assert [s.kind for s in given_back] == [StepKind.RETURN]
    doubt = ours(deleting(None), seconds=200)
    assert steps(doubt, policy, seconds=200) == moves(doubt, policy, seconds=200) == []
    if policy.autoscale.groups.get("workers") != InstanceGroupSizeLimits(8, 12):
        assert moves(cluster(log=(ADD,)), policy) == [ClusterChangeSignal.REFUSED]


def test_a_second_hand_that_takes_nodes_out_never_has_us_go_below_the_minimum() -> None:
    view = cluster(log=(REMOVE, removal("n-2", N2)))
    assert len(steps(view)) == 2
    gone = {i: x for n, i in enumerate(view.provider.instances) if n < 3
            for x in [view.provider.instances[i]]}  # fmt: skip
    fewer = replace(view, provider=replace(view.provider, instances=gone))
    assert [s.target for s in steps(fewer)] == [N1], "one may still go"
    assert moves(fewer) == [NodeRecoverySignal.WITHDRAWN]


def test_a_machine_that_left_by_our_order_is_not_taken_for_lost() -> None:
    from hpctl.engine.plan import find_node_recovery_candidates
    from hpctl.faults.catalogue import build_fault_rules

    gone = deleting(Outcome.accepted())
    for signal in (NodeRecoverySignal.REMEDY_ACCEPTED, NodeRecoverySignal.INSTANCE_GONE):
        gone += (SignalSeen(at(4), REMOVE.recovery, signal, "x"),)
        down = {N1: {"state": "DOWN", "flags": OURS["flags"], "reason": OURS["reason"]}}
        sick = faulty(N1, build_fault_rules().classes["node-lost"])
        view = cluster(log=gone, change=down, sick=[sick])
        assert unflawed(find_node_recovery_candidates(view, build_fault_rules(), at(5))) == []
    assert unflawed(
        find_node_recovery_candidates(cluster(change=down, sick=[sick]), build_fault_rules(), at(5))
    )


def test_a_new_machine_under_the_old_name_is_given_back_to_slurm() -> None:
    gone = deleting(Outcome.accepted())
    for signal in (NodeRecoverySignal.REMEDY_ACCEPTED, NodeRecoverySignal.INSTANCE_GONE):
        gone += (SignalSeen(at(4), REMOVE.recovery, signal, "x"),)
    view = ours(gone, idle=0, seconds=10)
    assert left_closed(view, 10) == [], "the old machine is still listed"
    new = replace(view.instances[N1], id="i-new")
    heard = replace(view.health[N1], generation=generation(N1, 2, "i-new"))
    seen = replace(view, instances={**view.instances, N1: new}, health={**view.health, N1: heard})
    (back,) = left_closed(seen, 10)
    assert (back.fault.ladder, back.by, back.group) == ((Remedy.NONE,), "autoscale", "workers")
    assert back.generation.instance == "i-new"
    silent = replace(seen, health=view.health)
    assert left_closed(silent, 10) == [], "its agent has not reported yet"


def test_instances_on_their_way_out_are_not_deleted_again() -> None:
    view = ours(deleting(None), seconds=9)
    going = replace(view.instances[N1], status=InstanceStatus.SHUTTING_DOWN)
    instances = {**view.provider.instances, going.id: going}
    seen = replace(view, provider=replace(view.provider, instances=instances))
    assert moves(seen, seconds=9) == [NodeRecoverySignal.REMEDY_ACCEPTED]


def test_a_removal_is_no_fault() -> None:
    """It spends no budget of the faults', and no failure of its own stops them."""
    log = tuple(removal(f"n-{n}", node_name(n)) for n in range(1, 5))
    assert build_recovery_gate_counts(cluster(log=log), (), SCALE, at(0)).open == 0
    late: tuple[Event, ...] = (*closed(),)
    for signal in (NodeRecoverySignal.REMEDY_ACCEPTED, NodeRecoverySignal.DEADLINE):
        late += (SignalSeen(at(2), REMOVE.recovery, signal, "x"),)
    view = ours(late)
    assert build_recovery_gate_counts(view, (), SCALE, at(3)).open == 0, (
        "nor does the node that stays drained"
    )
    assert count_consecutive_launch_failures(view.state, at(3), 3600) == 0


def events_of_earlier(*signals: str) -> tuple[Event, ...]:
    """A removal as an earlier version wrote it."""
    opened = ChangeOpened(
        at(0), "s-1", ChangeKind.REMOVE, "workers", "idle", node=N1, instance="i-n1"
    )
    return (opened, *(SignalSeen(at(1), "s-1", signal, "x") for signal in signals))


IN_USE, GONE, TAKEN, SHUT = "in_use", "gone", "order_taken", "closed_seen"
NO, BACK, LATE, HERS = "refused", "back", "deadline", "operator_took_over"


@pytest.mark.parametrize(
    ("signals", "phase"),
    [
        ((), NodeRecoveryPhase.OPEN),
        ((SHUT,), NodeRecoveryPhase.VACATED),
        ((SHUT, TAKEN), NodeRecoveryPhase.REMEDYING),
        ((SHUT, TAKEN, GONE), NodeRecoveryPhase.REMOVED),
        ((SHUT, GONE), NodeRecoveryPhase.REMOVED),
        ((IN_USE,), NodeRecoveryPhase.CANCELLED),
        ((SHUT, IN_USE), NodeRecoveryPhase.CANCELLED),
        ((SHUT, IN_USE, BACK), NodeRecoveryPhase.CANCELLED),
        ((SHUT, IN_USE, GONE), NodeRecoveryPhase.CANCELLED),
        ((SHUT, NO, NO), NodeRecoveryPhase.CANCELLED),
        ((SHUT, NO, LATE), NodeRecoveryPhase.CANCELLED),
        ((SHUT, NO, HERS), NodeRecoveryPhase.CANCELLED),
        ((NO,), NodeRecoveryPhase.ESCALATED),
        ((LATE, BACK), NodeRecoveryPhase.ESCALATED),
        ((SHUT, TAKEN, LATE), NodeRecoveryPhase.ESCALATED),
        ((SHUT, LATE), NodeRecoveryPhase.ESCALATED),
        ((HERS,), NodeRecoveryPhase.CANCELLED),
    ],
)
def test_a_removal_of_an_earlier_version_is_the_recovery_in_the_matching_phase(
    signals: tuple[str, ...], phase: NodeRecoveryPhase
) -> None:
    state = replay_events(events_of_earlier(*signals))
    rec = state.nodes["s-1"]
    assert (rec.phase, rec.group, rec.rule) == (phase, "workers", SCALE_DOWN)
    assert rec.generation.instance == "i-n1"
    assert state.open_nodes == ({} if rec.ended else {N1: "s-1"})
    assert (state.changes, state.open_changes, state.last_of_node) == ({}, {}, {})


def test_what_an_earlier_version_gave_back_is_given_back_by_its_own_recovery() -> None:
    begun = StepStarted(at(2), "s-1", StepKind.RETURN, 1, N1)
    log = (*events_of_earlier(SHUT, IN_USE), begun)
    shut = {"flags": frozenset({"DRAIN"}), "reason": format_hpctl_node_reason("s-1", "x")}
    assert len(left_closed(cluster(log=log, change={N1: shut}, seconds=10), 10)) == 1
    about = ChangeOpened(at(3), "s-2", ChangeKind.RETURN, "workers", "x", node=N1, cause="s-1")
    log += (about, StepStarted(at(4), "s-2", StepKind.RETURN, 1, N1))
    log += (SignalSeen(at(5), "s-2", BACK, "x"),)
    assert replay_events(log).nodes["s-2"].phase is NodeRecoveryPhase.RETURNED
    assert replay_events(log).open_nodes == {}


def test_a_fault_could_open_beside_a_removal_of_an_earlier_version() -> None:
    fault = opened("n-9", N1, 2)
    for first, second in ((events_of_earlier(), (fault,)), ((fault,), events_of_earlier())):
        state = replay_events((*first, *second, SignalSeen(at(3), "s-1", SHUT, "x")))
        assert state.open_nodes == {N1: "n-9"}
        assert state.nodes["s-1"].phase is NodeRecoveryPhase.CANCELLED


NAME = f"{RESERVATION}workers"


def wanted(view, policy=SPARE):
    changes = unflawed(plan_all_capacity_changes(view, policy, at(0), make_empty_node_risks))
    assert len(changes) <= 1
    return changes[0] if changes else None


def set_to(view, policy=SPARE):
    change = wanted(view, policy)
    assert change is not None
    return change


def test_exactly_as_many_idle_healthy_nodes_are_kept_as_wanted() -> None:
    assert set_to(cluster(sick=[faulty(N1)])).nodes == (N2, N3)
    assert wanted(cluster(reservations={NAME: (N2, N3)})) is None
    assert set_to(cluster(reservations={NAME: (N1, N2, N3)})).nodes == (N1, N2)
    none = replace(SPARE, spares={"workers": 0})
    assert set_to(cluster(reservations={NAME: (N1,)}), none).nodes == ()


def test_what_was_kept_for_a_group_that_is_no_longer_named_is_let_go() -> None:
    change = set_to(cluster(reservations={NAME: (N1, N2)}), replace(SPARE, spares={}))
    assert (change.group, change.nodes) == ("workers", ())


def test_a_node_that_is_verified_is_kept_before_it_is_given_back() -> None:
    log: tuple[Event, ...] = (opened(node=N1),)
    for signal in ("cordon_seen", "jobs_gone", "nothing_to_remedy"):
        log += (SignalSeen(at(0), "n-1", signal, "x"),)
    shut = {"flags": frozenset({"DRAIN"}), "reason": format_hpctl_node_reason("n-1", "x")}
    assert set_to(cluster(idle=1, log=log, change={N1: shut})).nodes == (N1,)


def victim(wants: int, phase: JobRecoveryPhase = JobRecoveryPhase.STARTING) -> tuple[Event, ...]:
    """Job 9 lost n8 and is about to start again."""
    rid = "j-1"
    begun = JobRecoveryOpened(at(-20), rid, attempt(9), "", (node_name(8),), "hit", partition="all")
    log: tuple[Event, ...] = (begun,)
    for signal in ("stop_wanted", "queued", "started"):
        log += (SignalSeen(at(-10), rid, signal, "x"),)
    assert replay_events(log).jobs[rid].phase is phase
    return log


def test_a_victim_that_is_short_of_nodes_gets_as_many_as_it_lost() -> None:
    job = pending(9, wants=5, submit=attempt(9).submit, excluded=(node_name(8),))
    kept = {NAME: (N1, N2)}
    free = {n: {"flags": frozenset({"RESERVED"})} for n in (N1, N2)}
    # slurmctld shows the flag seconds later than the reservation.
    for seen in (free, {}):
        view = cluster(idle=5, jobs=(job,), log=victim(5), reservations=kept, change=seen)
        change = set_to(view)
        assert (change.released, change.nodes, change.cause) == ((N1,), (N2,), "j-1")
    done = (change, SignalSeen(at(0), change.recovery, ClusterChangeSignal.SET_SEEN, "x"))
    after = cluster(
        idle=5, jobs=(job,), log=(*victim(5), *done), reservations={NAME: (N2,)},
        change={N2: free[N2]},
    )  # fmt: skip
    assert wanted(after) is None, "it has had what it lost, and what it has is not taken back"


def test_a_victim_gets_the_spare_on_its_own_leaf_where_the_topology_is_known() -> None:
    job = pending(9, wants=5, submit=attempt(9).submit)
    known = {N1: "s0", N2: "s1", node_name(8): "s1"}
    for leaves, spare in ((known, N2), ({N2: "s1"}, N1), ({}, N1)):
        kept = {NAME: (N1, N2)}
        view = cluster(idle=5, jobs=(job,), log=victim(5), reservations=kept, leaves=leaves)
        assert set_to(view).released == (spare,)


def test_a_victim_that_finds_enough_free_nodes_gets_no_spare() -> None:
    job = pending(9, wants=3, submit=attempt(9).submit)
    free = {n: {"flags": frozenset({"RESERVED"})} for n in (N1, N2)}
    view = cluster(idle=5, jobs=(job,), log=victim(3), reservations={NAME: (N1, N2)}, change=free)
    assert wanted(view) is None


def test_a_refused_reservation_is_left_alone_for_a_while() -> None:
    first = set_to(cluster())
    log = (first, SignalSeen(at(0), first.recovery, ClusterChangeSignal.REFUSED, "busy"))
    assert wanted(cluster(log=log)) is None
    assert unflawed(
        plan_all_capacity_changes(
            cluster(log=log, seconds=31), SPARE, at(31), make_empty_node_risks
        )
    )


def test_a_spare_that_got_a_job_meanwhile_is_not_asked_for_again() -> None:
    change = set_to(cluster())
    taken = {change.nodes[0]: {"state": "ALLOCATED"}}
    assert moves(cluster(log=(change,), change=taken), SPARE, 0) == [ClusterChangeSignal.REFUSED]
    log = (change, SignalSeen(at(0), change.recovery, ClusterChangeSignal.REFUSED, "x"))
    assert change.nodes[0] not in set_to(cluster(log=log, change=taken)).nodes


def test_every_open_phase_has_a_way_out_and_a_deadline() -> None:
    for kind in (ChangeKind.ADD, ChangeKind.SPARES, ChangeKind.BURN_IN):
        reached = {ClusterChangePhase.OPEN} | {
            to for (k, _, _), to in TRANSITIONS.items() if k is kind
        }
        for phase in reached - ENDS:
            assert (kind, phase, ClusterChangeSignal.DEADLINE) in TRANSITIONS
            change = replace(
                create_cluster_change(replace(ADD, kind=kind, nodes=(N1,))), phase=phase
            )
            answer = decide_next_capacity_change_step(
                change, CapacityChangeFacts(cloud_at=at(-9)), SCALE, at(10**7)
            )
            assert isinstance(answer, RecoveryPhaseMove | StepStartDecision), (kind, phase)
            if isinstance(answer, RecoveryPhaseMove):
                assert (kind, phase, answer.signal) in TRANSITIONS


def test_two_changes_about_the_same_thing_are_corruption() -> None:
    removals = (*events_of_earlier(), replace(events_of_earlier()[0], recovery="s-9"))
    for log in ((ADD, replace(ADD, recovery="s-9")), (REMOVE, removal("n-9")), removals):
        with pytest.raises(InconsistentEventError):
            replay_events(log)

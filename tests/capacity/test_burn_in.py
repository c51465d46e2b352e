"""Which idle node is tested, what ends that at once, and what is left of it after a crash."""

import pytest
from msgspec.structs import replace

from hpctl.capacity.advance import decide_next_capacity_change_step
from hpctl.capacity.change_facts import CapacityChangeFacts
from hpctl.capacity.plan import RankRisks, make_empty_node_risks, plan_all_capacity_changes
from hpctl.engine.journal.events import SignalSeen, StepResolved, StepStarted
from hpctl.engine.journal.state import replay_events
from hpctl.vocabulary.change import ChangeKind, ChangeOpened, ClusterChangePhase
from hpctl.vocabulary.model import DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import BurnInPolicy, NodeRecoveryPolicy, OperatingMode, RecoveryPolicy
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import RecoveryPhaseMove, StepKind, StepStartDecision, WaitDecision
from tests.fakes.capacity import N1, N2, N3, cluster, pending
from tests.fakes.values import at, faulty, generation, opened, slurm_job
from tests.unflawed import unflawed

DAY = 86400.0
BURN = RecoveryPolicy(mode=OperatingMode.OWN, idle=BurnInPolicy(every_s=DAY, qos="low"))


def chosen(view, policy=BURN, rank_risks: RankRisks = make_empty_node_risks):
    """The nodes whose test begins, in order."""
    found = unflawed(plan_all_capacity_changes(view, policy, at(0), rank_risks))
    assert {c.kind for c in found} <= {ChangeKind.BURN_IN}
    return [c.node for c in found]


def past(node, day, phase="tested", instance=None):
    """A burn-in of a node that ended on a day."""
    rid, when = f"b-{node}-{day}", day * DAY
    start = ChangeOpened(at(when), rid, ChangeKind.BURN_IN, "all", "idle", node=node,
                         instance=instance or generation(node).instance)  # fmt: skip
    return [start, *(SignalSeen(at(when), rid, what, "") for what in ("order_taken", phase))]


def every(policy=BURN, count=100):
    return replace(policy, idle=replace(policy.idle, at_once=count))


def test_one_at_a_time_and_none_where_it_is_off_or_observed() -> None:
    assert (
        len(chosen(cluster())),
        chosen(cluster(), replace(BURN, mode=OperatingMode.OBSERVE)),
    ) == (1, [])
    assert chosen(cluster(), RecoveryPolicy(mode=OperatingMode.OWN)) == []
    assert chosen(cluster(log=past(N1, 0)[:2])) == []


def test_a_node_is_tested_again_after_its_time_or_as_another_instance() -> None:
    assert N1 not in chosen(cluster(log=past(N1, -0.5)), every())
    assert N1 in chosen(cluster(log=past(N1, -1.1)), every())
    assert N1 in chosen(cluster(log=past(N1, -0.5, instance="i-before")), every())
    soon, late = past(N1, -1000 / DAY, "refused"), past(N1, -2000 / DAY, "refused")
    assert N1 not in chosen(cluster(log=soon), every())
    assert N1 in chosen(cluster(log=late), every())


@pytest.mark.parametrize(
    "what",
    [
        {"flags": frozenset({"DRAIN"})}, {"flags": frozenset({"MAINTENANCE", "RESERVED"})},
        {"state": "ALLOCATED"}, {"last_busy": at(-200)}, {"partitions": ()},
        {"reason": format_hpctl_node_reason("n-1", "x"), "flags": frozenset({"DRAIN"})},
    ],
)  # fmt: skip
def test_a_node_that_is_not_plainly_idle_is_left_alone(what) -> None:
    found = chosen(cluster(change={N1: what}), every())
    assert N1 not in found
    assert found


def test_nor_one_in_recovery_reserved_suspect_protected_or_silent() -> None:
    view = cluster(sick=[faulty(N3)], log=(opened(node=N2),), reservations={"hers": (N1,)})
    assert not {N1, N2, N3} & set(chosen(view, every()))
    shut = replace(every(), node=NodeRecoveryPolicy(protected=frozenset({N1})))
    assert N1 not in chosen(cluster(), shut)
    mine = replace(cluster().instances[N1], protected=True)
    assert N1 not in chosen(replace(cluster(), instances=cluster().instances | {N1: mine}), every())
    quiet = {**cluster().health, N1: NodeHealth(generation(N1), at(-500))}
    assert N1 not in chosen(replace(cluster(), health=quiet), every())
    assert chosen(cluster(), replace(every(), partitions=frozenset({"other"}))) == []
    assert chosen(replace(cluster(), stopped="the kill switch is there"), every()) == []


def test_no_node_is_tested_where_a_users_job_waits() -> None:
    assert chosen(cluster(jobs=(pending(),)), every()) == []
    assert chosen(cluster(jobs=(pending(partition="other"),)), every())
    assert chosen(cluster(jobs=(pending(reason="JobHeldUser"),)), every())


def begun(*events):
    """A burn-in with what has happened to it."""
    (opens,) = unflawed(plan_all_capacity_changes(cluster(), BURN, at(0), make_empty_node_risks))
    state = replay_events([opens, *(e(opens.recovery) if callable(e) else e for e in events)])
    return state.changes[opens.recovery]


def taken(rid):
    return StepStarted(at(0), rid, StepKind.TEST, 1, f"hpctl-burn-in-{rid}")


def answered(rid):
    return StepResolved(at(0), rid, StepKind.TEST, 1, Outcome.accepted("7"))


def runs(rid):
    return SignalSeen(at(1), rid, "order_taken", "job 7")


def wanted(rid):
    return SignalSeen(at(2), rid, "in_use", "job 9 waits for nodes")


def ends(rid):
    return StepStarted(at(2), rid, StepKind.END_TEST, 1, f"hpctl-burn-in-{rid}")


def killed(rid):
    return StepResolved(at(2), rid, StepKind.END_TEST, 1, Outcome.accepted())


def after(change, seconds=2.0, **facts):
    return decide_next_capacity_change_step(
        change, CapacityChangeFacts(at(0), **facts), BURN, at(seconds)
    )


def test_its_job_is_submitted_behind_all_others() -> None:
    step = after(begun())
    assert isinstance(step, StepStartDecision)
    assert (step.kind, step.nodes, step.idle, step.qos) == (StepKind.TEST, (N1,), True, "low")
    assert step.command.endswith(f"--level quick --id {step.target.removeprefix('hpctl-burn-in-')}")
    assert step.limit_s == BURN.acceptance.quick_s


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("COMPLETED", ClusterChangePhase.DONE),
        ("FAILED", ClusterChangePhase.FAILED),
        ("TIMEOUT", ClusterChangePhase.FAILED),
        ("CANCELLED", ClusterChangePhase.FAILED),
        ("", ClusterChangePhase.FAILED),
    ],
)
def test_without_a_result_only_a_test_that_passed_counts(state, phase) -> None:
    change = begun(taken, answered, runs)
    job = slurm_job(7, state=state) if state else None
    move = after(change, BURN.acceptance.result_s + 1, job=job, unwanted="job 9 waits for nodes")
    assert isinstance(move, RecoveryPhaseMove)
    assert change.on(move.signal, at(2), move.why).phase is phase


RAN = Finding("acceptance.run", DeviceVerdict.OK, at(2), at(2))
PASSED = Finding("acceptance.hbm", DeviceVerdict.OK, at(2), at(2))
BROKEN = Finding(
    "acceptance.gemm", DeviceVerdict.FAIL, at(2), at(2), code="replace", detail="GPU 3"
)


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED"])
def test_a_job_that_has_ended_waits_for_its_result_and_then_counts(state) -> None:
    change, job = begun(taken, answered, runs), slurm_job(7, state=state, end=at(2))
    assert isinstance(after(change, 10, job=job), WaitDecision)
    move = after(change, 10, job=job, results=(PASSED, RAN))
    assert isinstance(move, RecoveryPhaseMove)
    assert (change.on(move.signal, at(2), "").phase, move.tests) == (ClusterChangePhase.DONE, ())


def test_what_failed_goes_into_the_change_whatever_its_job_does() -> None:
    for job in (slurm_job(7), slurm_job(7, state="FAILED"), None):
        move = after(begun(taken, answered, runs), job=job, results=(PASSED, BROKEN, RAN))
        assert isinstance(move, RecoveryPhaseMove)
        assert (move.signal, move.why) == ("tested", "failed: gemm: GPU 3")
        assert move.tests == (BROKEN,)


def test_a_waiting_job_ends_it_whether_or_not_slurmctld_has_answered() -> None:
    for change in (begun(), begun(taken), begun(taken, answered, runs)):
        move = after(change, job=slurm_job(7), unwanted="job 9 waits for nodes")
        assert isinstance(move, RecoveryPhaseMove)
        leaving = change.on(move.signal, at(2), move.why)
        assert leaving.phase is ClusterChangePhase.LEAVING
        step = after(leaving, job=slurm_job(7))
        assert isinstance(step, StepStartDecision)
        assert (step.kind, step.target) == (StepKind.END_TEST, f"hpctl-burn-in-{change.id}")


def test_it_is_over_once_its_job_is_gone_and_not_before() -> None:
    ended = begun(taken, answered, runs, wanted, ends, killed)
    assert not isinstance(after(ended, 2.5, job=slurm_job(7)), RecoveryPhaseMove)
    again = after(ended, 4.0, job=slurm_job(7))
    assert isinstance(again, StepStartDecision)
    assert again.attempt == 2
    gone = after(ended, 2.5, job=slurm_job(7, state="CANCELLED"))
    assert isinstance(gone, RecoveryPhaseMove)
    assert ended.on(gone.signal, at(3), "").phase is ClusterChangePhase.CANCELLED


def test_one_that_lasts_too_long_is_ended() -> None:
    change = begun(taken, answered, runs)
    late = BURN.acceptance.quick_s + BURN.acceptance.result_s + BURN.node.doubt_window_s + 2
    move = after(change, late, job=slurm_job(7))
    assert isinstance(move, RecoveryPhaseMove)
    assert change.on(move.signal, at(late), "").phase is ClusterChangePhase.LEAVING

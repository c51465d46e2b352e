"""Which jobs a node under treatment has hit."""

from typing import Any

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import Event, JobRecoveryOpened, SignalSeen, StepStarted
from hpctl.engine.plan import NODE_LOST
from hpctl.engine.view import PlanningView
from hpctl.jobs.plan_hits import plan_fault_affected_job_recoveries
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.identity import JobAttempt
from hpctl.vocabulary.model import DeviceVerdict, Finding
from hpctl.vocabulary.reason import format_hpctl_node_reason
from hpctl.vocabulary.recovery import StepKind
from hpctl.vocabulary.slurm_facts import LAUNCH_FAILED, SlurmJob
from tests.detection.test_host_spot import noticed
from tests.engine.test_plan import planned
from tests.fakes.capacity import SCALE, cluster, removal
from tests.fakes.values import OWN, at, attempt, node_name, opened, slurm_job, slurm_node, view_of
from tests.unflawed import unflawed

N1, N2 = node_name(1), node_name(2)


def job_opens(view: PlanningView) -> list[JobRecoveryOpened]:
    return [e for e in planned(view).opens if isinstance(e, JobRecoveryOpened)]


def treated(urgency: Urgency = Urgency.NOW, *moves: str, **more) -> list[Event]:
    return [opened(urgency=urgency, **more), *(SignalSeen(at(0), "n-1", m, "") for m in moves)]


def test_a_job_on_a_node_treated_now_is_hit():
    (event,) = job_opens(view_of(jobs=[slurm_job()], log=treated()))
    assert (event.attempt, event.cause, event.bad_nodes) == (attempt(), "n-1", (N1,))


def test_a_job_may_run_on_where_the_node_is_treated_after_jobs():
    assert not job_opens(view_of(jobs=[slurm_job()], log=treated(Urgency.AFTER_JOBS)))
    dead = slurm_job(state="FAILED", end=at(-1))
    assert job_opens(view_of(jobs=[dead], log=treated(Urgency.AFTER_JOBS)))


def requeued(**changes: Any) -> SlurmJob:
    """Return a job that was requeued five seconds before the fault and waits out its delay."""
    values = {"state": "PENDING", "restarts": 1, "reason": "BeginTime", "submit": at(-15)}
    return slurm_job(**{**values, **changes})


@pytest.mark.parametrize(
    ("job", "hit"),
    [
        (slurm_job(state="FAILED", end=at(-70)), True),
        (slurm_job(state="FAILED", end=at(-71)), False),
        (slurm_job(state="NODE_FAIL", end=at(-1)), True),
        (slurm_job(state="COMPLETED", end=at(-1)), False),
        (slurm_job(state="CANCELLED", end=at(-1)), False),
        (requeued(restarts=3), True),
        (requeued(), True),
        (requeued(reason="JobArrayTaskLimit"), True),
        (requeued(reason="JobHeldUser"), False),
        (requeued(restarts=0), False),
        (requeued(eligible=at(106)), True),
        # Put off by a person, for hours: the node that it once ran on says nothing of that.
        (requeued(eligible=at(30_000)), False),
        # A person requeued it, and the fault came more than a minute later.
        (requeued(submit=at(-70)), True),
        (requeued(submit=at(-71)), False),
        # slurmctld held it for its launch, which no person did.
        (requeued(submit=at(-71), reason=LAUNCH_FAILED), True),
    ],
    ids=lambda v: (
        f"{v.state}-{v.reason}-{v.end or v.submit}" if isinstance(v, SlurmJob) else str(v)
    ),
)
def test_which_ended_jobs_were_hit(job, hit):
    """The fault was seen ten seconds before; a minute of slack is given."""
    found = job_opens(view_of(jobs=[job], log=treated()))
    assert bool(found) is hit
    # One that Slurm requeued counts by the run that was hit.
    ran = job.restarts - (job.state == "PENDING")
    assert [event.attempt.restarts for event in found] == [ran] * hit


SILENT = Finding("slurm", DeviceVerdict.FAIL, at(-10), at(-10), "", "down")


@pytest.mark.parametrize(
    ("fault", "node", "hit"),
    [
        ({}, {}, False),
        ({"rule": NODE_LOST}, {}, True),
        ({"findings": (SILENT,)}, {}, True),
        ({}, {"slurmd_start": at(-200)}, True),
        ({}, {"slurmd_start": at(-11)}, True),
        # Slurm took the job off a node that was marked besides, or that a person replaces.
        ({}, {"state": "DOWN"}, True),
        ({}, {"flags": frozenset({"NOT_RESPONDING"})}, True),
        # It registered after the fault, long before the requeue, or before the run began.
        ({}, {"slurmd_start": at(-9)}, False),
        ({}, {"slurmd_start": at(-2000)}, False),
        ({}, {"slurmd_start": at(-206)}, False),
    ],
)
def test_slurm_takes_a_job_off_a_dead_node_long_before_the_node_is_called_lost(fault, node, hit):
    """The job was requeued eighty seconds before the fault, by a person or because of the node."""
    view = view_of(jobs=[requeued(submit=at(-90), ran_from=at(-205))], log=treated(**fault))
    seen = {**view.scheduler.nodes, N1: slurm_node(1, **node)}
    view = replace(view, scheduler=replace(view.scheduler, nodes=seen))
    assert bool(job_opens(view)) is hit


@pytest.mark.parametrize("node", [{"state": "DOWN"}, {"flags": frozenset({"NOT_RESPONDING"})}])
def test_a_node_that_is_down_while_hpctl_replaces_it_has_lost_no_job_that_left_before(node):
    ordered = StepStarted(at(1), "n-1", StepKind.REPLACE, 1, f"i-{N1}", "")
    view = view_of(jobs=[requeued(submit=at(-90), ran_from=at(-205))], log=[*treated(), ordered])
    seen = {**view.scheduler.nodes, N1: slurm_node(1, **node)}
    assert job_opens(replace(view, scheduler=replace(view.scheduler, nodes=seen))) == []


def test_a_job_that_waits_is_not_hit_by_the_fault_of_a_node_that_slurm_no_longer_has():
    view = view_of(jobs=[requeued(submit=at(-90))], log=treated())
    rest = {name: node for name, node in view.scheduler.nodes.items() if name != N1}
    view = replace(view, scheduler=replace(view.scheduler, nodes=rest))
    assert not job_opens(view)


@pytest.mark.parametrize(
    ("changes", "hit"),
    [
        ({"start": at(-15)}, False),
        ({"start": at(-22)}, False),
        ({"start": at(-24)}, True),
        ({"start": at(-9)}, True),
        ({"start": None}, True),
        ({"start": at(-15), "nodes": (N2,)}, True),
        ({"state": "PENDING", "start": at(100), "ran_from": at(-15)}, False),
    ],
)
def test_a_job_that_had_left_its_node_to_another_was_not_hit(changes, hit):
    """It was requeued twenty seconds before now, ten seconds before the fault."""
    left = slurm_job(state="PENDING", restarts=1, reason="BeginTime", submit=at(-20))
    other = replace(slurm_job(9, end=at(-1)), **{"state": "COMPLETED", **changes})
    assert bool(job_opens(view_of(jobs=[left, other], log=treated()))) is hit
    noted = JobRecoveryOpened(
        at(-19), "j-1", JobAttempt(1, at(-20), 0), "", (), "", note="preempted"
    )
    over = SignalSeen(at(-19), "j-1", "called_off", "")
    assert not job_opens(view_of(jobs=[left], log=[noted, over, *treated()]))
    after = replace(left, submit=at(-9))
    assert job_opens(view_of(jobs=[after, other], log=treated()))


@pytest.mark.parametrize("change", [{"requeue": False}, {"batch": False}])
def test_a_job_that_slurm_cannot_run_again_is_a_hold(change):
    (hold,) = planned(view_of(jobs=[slurm_job(**change)], log=treated())).holds
    assert (hold.target, hold.gate) == ("1", "not_recoverable")


def job_log(seconds: float, restarts: int, rid: str = "j-1", submit: float = -3700) -> list[Event]:
    run = JobAttempt(1, at(submit), restarts)
    return [
        JobRecoveryOpened(at(seconds), rid, run, "n-0", (N2,), ""),
        SignalSeen(at(seconds), rid, "operator_cancelled", "eve"),
    ]


def test_attempt_is_treated_once_for_any_node_and_start_time():
    """A requeue sets the submit time anew, so an operator's cancel must be known by the count."""
    requeued = slurm_job(state="PENDING", restarts=1, reason="BeginTime", submit=at(-1))
    assert not job_opens(view_of(jobs=[requeued], log=[*treated(), *job_log(-5, restarts=0)]))
    next_run = slurm_job(restarts=1, submit=at(-1))
    assert job_opens(view_of(jobs=[next_run], log=[*treated(), *job_log(-5, restarts=0)]))
    assert job_opens(view_of(jobs=[requeued], log=[*treated(), *job_log(-90_000, restarts=0)]))


def test_the_restart_budget_is_written_into_the_recovery():
    log = treated()
    for i in range(10):
        log += job_log(-100, restarts=i, rid=f"j-{i}")
    (event,) = job_opens(view_of(jobs=[slurm_job(restarts=10)], log=log))
    assert "restarted 10 times" in event.over_budget
    (event,) = job_opens(view_of(jobs=[slurm_job(restarts=9)], log=log[:-2]))
    assert event.over_budget == ""


def test_only_a_job_that_may_live_is_asked_to_save():
    job = slurm_job(comment='hpctl:{"save_signal": "USR1"}')
    for by, signal in (("eve", "USR1"), ("", "")):
        (event,) = job_opens(view_of(jobs=[job], log=treated(by=by)))
        assert event.save_signal == signal


def test_a_node_that_was_removed_has_hit_no_job() -> None:
    gone = removal()
    moves = (SignalSeen(at(1), gone.recovery, move, "x") for move in ("cordon_seen", "jobs_gone"))
    drained = {
        "flags": frozenset({"DRAIN"}),
        "reason": format_hpctl_node_reason(gone.recovery, "x"),
    }
    view = cluster(log=(gone, *moves), change={N1: drained})
    here = {N1: (slurm_job(5, state="FAILED", nodes=(N1,), end=at(0)),)}
    assert plan_fault_affected_job_recoveries(view, SCALE, here, at(3)) == ([], [])


def test_jobs_are_asked_to_save_before_their_instance_goes() -> None:
    view = noticed((Remedy.AWAIT,), Urgency.NOW)
    here = {N1: list(view.scheduler.jobs.values())}
    (hit,) = unflawed(plan_fault_affected_job_recoveries(view, OWN, here, at(0)))
    assert isinstance(hit, JobRecoveryOpened)
    assert hit.save_signal == "USR1"


def test_a_notice_on_a_node_that_merely_waits_for_its_jobs_moves_them() -> None:
    view = noticed((Remedy.REBOOT,), Urgency.AFTER_JOBS)
    here = {N1: list(view.scheduler.jobs.values())}
    (hit,) = unflawed(plan_fault_affected_job_recoveries(view, OWN, here, at(0)))
    assert isinstance(hit, JobRecoveryOpened)
    assert (
        unflawed(
            plan_fault_affected_job_recoveries(replace(view, assessments={}), OWN, here, at(0))
        )
        == []
    )

"""Jobs whose launch failed: which a node under treatment explains, and what becomes of the rest."""

import pytest
from msgspec.structs import replace

from hpctl.jobs.kind import plan_job_recoveries
from hpctl.jobs.launches import find_jobs_with_failed_launch
from hpctl.vocabulary.identity import JobAttempt
from hpctl.vocabulary.model import DeviceVerdict, Finding
from hpctl.vocabulary.slurm_facts import HELD_AT_LAUNCH, LAUNCH_FAILED, SlurmJob
from tests.fakes.values import N1, OWN, at, finding, opened, slurm_job, view_of

PROLOG = Finding("slurm", DeviceVerdict.FAIL, at(-4), at(-4), code="prolog")
TREATED = opened(findings=(finding(seconds=-10), PROLOG))
BARE = opened(findings=(finding(seconds=-10),))


def launched(seconds: float, reason: str = LAUNCH_FAILED, **changes) -> SlurmJob:
    """A job that slurmctld has requeued, and that was seen on no node."""
    values = {"state": "PENDING", "nodes": (), "restarts": 1, "partition": "all", "wants": 2}
    given = {**values, "reason": reason, "submit": at(seconds), "start": None, **changes}
    return slurm_job(**given)


def found(job: SlurmJob, event=TREATED) -> list[str]:
    view = view_of(jobs=[job], log=[event], seconds=1)
    return list(find_jobs_with_failed_launch(view))


@pytest.mark.parametrize(
    ("job", "event", "hit"),
    [
        (launched(-4), TREATED, True),
        (launched(-10), TREATED, True),  # as soon as the fault is there, the node may fail a launch
        (launched(50), TREATED, True),  # a Prolog that began before the drain was slow
        (launched(-4), BARE, True),  # hpctl's drain came before slurmctld's
        (launched(-12), TREATED, False),
        (launched(70), TREATED, False),
        (launched(-4, partition="other"), TREATED, False),
        (launched(-4, partition="other,all"), TREATED, True),
        (launched(-4, restarts=0), TREATED, False),
        (launched(-4, "BeginTime"), TREATED, True),  # nohold_on_prolog_fail
        (launched(5, "BeginTime"), TREATED, True),
        (launched(-6, "BeginTime"), TREATED, False),
        (launched(7, "BeginTime"), TREATED, False),
        (launched(-4, "BeginTime"), BARE, True),
        (launched(-31, "BeginTime"), BARE, False),
        (launched(-4, "BeginTime", eligible=at(5000)), TREATED, False),  # a person put it off
        (launched(-4, "JobHeldUser"), TREATED, False),
        (launched(-4, "JobHeldAdmin"), TREATED, False),
        (launched(-4, "Dependency"), TREATED, False),
        (launched(-4, "launch_failure_limit_exceeded_requeued_held"), TREATED, False),
        (slurm_job(), TREATED, False),
    ],
)
def test_the_time_of_the_requeue_tells_which_node_failed_a_launch(job, event, hit):
    assert found(job, event) == ([N1] if hit else [])


def plan(job: SlurmJob, *log):
    return plan_job_recoveries(view_of(jobs=[job], log=log, seconds=1), OWN, {}, at(1))


def test_a_job_that_slurm_holds_for_a_treated_node_is_recovered():
    decided = plan(launched(-4), TREATED)
    (recovery,) = decided.opens
    assert decided.holds == ()
    assert recovery.attempt == JobAttempt(1, at(-4), 0)
    assert (recovery.bad_nodes, recovery.cause, recovery.nodes) == ((N1,), TREATED.recovery, 2)


def test_failed_launch_is_recovered_once():
    decided = plan(launched(-4), TREATED)
    (recovery,) = decided.opens
    again = plan(launched(-4), TREATED, recovery)
    assert (again.opens, again.holds) == ((), ())


@pytest.mark.parametrize("reason", sorted(HELD_AT_LAUNCH))
def test_a_job_that_slurm_holds_for_nothing_known_is_noted_and_left(reason):
    decided = plan(launched(-4, reason))
    assert decided.opens == ()
    (hold,) = decided.holds
    assert (hold.gate, hold.target) == ("launch_failed", "1")
    assert reason.replace("_", " ") in hold.why


@pytest.mark.parametrize("reason", ["JobHeldUser", "JobHeldAdmin", "BeginTime", "Priority"])
def test_a_job_that_a_person_holds_or_that_waits_is_neither(reason):
    decided = plan(launched(-4, reason))
    assert (decided.opens, decided.holds) == ((), ())


def test_a_job_that_ran_there_before_its_launch_failed_is_found_by_its_node():
    job = replace(launched(-4), nodes=(N1,))
    view = view_of(jobs=[job], log=[TREATED], seconds=1)
    (recovery,) = plan_job_recoveries(view, OWN, {N1: [job]}, at(1)).opens
    assert recovery.bad_nodes == (N1,)

"""By what a preempted job is known, and who is named."""

from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace

from hpctl.engine.preemption import describe_preemption, find_preemption_of_job, find_suspending_job
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.preemption_order import PreemptionOrder
from hpctl.vocabulary.slurm_facts import SlurmJob

T = datetime(2026, 3, 1, 12, tzinfo=UTC)
A, B = NodeName("a"), NodeName("b")
TIERS = PreemptionOrder(tiers={"low": 1, "high": 10})
NONE = PreemptionOrder()
WAITS = SlurmJob(JobId(7), "PENDING", T, 1, partition="low", nodes=(A,), reason="BeginTime")


def other(after_s: float = 1, **over) -> SlurmJob:
    start = T + timedelta(seconds=after_s)
    job = SlurmJob(JobId(12), "RUNNING", T, 0, user="alice", partition="high", nodes=(A, B))
    return replace(job, start=start, **over)


@pytest.mark.parametrize(
    ("job", "by", "order", "expected"),
    [
        (WAITS, other(), TIERS, "preempted"),
        (WAITS, other(), NONE, "requeued"),
        (WAITS, other(partition="low"), TIERS, "requeued"),
        (replace(WAITS, preempted=T), other(partition="low"), NONE, "preempted"),
        (replace(WAITS, state="PREEMPTED", restarts=0, end=T), other(), NONE, "preempted"),
    ],
)
def test_job_is_called_preempted_only_where_that_is_known(job, by, order, expected):
    found = find_preemption_of_job(job, [job, by], order)
    assert found is not None
    assert describe_preemption(found) == (
        f"{expected} at 2026-03-01 12:00:00 UTC; job 12 of alice (partition {by.partition})"
        " started on its nodes then"
    )


@pytest.mark.parametrize("by", [other(-4), other(121), other(nodes=(B,))])
def test_a_job_that_started_before_or_later_or_elsewhere_is_not_named(by):
    assert find_preemption_of_job(WAITS, [by], TIERS) is None
    found = find_preemption_of_job(replace(WAITS, preempted=T), [by], TIERS)
    assert found is not None
    assert describe_preemption(found) == "preempted at 2026-03-01 12:00:00 UTC"


def test_the_first_of_several_is_named_with_its_qos():
    jobs = [other(3, id=JobId(13)), other(2, qos="urgent", array_job=9, array_task="4")]
    found = find_preemption_of_job(WAITS, jobs, TIERS)
    assert found is not None
    assert "job 9_4 of alice (partition high, QOS urgent)" in describe_preemption(found)


def test_a_job_that_started_a_second_before_the_requeue_was_written_is_named_last():
    found = find_preemption_of_job(WAITS, [other(-1), other(-2, id=JobId(13))], TIERS)
    assert found is not None
    assert found.by == other(-1)
    found = find_preemption_of_job(WAITS, [other(-1), other(2, id=JobId(14))], TIERS)
    assert found is not None
    assert found.by == other(2, id=JobId(14))
    assert find_preemption_of_job(WAITS, [other(-1, state="CANCELLED")], TIERS) is None


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED", "FAILED"])
def test_a_job_that_runs_or_ended_otherwise_is_not_preempted(state):
    assert find_preemption_of_job(replace(WAITS, state=state), [other()], TIERS) is None


def test_a_job_that_waits_for_its_first_run_is_not_preempted():
    assert find_preemption_of_job(replace(WAITS, restarts=0), [other()], TIERS) is None


def test_explain_names_the_job_that_preempts_a_suspended_job():
    job = replace(WAITS, state="SUSPENDED", restarts=0)
    earlier, later = other(1, id=JobId(13)), other(2)
    assert find_suspending_job(job, [job, later, earlier], TIERS) == later


@pytest.mark.parametrize(
    ("state", "by", "order"),
    [
        ("RUNNING", other(), TIERS),
        ("SUSPENDED", other(), NONE),
        ("SUSPENDED", other(partition="low"), TIERS),
        ("SUSPENDED", other(nodes=(B,)), TIERS),
        ("SUSPENDED", other(state="COMPLETED"), TIERS),
    ],
)
def test_no_other_job_is_named_of_one_that_a_person_has_suspended(state, by, order):
    assert find_suspending_job(replace(WAITS, state=state, restarts=0), [by], order) is None

"""A job that waits its turn in Slurm's queue, and what it waits for."""

import pytest
from msgspec.structs import replace

from hpctl.engine.queue_wait import describe_queue_wait, is_job_queued
from tests.fakes.values import at, slurm_job

TASK = slurm_job(
    job=7, state="PENDING", restarts=1, nodes=(), reason="Resources", eligible=at(0), array_job=5,
    array_task="1",
)  # fmt: skip
REST = replace(TASK, id=5, restarts=0, array_task="1,4-6%2")
OTHER = replace(TASK, id=9, array_job=8, array_task="1-9")


@pytest.mark.parametrize(
    ("changes", "queued"),
    [
        ({}, True),
        ({"reason": "Priority"}, True),
        ({"reason": "AssocGrpJobsLimit"}, True),
        ({"reason": "JobHeldUser"}, False),
        ({"reason": "BadConstraints"}, False),
        ({"reason": "None"}, False),
        ({"eligible": at(9)}, False),
        ({"state": "RUNNING"}, False),
        ({"flags": frozenset({"COMPLETING"})}, False),
    ],
)
def test_a_job_is_queued_while_only_others_keep_it(changes, queued):
    assert is_job_queued(replace(TASK, **changes), at(1)) is queued


def test_other_waiting_tasks_of_the_array_are_counted_once():
    text = describe_queue_wait(TASK, [TASK, REST, OTHER])
    assert text == (
        "its turn in Slurm's queue, where other jobs are before it (Slurm: Resources);"
        " 3 other tasks of array 5 wait, too"
    )
    assert "array" not in describe_queue_wait(replace(TASK, array_job=0), [REST])

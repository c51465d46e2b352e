"""Which jobs an id names: Slurm's jobs, and those that only the journal knows any more."""

from datetime import datetime

import pytest

from hpctl.engine.journal.state import EngineState
from hpctl.engine.named_jobs import find_jobs_by_id
from hpctl.engine.world import World
from hpctl.slurm.records import merge_heterogeneous_jobs
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import JobAttempt, JobId, RecoveryId
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoveryPhase
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob

T = datetime(2026, 3, 1, tzinfo=UTC)


def task(number: int, index: str) -> SlurmJob:
    """A task of array 12: its last one has the number of the array."""
    return SlurmJob(JobId(number), "RUNNING", T, array_job=12, array_task=index)


def component(number: int, offset: int) -> SlurmJob:
    return SlurmJob(JobId(number), "RUNNING", T, het_job=JobId(30), het_offset=offset)


JOBS = [
    *(task(15, "3"), task(16, "4"), task(12, "4-9%2")),
    *(component(30, 0), component(31, 1)),
    SlurmJob(JobId(20), "RUNNING", T),
]


def treated(number: int, known_as: str) -> JobRecovery:
    attempt, rid = JobAttempt(JobId(number), T, 0), RecoveryId(f"j-{number}")
    return JobRecovery(
        rid, attempt, RecoveryId(""), (), T, JobRecoveryPhase.RESUMED, T, known_as=known_as
    )


def world(slurm: bool = True) -> World:
    recoveries = [treated(16, "12_4"), treated(14, "12_1"), treated(9, ""), treated(30, "30")]
    state = EngineState(jobs={r.id: r for r in recoveries})
    jobs = merge_heterogeneous_jobs({job.id: job for job in JOBS})
    return World(T, RecoveryPolicy(), state, slurm=SchedulerView(T, jobs=jobs) if slurm else None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12_3", (15,)),
        ("12_4", (16,)),
        ("12_7", (12,)),
        ("12_10", ()),
        ("15", (15,)),
        ("12", (12, 14, 15, 16)),
        ("12_1", (14,)),
        ("20", (20,)),
        ("20_1", ()),
        ("20+0", ()),
        ("30", (30,)),
        ("31", (30,)),
        ("30+0", (30,)),
        ("30+1", (30,)),
        ("9", (9,)),
        ("99", ()),
        ("n20", ()),
    ],
)
def test_an_id_names(text, expected):
    assert find_jobs_by_id(world(), text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("12_4", (16,)), ("16", (16,)), ("12", (14, 16)), ("12_3", ()), ("30+1", (30,)), ("9", (9,))],
)
def test_the_journal_knows_how_a_forgotten_job_was_called(text, expected):
    assert find_jobs_by_id(world(slurm=False), text) == expected

"""After which exit codes Slurm requeues a job: when slurmctld is asked."""

from datetime import datetime

import pytest
from msgspec.structs import replace

from hpctl.engine.requeue_exit import KNOWN_S, RequeueExitCodeCache
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.slurm_facts import SlurmJob
from tests.fakes.values import at, slurm_job

WAITS = slurm_job(7, state="PENDING", restarts=1, exit_code="3:0")


class Slurm:
    """A slurmctld that counts how often it is asked, and its clock."""

    def __init__(self) -> None:
        self.codes: frozenset[int] | None = frozenset({3})
        self.asked = 0
        self.seconds = 0.0

    def requeue_exit_codes(self) -> frozenset[int]:
        self.asked += 1
        if self.codes is None:
            raise ServiceUnavailable("slurmctld does not answer", "wait")
        return self.codes

    def now(self) -> datetime:
        return at(self.seconds)

    def monotonic(self) -> float:
        return self.seconds


@pytest.mark.parametrize(
    "job",
    [
        replace(WAITS, exit_code="0:0"),
        replace(WAITS, exit_code=""),
        replace(WAITS, restarts=0),
        replace(WAITS, state="FAILED"),
    ],
)
def test_slurmctld_is_not_asked_where_no_job_was_requeued_after_an_end(job: SlurmJob) -> None:
    slurm = Slurm()
    assert RequeueExitCodeCache(slurm, slurm).look([job]) == frozenset()
    assert slurm.asked == 0


def test_slurmctld_is_asked_once_and_again_when_it_has_read_its_configuration() -> None:
    slurm = Slurm()
    watch = RequeueExitCodeCache(slurm, slurm)
    assert [watch.look([WAITS]) for _ in range(9)] == [{3}] * 9
    assert slurm.asked == 1
    slurm.codes = frozenset({4})
    assert watch.look([WAITS]) == {3}
    watch.forget()
    assert watch.look([WAITS]) == {4}
    slurm.codes, slurm.seconds = frozenset({5}), KNOWN_S
    assert watch.look([WAITS]) == {5}
    assert slurm.asked == 3


def test_failed_reading_is_repeated() -> None:
    slurm = Slurm()
    watch = RequeueExitCodeCache(slurm, slurm)
    slurm.codes = None
    with pytest.raises(ServiceUnavailable):
        watch.look([WAITS])
    slurm.codes = frozenset({3})
    assert watch.look([WAITS]) == {3}

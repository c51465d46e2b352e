"""A killed slurmdbd: the daemon asks it nothing, so nothing waits for it and nothing ends.

Slurm keeps what accounting misses, and hands it over when slurmdbd is back.
"""

import time
from collections.abc import Iterator

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.accounting import (
    Slurmdbd,
    accounting,
    list_runs,
    needs_slurmdbd,
    restart_slurmctld,
)
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly, needs_slurmdbd]
HEADER = "#!/bin/sh\n#SBATCH --requeue\n#SBATCH --exclusive\n"


class Bed:
    """A cluster and its slurmdbd."""

    def __init__(self, live: Chaos, slurmdbd: Slurmdbd) -> None:
        self.live, self.slurmdbd = live, slurmdbd
        self.daemon = live.daemon().pid

    def heals(self, job: int) -> float:
        """Break the node of a job; return after how many seconds the job ran elsewhere."""
        (victim,) = self.live.job(job).nodes
        restarts = self.live.job(job).restarts
        began = time.monotonic()
        self.live.xid(victim)
        until(lambda: self.live.running(job, restarts + 1), 60, "it runs elsewhere")
        took = time.monotonic() - began
        self.live.returned(victim)
        return took

    def accounted(self, job: int, count: int) -> None:
        """Wait until accounting has so many lost runs of a job, and one that runs."""
        wanted = ["NODE_FAIL"] * count + ["RUNNING"]

        def has_them() -> bool:
            return [run.state for run in list_runs(self.live, str(job))] == wanted

        until(has_them, 60, f"accounting has {wanted}")


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with cluster(nodes=4) as live, accounting(live) as slurmdbd:
        yield Bed(live, slurmdbd)


@story(
    job="Batch job in a cluster whose slurmdbd is killed",
    act="its node has a fault before, and again after, slurmdbd is back",
    slurm="The job runs elsewhere, as fast as with slurmdbd; accounting has every run afterwards.",
    explain="As with slurmdbd: what hpctl shows comes from slurmctld and the journal.",
    owner="While slurmdbd is down `sacct` fails; `squeue` and `hpctl explain` answer.",
)
def test_a_fault_while_slurmdbd_is_down_is_healed_and_accounted_later(bed: Bed) -> None:
    job = bed.live.start("sleep 600", header=HEADER)
    bed.accounted(job, 0)
    usual = bed.heals(job)
    bed.slurmdbd.kill()
    assert list_runs(bed.live, str(job)) == []
    without = bed.heals(job)
    assert without < usual + 10, f"{without:.1f} s, and {usual:.1f} s with slurmdbd"
    assert "resumed" in bed.live.explained(job)
    until(
        lambda: "Problems" not in bed.live.hpctl("status", check=False), 60, "status has no problem"
    )
    bed.slurmdbd.start()
    bed.heals(job)
    bed.accounted(job, 3)
    assert bed.live.daemon().pid == bed.daemon
    bed.live.sandbox.run(["scancel", str(job)])


@story(
    job="Batch job in a cluster with slurmdbd",
    act="its node has a fault, and slurmdbd is killed in mid-recovery",
    slurm="The job runs elsewhere and the node returns; accounting has both runs afterwards.",
    explain="One recovery of the node and one of the job, both complete.",
)
def test_slurmdbd_that_dies_in_mid_recovery_stops_nothing(bed: Bed) -> None:
    job = bed.live.start("sleep 600", header=HEADER)
    bed.accounted(job, 0)
    (victim,) = bed.live.job(job).nodes
    bed.live.xid(victim)
    until(lambda: bool(bed.live.of(victim)), 60, "a recovery opens")
    bed.slurmdbd.kill()
    until(lambda: bed.live.running(job, 1), 60, "it runs elsewhere")
    bed.live.returned(victim)
    until(lambda: bed.live.of_job(job)[0].phase == "resumed", 60, "its recovery ends")
    bed.slurmdbd.start()
    bed.accounted(job, 1)
    assert bed.live.daemon().pid == bed.daemon
    bed.live.sandbox.run(["scancel", str(job)])


@story(
    job="Batch job in a cluster whose slurmdbd is killed",
    act="slurmctld restarts without slurmdbd, then the node has a fault",
    slurm="slurmctld starts with the associations that it had saved, and the job runs elsewhere.",
    explain="As with slurmdbd.",
)
def test_slurmctld_that_starts_without_slurmdbd_is_healed_too(bed: Bed) -> None:
    job = bed.live.start("sleep 600", header=HEADER)
    bed.accounted(job, 0)
    bed.slurmdbd.kill()
    restart_slurmctld(bed.live, "SIGTERM")
    until(lambda: bed.live.running(job), 60, "slurmctld is back, and the job runs")
    until(lambda: bed.live.daemon_sees(job), 60, "the daemon sees it run")
    bed.heals(job)
    bed.slurmdbd.start()
    bed.accounted(job, 1)
    assert bed.live.daemon().pid == bed.daemon
    bed.live.sandbox.run(["scancel", str(job)])

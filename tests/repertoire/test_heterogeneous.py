"""Heterogeneous jobs: Slurm requeues and starts their components together, and so does hpctl."""

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
BACKFILL = "SchedulerParameters=batch_sched_delay=0,bf_interval=1\n"
"""slurmctld's backfill pass alone starts heterogeneous jobs, by default every 30 s."""
HEADER = """#!/bin/sh
#SBATCH --requeue --nodes=1 --exclusive
#SBATCH hetjob
#SBATCH --requeue --nodes=2 --exclusive
"""


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=5, slurm_conf=BACKFILL) as live:
        yield live


def excluded(live: Chaos, job: int) -> list[set[str]]:
    """The nodes that each component excludes."""
    record = live.scheduler.job(job)
    assert record is not None
    return [set(component.excluded) for component in record.components]


def nodes_of(live: Chaos, job: int, component: int) -> tuple[str, ...]:
    record = live.scheduler.job(job)
    assert record is not None
    return record.components[component].nodes


@story(
    job="Heterogeneous batch job (`#SBATCH hetjob`)",
    act="a node of one of its components has a fault",
    slurm=(
        "All components are requeued together, exclude the node, and start at slurmctld's next"
        " backfill pass (`bf_interval`), without the begin delay."
    ),
    explain="One recovery of the job; `12`, `12+1` and slurmctld's number of a component show it.",
    owner="The job runs again by itself.",
)
@pytest.mark.parametrize("component", [0, 1])
def test_the_whole_job_leaves_the_faulty_node_of_a_component(live: Chaos, component: int):
    job = live.start("sleep 600", header=HEADER)
    assert live.job(job).components == (job, job + 1)
    victim = nodes_of(live, job, component)[0]
    live.xid(victim)
    until(lambda: live.running(job, 1), 60, "all components run again before Slurm's delay is over")
    assert len(set(live.job(job).nodes) - {victim}) == 3
    assert [victim in names for names in excluded(live, job)] == [True, True]
    (recovery,) = live.of_job(job)
    assert recovery.bad_nodes == (victim,)
    until(lambda: live.of_job(job)[0].phase == "resumed", 60, "its recovery ends")
    for name in (f"{job}", f"{job}+1", f"{job + 1}"):
        said = live.explained(name)
        assert f"Job {job} (" in said, said
        assert "Running again after" in said, said
        assert ("is a component of job" in said) == ("+" in name)
    live.sandbox.run(["scancel", str(job)])
    live.returned(victim)


@story(
    job="Heterogeneous batch job with a component of `--no-requeue`",
    act="a node of another component has a fault",
    slurm="The job runs on; the node is drained and waits for it.",
    explain="Slurm cannot start the job again (`Requeue=0`).",
    owner="Cancels the job, or lets it end.",
)
def test_a_component_that_may_not_be_requeued_leaves_the_job_to_its_owner(live: Chaos):
    header = HEADER.replace("#SBATCH --requeue --nodes=2", "#SBATCH --no-requeue --nodes=2")
    job = live.start("sleep 600", header=header)
    (victim,) = nodes_of(live, job, 0)
    live.xid(victim)
    until(lambda: str(job) in live.state().holds, 60, "hpctl says that it cannot")
    assert "Requeue=0" in live.explained(f"{job}+1")
    assert live.of_job(job) == []
    live.sandbox.run(["scancel", str(job)])
    live.returned(victim)

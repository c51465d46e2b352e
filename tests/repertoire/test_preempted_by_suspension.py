"""Preemption by suspension: both jobs of a shared node leave it when it has a fault."""

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
PARTITIONS = """PreemptType=preempt/partition_prio
PreemptMode=SUSPEND,GANG
SchedulerTimeSlice=5
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=SUSPEND OverSubscribe=FORCE:1 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF OverSubscribe=FORCE:1 State=UP
"""
HEADER = "#!/bin/sh\n#SBATCH --requeue --cpus-per-task=16\n"


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=3, slurm_conf=PARTITIONS) as live:
        yield live


def suspended(live: Chaos) -> tuple[int, int, str]:
    """A job of the low partition, one of the high that suspended it, and their node."""
    fillers = [live.start("sleep 600", "--partition=high", header=HEADER) for _ in range(2)]
    low = live.start("sleep 600", "--partition=low", header=HEADER)
    high = live.start("sleep 600", "--partition=high", header=HEADER)
    until(lambda: live.job(low).state == "SUSPENDED", 60, "it is suspended")
    live.sandbox.run(["scancel", *map(str, fillers)])
    until(lambda: not any(live.job(job).completing for job in fillers), 60, "two nodes are free")
    (node,) = live.job(low).nodes
    assert live.job(high).nodes == (node,)
    return low, high, node


@story(
    job="Batch job that a job of a higher priority tier has suspended (`PreemptMode=SUSPEND,GANG`)",
    act="their node has a fault",
    slurm="Both jobs are requeued, exclude the node, and run elsewhere.",
    explain="One recovery for each of the two jobs.",
    owner="Both jobs run again by themselves.",
)
def test_both_jobs_of_a_node_leave_it(live: Chaos):
    low, high, victim = suspended(live)
    live.xid(victim)
    for job in (low, high):
        until(lambda job=job: live.running(job, 1), 60, "it runs again")
        assert live.of_job(job)[0].bad_nodes == (victim,)
    live.sandbox.run(["scancel", str(low), str(high)])
    live.returned(victim)

"""Preemption: the preempted job is Slurm's to start again, and no failure is counted."""

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
PARTITIONS = """PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE State=UP
PartitionName=high Nodes=ALL PriorityTier=10 State=UP
"""
HEADER = "#!/bin/sh\n#SBATCH --requeue\n#SBATCH --exclusive\n#SBATCH --nodes=2\n"


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=2, slurm_conf=PARTITIONS) as live:
        yield live


def preempt(live: Chaos, low: int) -> None:
    """Run a job of the high partition over one of the low, and let that start again."""
    restarts = live.job(low).restarts
    high = live.submit("sleep 1", "--partition=high", header=HEADER)
    until(lambda: live.job(low).restarts == restarts + 1, 20, f"job {high} preempts it")
    until(lambda: live.job(high).state == "COMPLETED", 40, f"job {high} ends")
    live.sandbox.run(["scontrol", "update", f"jobid={low}", "StartTime=now"])
    until(lambda: live.running(low, restarts + 1), 40, "it runs again")


@story(
    job="Batch job in a partition with `PreemptMode=REQUEUE`",
    act="five jobs of a partition with a higher priority tier preempt it, one after the other",
    slurm="The job waits and starts again as Slurm decides; it is never held.",
    explain="No recovery opens.",
    owner="No restart is counted against the job's policy.",
)
def test_five_preemptions_in_a_row_hold_nothing_and_count_for_nothing(live: Chaos):
    comment = 'hpctl:{"policy":{"restarts":2}}'
    low = live.submit("sleep 600", "--partition=low", f"--comment={comment}", header=HEADER)
    until(lambda: live.running(low), 20, "it runs")
    for _ in range(5):
        preempt(live, low)
    assert live.job_recoveries() == []
    assert str(low) not in live.state().holds
    assert live.job(low).comment == comment

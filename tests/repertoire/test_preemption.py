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
PartitionName=cancel Nodes=ALL PriorityTier=1 PreemptMode=CANCEL State=UP
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
    until(lambda: live.daemon_sees(low), 20, "the daemon sees it run")
    for _ in range(5):
        preempt(live, low)
    assert live.job_recoveries() == []
    assert str(low) not in live.state().holds
    assert live.job(low).comment == comment
    live.sandbox.run(["scancel", str(low)])


def starts_seen(live: Chaos, partition: str) -> int:
    """Start a job that the daemon has seen run."""
    job = live.submit("sleep 600", f"--partition={partition}", header=HEADER)
    until(lambda: live.running(job), 20, "it runs")
    until(lambda: live.daemon_sees(job), 20, "the daemon sees it run")
    return job


@story(
    job="Batch job in a partition with `PreemptMode=REQUEUE`",
    act="a job of a partition with a higher priority tier preempts it",
    slurm="The job waits, and starts again as Slurm decides.",
    explain="It was preempted, when, and which job of whom started on its nodes then.",
    owner="`hpctl explain` names the other job, its user, partition and QOS.",
)
def test_explain_names_the_job_that_started_on_the_nodes(live: Chaos):
    low = starts_seen(live, "low")
    high = live.submit("sleep 600", "--partition=high", header=HEADER)
    until(lambda: live.job(low).restarts == 1 and live.running(high), 20, "it is preempted")
    by = f"job {high} of root (partition high) started on its nodes then"
    until(lambda: by in live.explained(str(low)), 60, "explain names the other job")
    assert "it was preempted at" in live.explained(str(low))
    live.sandbox.run(["scancel", str(low), str(high)])


@story(
    job="Batch job that an operator requeues, in a cluster with preemption",
    act="a job of the same partition starts on its nodes",
    slurm="The job waits for Slurm's begin delay.",
    explain="It was requeued, and which job started on its nodes; not that it was preempted.",
)
def test_a_requeue_by_an_operator_is_not_called_a_preemption(live: Chaos):
    job = starts_seen(live, "low")
    following = live.submit("sleep 600", "--partition=low", header=HEADER)
    live.sandbox.run(["scontrol", "requeue", str(job)])
    until(lambda: live.running(following), 20, "the other job starts")
    by = f"job {following} of root (partition low) started on its nodes then"
    until(lambda: by in live.explained(str(job)), 60, "explain names the other job")
    said = live.explained(str(job))
    assert "it was requeued at" in said
    assert "preempted" not in said
    live.sandbox.run(["scancel", str(job), str(following)])


@story(
    job="Batch job in a partition with `PreemptMode=CANCEL`",
    act="a job of a partition with a higher priority tier preempts it",
    slurm="The job ends as PREEMPTED.",
    explain="It was preempted, when, and by which job; no recovery opens.",
    owner="Submits the job again.",
)
def test_a_job_that_preemption_cancels_stays_ended(live: Chaos):
    job = starts_seen(live, "cancel")
    high = live.submit("sleep 600", "--partition=high", header=HEADER)
    until(lambda: live.job(job).state == "PREEMPTED" and live.running(high), 20, "it ends")
    by = f"job {high} of root (partition high)"
    until(lambda: by in live.explained(str(job)), 60, "explain names the other job")
    assert "it was preempted at" in live.explained(str(job))
    assert live.job_recoveries() == []
    live.sandbox.run(["scancel", str(high)])

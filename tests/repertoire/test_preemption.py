"""Preemption: the preempted job is Slurm's to start again, and no failure is counted."""

from functools import partial

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.preemption import (
    MAIL_CONF,
    MAILER,
    MAILS,
    preempt_five_times,
    start_registered,
)
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
    with cluster(MAILS, MAILER, nodes=2, slurm_conf=MAIL_CONF + PARTITIONS) as live:
        yield live


@story(
    job="Registered batch job in a partition with `PreemptMode=REQUEUE`",
    act="five jobs of a partition with a higher priority tier preempt it, one after the other",
    slurm=(
        "The job waits and starts again as Slurm decides; it is never held. Its Comment says, after"
        " the owner's text, when it was preempted and by which job of whom."
    ),
    explain="It was preempted, when, and by which job of whom.",
    owner=(
        "A mail for each preemption (`--mail-type=REQUEUE`); no restart is counted against the"
        " job's policy."
    ),
)
def test_five_preemptions_in_a_row_are_reported_and_count_for_nothing(live: Chaos):
    low = start_registered(live, "--partition=low", header=HEADER)
    preempts = partial(live.submit, "sleep 600", "--partition=high", header=HEADER)
    preempt_five_times(live, low, preempts, "partition high")
    live.sandbox.run(["scancel", str(low)])


def starts_seen(live: Chaos, partition: str) -> int:
    """Start a job that the daemon has seen run."""
    job = live.submit("sleep 600", f"--partition={partition}", header=HEADER)
    until(lambda: live.running(job), 60, "it runs")
    until(lambda: live.daemon_sees(job), 60, "the daemon sees it run")
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
    until(lambda: live.job(low).restarts == 1 and live.running(high), 60, "it is preempted")
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
    until(lambda: live.running(following), 60, "the other job starts")
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
    until(lambda: live.job(job).state == "PREEMPTED" and live.running(high), 60, "it ends")
    by = f"job {high} of root (partition high)"
    until(lambda: by in live.explained(str(job)), 60, "explain names the other job")
    assert "it was preempted at" in live.explained(str(job))
    assert live.of_job(job) == []
    live.sandbox.run(["scancel", str(high)])

"""Preemption by QOS with CANCEL and SUSPEND: faults of the nodes hit the jobs that run there."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.accounting import accounting, needs_slurmdbd, sacctmgr
from tests.repertoire.preemption import is_not_counted, start_registered
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly, needs_slurmdbd]
PARTITIONS: Final = """PreemptType=preempt/qos
PreemptMode=SUSPEND,GANG
PartitionName=low Nodes=ALL PriorityTier=1 OverSubscribe=FORCE:1 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 OverSubscribe=FORCE:1 State=UP
"""
HEADER: Final = "#!/bin/sh\n#SBATCH --requeue --cpus-per-task=16 --nodes=1\n"
NODES: Final = 3


@pytest.fixture(scope="module")
def live() -> Iterator[Chaos]:
    with cluster(nodes=NODES, slurm_conf=PARTITIONS) as live, accounting(live):
        for mode in ("cancel", "suspend", "requeue"):
            sacctmgr(live, "add", "qos", mode, f"PreemptMode={mode}")
        sacctmgr(live, "add", "qos", "urgent", "preempt=cancel,suspend,requeue", "priority=100")
        sacctmgr(live, "modify", "user", "root", "set", "qos+=urgent,cancel,suspend,requeue")
        yield live


def preempt(live: Chaos, mode: str) -> tuple[int, int, str]:
    """Have a job preempt another, whose QOS has this PreemptMode. Returns both and their node."""
    fillers = [urgent(live) for _ in range(NODES - 1)]
    low = start_registered(live, "--partition=low", f"--qos={mode}", header=HEADER)
    high = urgent(live)
    (node,) = live.job(high).nodes
    live.sandbox.run(["scancel", *map(str, fillers)])
    until(lambda: not any(live.job(job).completing for job in fillers), 60, "two nodes are free")
    return low, high, node


def urgent(live: Chaos) -> int:
    return live.start("sleep 600", "--partition=high", "--qos=urgent", header=HEADER)


def end(live: Chaos, *jobs: int) -> None:
    live.sandbox.run(["scancel", *map(str, jobs)])


def leaves(live: Chaos, job: int, node: str) -> None:
    """Wait until a job runs again, elsewhere, by one recovery."""
    until(lambda: live.running(job, 1), 60, "it runs again")
    assert node not in live.job(job).nodes
    (recovery,) = [each for each in live.of_job(job) if not each.is_without_fault]
    assert recovery.bad_nodes == (node,)


@story(
    job="Registered batch job of a QOS with `PreemptMode=CANCEL`",
    act="a job of another QOS preempts it, and then their node has a fault",
    slurm="The job ends as PREEMPTED and stays ended; the other job runs again elsewhere.",
    explain="It was preempted, when, and by which job; no recovery of it opens.",
    owner="Submits the job again.",
)
def test_a_canceled_job_stays_ended(live: Chaos) -> None:
    low, high, node = preempt(live, "cancel")
    assert live.job(low).state == "PREEMPTED"
    by = f"job {high} of root (partition high, QOS urgent)"
    until(lambda: by in live.explained(low), 60, "explain names the other job")
    assert "it was preempted at" in live.explained(low)
    live.xid(node)
    leaves(live, high, node)
    live.returned(node)
    assert live.job(low).state == "PREEMPTED"
    assert live.of_job(low) == []
    end(live, high)


@story(
    job="Registered batch job of a QOS with `PreemptMode=SUSPEND`",
    act="a job of another QOS preempts it, and ends",
    slurm="The job is suspended, and then goes on where it was.",
    explain="It is preempted, by which job of whom, and goes on once that ends.",
    owner="Nothing to do; no restart is counted.",
)
def test_a_suspended_job_continues(live: Chaos) -> None:
    low, high, _ = preempt(live, "suspend")
    until(lambda: live.job(low).state == "SUSPENDED", 60, "it is suspended")
    by = f"it is preempted by job {high} of root (partition high, QOS urgent)"
    until(lambda: by in live.explained(low), 60, "explain names the other job")
    end(live, high)
    until(lambda: live.running(low), 60, "it goes on")
    assert live.job(low).restarts == 0
    assert live.of_job(low) == []
    end(live, low)


@story(
    job="Registered batch job of a QOS with `PreemptMode=SUSPEND`",
    act="a job of another QOS preempts it, and then their node has a fault",
    slurm="Both jobs are requeued, exclude the node, and run elsewhere.",
    explain="One recovery for each of the two jobs.",
    owner="Both jobs run again by themselves.",
)
def test_a_suspended_job_leaves_its_node(live: Chaos) -> None:
    low, high, node = preempt(live, "suspend")
    until(lambda: live.job(low).state == "SUSPENDED", 60, "it is suspended")
    live.xid(node)
    leaves(live, low, node)
    leaves(live, high, node)
    live.returned(node)
    end(live, low, high)


@story(
    job="Registered batch job of a QOS with `PreemptMode=SUSPEND`",
    act="a job of another QOS preempts it, its owner cancels it, and then their node has a fault",
    slurm="The job stays CANCELLED; the other job runs again elsewhere.",
    explain="No recovery of the canceled job opens.",
)
def test_a_suspended_job_that_its_owner_cancels_stays_ended(live: Chaos) -> None:
    low, high, node = preempt(live, "suspend")
    until(lambda: live.job(low).state == "SUSPENDED", 60, "it is suspended")
    end(live, low)
    until(lambda: live.job(low).state == "CANCELLED", 60, "it is canceled")
    live.xid(node)
    leaves(live, high, node)
    live.returned(node)
    assert live.job(low).state == "CANCELLED"
    assert live.of_job(low) == []
    end(live, high)


@story(
    job="Registered batch job of a QOS with `PreemptMode=REQUEUE`",
    act="a job of another QOS preempts it, and their node has a fault before it starts again",
    slurm="The job waits and starts again as Slurm decides; the other job runs again elsewhere.",
    explain="It was preempted, when, and by which job; no recovery of it opens.",
    owner="No restart is counted against the job's policy.",
)
def test_a_requeued_job_is_not_hit_by_a_later_fault(live: Chaos) -> None:
    low, high, node = preempt(live, "requeue")
    until(lambda: bool(live.of_job(low)), 60, "the preemption is noted")
    live.xid(node)
    leaves(live, high, node)
    live.returned(node)
    stays(lambda: live.job(low).state == "PENDING", 2, "it waits for its begin time")
    is_not_counted(live, low)
    assert live.job(low).excluded == ()
    assert live.job(low).restarts == 1
    end(live, low, high)

"""Thousands of short jobs: what ends every moment hides no fault and delays no restart."""

import os
import time
from functools import partial
from pathlib import Path
from statistics import median

import pytest

from hpctl.sandbox.rpcs import count_query_rpcs
from hpctl.vocabulary.job_recovery import JobRecoverySignal
from hpctl.vocabulary.recovery import StepKind, find_last_step_attempt
from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
LONG = "#!/bin/sh\n#SBATCH --requeue --exclusive\n"
SHORT = "#!/bin/sh\n#SBATCH --cpus-per-task=4 --partition=short\n"
SECOND = "PartitionName=short Nodes=ALL PriorityTier=0 MaxTime=INFINITE State=UP\n"
"""Its jobs come after the others: on 26.05 all jobs have priority 1, whatever `--nice` says."""
TASKS = 2000
GROWTH_KIB = 64 * 1024
"""The daemon may gain so much: it keeps each job until slurmctld purges it."""
NOISE_S = 5.0
"""The tasks take the processors that the daemon and slurmctld need here."""
WINDOW_S = 15.0
ASKS_A_SECOND = 5.0
"""Ends of tasks cause five readings at once and one in five seconds, of eight questions at most. A
reading at each end would ask 15 times a second and more."""


@pytest.fixture(scope="module")
def live():
    with cluster(slurm_conf="MaxArraySize=4001\nMinJobAge=30\n" + SECOND) as live:
        yield live


def latencies_s(live: Chaos, job: int) -> tuple[float, float]:
    """Break the node of a running job; the seconds from the line to its drain, and until the job
    runs again."""
    (node,) = live.job(job).nodes
    restarts = live.job(job).restarts
    began = time.time()
    live.xid(node)
    until(lambda: len(live.of_job(job)) > restarts, 60, "the job is hit")
    runs = JobRecoverySignal.RUNNING_SEEN
    until(lambda: any(m.signal == runs for m in live.of_job(job)[-1].trail), 120, "it runs again")
    again = next(m.at for m in live.of_job(job)[-1].trail if m.signal == runs)
    drained = find_last_step_attempt(live.last(node).steps, StepKind.DRAIN)
    assert drained is not None
    assert drained.resolved is not None
    live.returned(node, 60)
    return drained.resolved.timestamp() - began, again.timestamp() - began


def resident_kib(live: Chaos) -> int:
    """The daemon's resident memory."""
    pid = live.sandbox.status()["services"]["daemon"]
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def ask_rate(live: Chaos) -> float:
    """How often slurmctld is asked something, a second, while the test asks nothing."""
    before = count_query_rpcs(live.sandbox).total()
    time.sleep(WINDOW_S)
    return (count_query_rpcs(live.sandbox).total() - before) / WINDOW_S


@story(
    job="Batch job beside an array of 2000 tasks that last a moment",
    act="its node has a fault while the tasks run",
    slurm="The node is drained and the job runs elsewhere as soon as without the array.",
    explain="One recovery of the job, and no line about the tasks.",
    owner="The job runs again by itself.",
)
def test_a_fault_amid_thousands_of_short_jobs(live: Chaos):
    job = live.start("sleep 3600", header=LONG)
    idle = [latencies_s(live, job) for _ in range(3)]
    before_kib = resident_kib(live)
    array = live.submit("true", f"--array=1-{TASKS}", "--output=/dev/null", header=SHORT)
    count_left = ["squeue", "--noheader", "--array", f"--jobs={array}"]
    lines = partial(live.sandbox.run, count_left)
    until(lambda: lines().stdout.count("\n") < TASKS - 50, 60, "the tasks run")
    busy = [latencies_s(live, job) for _ in range(3)]
    rate = ask_rate(live)
    assert lines().stdout.count("\n") > 1, "the array ended before the last fault"
    figures = f"drained and running after {idle} s without the array, {busy} s beside it"
    for without, beside in zip(zip(*idle, strict=True), zip(*busy, strict=True), strict=True):
        assert median(beside) <= median(without) + NOISE_S, figures
    assert rate <= ASKS_A_SECOND
    assert resident_kib(live) - before_kib <= GROWTH_KIB
    assert {r.attempt.job for r in live.job_recoveries()} == {job}
    live.sandbox.run(["scancel", str(array), str(job)])

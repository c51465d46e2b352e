"""`scontrol top`: an order of jobs that a person sets is kept by a restart."""

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
PRIORITIES = "PriorityType=priority/basic\n"
"""By the default since 23.11 each job has priority 1, and `scontrol top` changes none."""
HEADER = "#!/bin/bash\n#SBATCH --requeue --exclusive --nodes=2\n"


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=2, slurm_conf=PRIORITIES) as live:
        yield live


def priority(live: Chaos, job: int) -> int:
    return int(live.sandbox.run(["squeue", "-h", "-j", str(job), "-o", "%Q"]).stdout)


@story(
    job="Batch job that is restarted because of a fault, behind another job that waits",
    act="its owner or an administrator runs `scontrol top` on it before it starts"
    " (`PriorityType=priority/basic`)",
    slurm="The job starts before the other one.",
    explain="One recovery, which ends as `resumed`.",
    owner="The job runs again by itself.",
)
def test_a_job_on_top_starts_first(live: Chaos):
    job = live.start("sleep 600", "--nice=100", header=HEADER)
    other = live.submit("sleep 600", header=HEADER)
    live.sandbox.inject_api("stuck-replace")
    victim = live.job(job).nodes[0]
    live.xid(victim)
    until(lambda: live.job(job).state == "PENDING", 60, "it waits")
    until(lambda: live.of_job(job)[0].phase == "starting", 60, "hpctl has let it start")
    assert priority(live, job) < priority(live, other)
    live.sandbox.run(["scontrol", "top", str(job)])
    assert priority(live, job) > priority(live, other)
    live.sandbox.inject_api("clear")
    live.returned(victim)
    until(lambda: live.begun(job, 1), 60, "it runs again")
    assert live.job(other).state == "PENDING"
    until(lambda: live.of_job(job)[0].phase == "resumed", 60, "its recovery ends")
    assert len(live.of_job(job)) == 1
    live.sandbox.run(["scancel", str(job), str(other)])
    until(live.all_idle, 60, "every node serves again")

"""Preemption by QOS: the preempted job is Slurm's to start again, as with partitions."""

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.accounting import accounting, needs_slurmdbd, sacctmgr
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly, needs_slurmdbd]
HEADER = "#!/bin/sh\n#SBATCH --requeue --exclusive --nodes=2\n"


@pytest.fixture(scope="module")
def live():
    with (
        cluster(nodes=2) as live,
        accounting(live, "PreemptType=preempt/qos", "PreemptMode=REQUEUE"),
    ):
        sacctmgr(live, "add", "qos", "urgent", "preempt=normal", "priority=100")
        sacctmgr(live, "modify", "user", "root", "set", "qos+=urgent")
        yield live


@story(
    job="Batch job of a QOS that another preempts (`PreemptType=preempt/qos`)",
    act="a job of the other QOS preempts it",
    slurm="The job waits, and starts again as Slurm decides.",
    explain=(
        "Which job of whom, with its QOS, started on its nodes then; that it was preempted, where"
        " the daemon read Slurm while the job was ending."
    ),
    owner="No restart is counted against the job's policy.",
)
def test_a_job_preempted_by_qos_is_left_to_slurm(live: Chaos):
    low = live.start("sleep 600", "--qos=normal", header=HEADER)
    until(lambda: live.daemon_sees(low), 20, "the daemon sees it run")
    high = live.submit("sleep 600", "--qos=urgent", header=HEADER)
    until(lambda: live.job(low).restarts == 1 and live.running(high), 30, "it is preempted")
    until(lambda: f"job {high} of root" in live.explained(str(low)), 60, "explain says so")
    assert "QOS urgent) started on its nodes then" in live.explained(str(low))
    assert live.job_recoveries() == []
    live.sandbox.run(["scancel", str(low), str(high)])

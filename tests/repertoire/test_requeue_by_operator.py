"""Requeue by an operator: the job is the operator's, and hpctl neither starts nor counts it."""

import pytest

from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
COMMENT = 'hpctl:{"policy":{"restarts":2}}'
HEADER = "#!/bin/sh\n#SBATCH --requeue\n#SBATCH --exclusive\n"


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=2) as live:
        yield live


@story(
    job="Registered batch job",
    act="an administrator runs `scontrol requeue` four times, with a policy of two restarts",
    slurm="The job waits and starts again as Slurm decides; it is never held.",
    explain="No recovery opens.",
    owner="No restart is counted against the job's policy.",
)
def test_four_requeues_in_a_row_count_for_nothing(live: Chaos):
    job = live.start("sleep 600", f"--comment={COMMENT}", header=HEADER)
    for number in range(1, 5):
        live.requeue(job)
        live.end_delay(job, number)
    assert live.job_recoveries() == []
    assert str(job) not in live.state().holds
    assert live.job(job).comment == COMMENT
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Registered batch job",
    act="an administrator runs `scontrol requeuehold`, later `scontrol release`",
    slurm="The job stays held until it is released, then runs.",
    explain="No recovery opens.",
)
def test_a_requeued_and_held_job_stays_held_until_it_is_released(live: Chaos):
    job = live.start("sleep 600", f"--comment={COMMENT}", header=HEADER)
    live.requeue(job, "requeuehold")
    live.hpctl("status")
    assert live.job(job).state == "PENDING"
    assert live.job_recoveries() == []
    live.sandbox.run(["scontrol", "release", str(job)])
    live.end_delay(job, 1)
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Batch job that an administrator has requeued",
    act="a GPU of its next node falls off the bus (Xid 79)",
    slurm="The job is requeued, excludes the node and runs elsewhere without Slurm's delay.",
    explain="One recovery, which names the node.",
    owner="Nothing to do; one restart is counted.",
)
def test_a_fault_after_an_operators_requeue_is_treated_as_any_other(live: Chaos):
    job = live.start("sleep 600", f"--comment={COMMENT}", header=HEADER)
    live.requeue(job)
    live.end_delay(job, 1)
    (victim,) = live.job(job).nodes
    live.xid(victim)
    until(lambda: live.running(job, 2), 60, "it runs elsewhere")
    (recovery,) = live.job_recoveries()
    assert recovery.bad_nodes == (victim,)
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Registered batch job that ended FAILED, with no restart left",
    act=(
        "its owner mends the program and runs `scontrol requeue`, also while the daemon is away, or"
        " after it was restarted"
    ),
    slurm="The job waits and starts again as Slurm decides; it is neither canceled nor held.",
    explain="No recovery opens.",
    owner="No restart is counted against the job's policy.",
)
@pytest.mark.parametrize("daemon", ["runs", "is away", "was restarted"])
def test_a_requeue_of_a_job_that_has_ended_is_an_order(live: Chaos, daemon: str):
    policy = '--comment=hpctl:{"policy":{"restarts":0}}'
    body = '[ -n "$SLURM_RESTART_COUNT" ] && exec sleep 600; exit 3'
    job = live.submit(body, policy, header=HEADER)
    until(lambda: str(job) in live.state().holds, 60, "it is left ended")
    until(lambda: not live.job(job).completing, 60, "its run has cleared")
    assert live.job(job).state == "FAILED"
    if daemon != "runs":
        live.sandbox.kill_daemon()
    if daemon == "was restarted":
        live.sandbox.start_daemon()
        until(lambda: live.daemon_knows(job, "FAILED"), 60, "hpctl has seen its end again")
    live.sandbox.run(["scontrol", "requeue", str(job)])
    if daemon == "is away":
        live.sandbox.start_daemon()
    until(lambda: live.daemon_knows(job, "PENDING"), 60, "hpctl has seen that it waits")
    stays(lambda: live.job(job).state == "PENDING", 2, "it waits")
    live.end_delay(job, 1)
    assert live.of_job(job) == []
    until(lambda: str(job) not in live.state().holds, 60, "nothing is said of its former end")
    live.sandbox.run(["scancel", str(job)])

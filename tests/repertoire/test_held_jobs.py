"""Jobs that wait, are held or suspended: hpctl releases no hold and keeps what they wait for."""

import pytest

from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER = "#!/bin/sh\n#SBATCH --requeue --exclusive\n"
SHORT = "[ $SLURM_RESTART_COUNT ] && exit 0; exec sleep 600"
"""Ends at once in its second run."""


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=4) as live:
        yield live


def hit(live: Chaos, job: int) -> str:
    """Break the node of a job that runs."""
    (victim,) = live.job(job).nodes
    live.xid(victim)
    return victim


@story(
    job="Batch job that is suspended (`scontrol suspend`)",
    act="its node has a fault",
    slurm="Slurm requeues the job and holds it (`JobHeldAdmin`), for it was suspended.",
    explain="Slurm does not start a held job; it waits for `scontrol release`.",
    owner="The administrator who suspended the job releases it; it then runs again.",
)
def test_a_suspended_job_is_held_when_its_node_is_lost(live: Chaos):
    job = live.start("sleep 600", header=HEADER)
    live.sandbox.run(["scontrol", "suspend", str(job)])
    until(lambda: live.job(job).state == "SUSPENDED", 60, "it is suspended")
    victim = hit(live, job)
    until(lambda: live.job(job).restarts == 1, 60, "it is requeued")
    live.returned(victim)
    stays(lambda: live.job(job).reason == "JobHeldAdmin", 2, "it stays held")
    said = live.explained(str(job))
    assert f"Waiting for: `scontrol release {job}`" in said
    live.cleared(job)
    live.sandbox.run(["scontrol", "release", str(job)])
    live.end_delay(job, 1)
    live.sandbox.run(["scancel", str(job)])


@pytest.mark.parametrize("verb", ["uhold", "hold"])
@story(
    job="Batch job that its user or an administrator holds while it is restarted",
    act="its node has a fault, and the hold comes before the job starts again",
    slurm="The job stays held.",
    explain="Slurm does not start a held job; the recovery ends with that.",
    owner="`scontrol release` starts the job, away from the faulty node.",
)
def test_a_hold_in_mid_recovery_stays(live: Chaos, verb: str):
    """A job on every node waits for a node, so that the hold finds it in the queue."""
    job = live.submit("sleep 600", "--nodes=4", header=HEADER)
    until(lambda: live.running(job), 60, "it runs")
    victim = live.job(job).nodes[0]
    live.sandbox.inject_api("stuck-replace")
    live.xid(victim)
    until(lambda: live.job(job).state == "PENDING", 60, "it waits")
    until(lambda: live.of_job(job)[0].phase == "starting", 60, "hpctl has let it start")
    live.sandbox.run(["scontrol", verb, str(job)])
    live.sandbox.inject_api("clear")
    live.returned(victim)
    stays(lambda: live.job(job).reason.startswith("JobHeld"), 3, "it stays held")
    live.sandbox.run(["scontrol", "release", str(job)])
    until(lambda: live.running(job, 1), 60, "it runs again")
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Batch job held in the queue",
    act="a node has a fault",
    slurm="The job stays held.",
    explain="Nothing: no fault hit the job.",
)
def test_a_held_job_is_none_of_hpctls(live: Chaos):
    job = live.submit("sleep 600", "--hold", header=HEADER)
    (victim,) = live.victims(1)
    live.xid(victim)
    live.returned(victim)
    assert live.job(job).reason.startswith("JobHeld")
    assert live.of_job(job) == []
    live.sandbox.run(["scancel", str(job)])


@pytest.mark.parametrize(
    ("dependency", "options"),
    [("afterok:{job}", ()), ("afterany:{job}", ()), ("singleton", ("--job-name=only",))],
)
@story(
    job="Batch job with `--dependency` (afterok, afterany, singleton) on another",
    act="the node of the other job has a fault",
    slurm="The dependent job waits until the other has ended in its next run, and then runs.",
    owner="Nothing is lost of the chain.",
)
def test_a_dependent_job_waits_for_the_restarted_one(live: Chaos, dependency: str, options):
    job = live.start(SHORT, *options, header=HEADER)
    wanted = f"--dependency={dependency.format(job=job)}"
    following = live.submit("exit 0", wanted, *options, header=HEADER)
    victim = hit(live, job)
    until(lambda: live.job(job).restarts == 1, 60, "it is requeued")
    until(lambda: live.job(following).state == "COMPLETED", 60, "the dependent job ends")
    first, second = live.job(job), live.job(following)
    assert (first.state, first.restarts) == ("COMPLETED", 1)
    assert first.end is not None
    assert second.start is not None
    assert first.end <= second.start
    live.returned(victim)


@story(
    job="Array with `--dependency=aftercorr` on another array",
    act="the node of a task of the other array has a fault",
    slurm="The task of the same index waits until the hit task has ended in its next run.",
    owner="Nothing is lost of the chain.",
)
def test_a_corresponding_task_waits_for_the_restarted_one(live: Chaos):
    body = "[ $SLURM_RESTART_COUNT ] && exit 0; [ $SLURM_ARRAY_TASK_ID = 2 ] && exit 0; sleep 600"
    array = live.submit(body, "--array=1-2", header=HEADER)
    until(lambda: task(live, array, 1).state == "RUNNING", 60, "its first task runs")
    wanted = f"--dependency=aftercorr:{array}"
    following = live.submit("exit 0", wanted, "--array=1-2", header=HEADER)
    until(lambda: task(live, following, 2).state == "COMPLETED", 60, "the second pair is done")
    (victim,) = task(live, array, 1).nodes
    live.xid(victim)
    until(lambda: task(live, following, 1).state == "COMPLETED", 60, "the first pair is done")
    assert task(live, array, 1).restarts == 1
    live.returned(victim)


def task(live: Chaos, array: int, index: int):
    """A task of an array."""
    jobs = live.scheduler.view().jobs.values()
    found = [j for j in jobs if (j.array_job, j.array_task) == (array, str(index))]
    return found[0]

"""Jobs that Slurm cannot start again: a faulty node is drained and waits for them."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER = "#!/bin/sh\n#SBATCH --exclusive\n"


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=4) as live:
        yield live


@contextmanager
def interactive(live: Chaos, *command: str) -> Iterator[int]:
    """Run a command of a user that holds an allocation; its job's id."""
    name = f"interactive-{time.monotonic_ns()}"
    process = subprocess.Popen(
        [command[0], f"--job-name={name}", "--exclusive", *command[1:]],
        env=live.sandbox.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def found() -> list[int]:
        jobs = live.scheduler.view().jobs.values()
        return [job.id for job in jobs if job.name == name and job.state == "RUNNING"]

    try:
        until(lambda: bool(found()), 60, "it runs")
        yield found()[0]
    finally:
        process.kill()
        process.wait()


def waits_for(live: Chaos, job: int, why: str) -> str:
    """Break a job's first node; see that the job runs on and that hpctl says why."""
    victim = live.job(job).nodes[0]
    live.xid(victim)
    until(lambda: live.node(victim).drained, 60, "the node is drained")
    until(lambda: why in live.explained(str(job)), 60, "hpctl says why")
    assert not live.node(victim).down
    assert live.running(job)
    assert live.of_job(job) == []
    assert f"Waiting for: job {job} of {live.job(job).user}, not requeueable" in live.explained(
        victim
    )
    return victim


@story(
    job="`sbatch --no-requeue`",
    act="its node has a fault",
    slurm="The job runs on; the node is drained, and replaced once the job has ended.",
    explain="Slurm cannot start the job again (`Requeue=0`); the node waits for it.",
    owner="Submits with `--requeue` where the job can be repeated.",
)
def test_a_job_of_no_requeue_is_left_to_end(live: Chaos):
    job = live.start("sleep 600", "--no-requeue", header=HEADER)
    victim = waits_for(live, job, "Requeue=0")
    live.sandbox.run(["scancel", str(job)])
    live.returned(victim)


@story(
    job="`salloc`",
    act="its node has a fault",
    slurm="The allocation stays; the node is drained, and replaced once it is given up.",
    explain="Slurm cannot start the job again (not a batch job).",
    owner="Ends the session when it suits.",
)
def test_an_salloc_is_left_to_end(live: Chaos):
    with interactive(live, "salloc", "sleep", "600") as job:
        victim = waits_for(live, job, "not a batch job")
        live.sandbox.run(["scancel", str(job)])
        live.returned(victim)


@story(
    job="`srun` without an allocation",
    act="its node has a fault",
    slurm="The step runs on; the node is drained, and replaced once it has ended.",
    explain="Slurm cannot start the job again (not a batch job).",
    owner="Runs the command again after it has ended.",
)
def test_a_bare_srun_is_left_to_end(live: Chaos):
    with interactive(live, "srun", "sleep", "600") as job:
        victim = waits_for(live, job, "not a batch job")
        live.sandbox.run(["scancel", str(job)])
        live.returned(victim)

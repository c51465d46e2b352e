"""Expedited requeue (Slurm 25.11): a lost node costs no delay, and a program that fails a hold."""

from collections.abc import Iterator

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER = "#!/bin/sh\n#SBATCH --requeue=expedite --exclusive\n"


@pytest.fixture(scope="module")
def live() -> Iterator[Chaos]:
    conf = "SlurmctldParameters=enable_expedited_requeue\n"
    with cluster(nodes=3, slurm_conf=conf) as live:
        release = live.sandbox.run(["sbatch", "--version"]).stdout.split()[1]
        if tuple(int(part) for part in release.split(".")[:2]) < (25, 11):
            pytest.skip(f"Slurm {release} has no expedited requeue")
        yield live


@story(
    job="Batch job of `--requeue=expedite` (Slurm 25.11 and later)",
    act="its node has a fault",
    slurm="The job runs again elsewhere, by Slurm's order or by hpctl's, whichever comes first; "
    "the node is replaced and returns.",
    explain="One recovery of the job, which ends as `resumed`; one restart.",
    owner="The job runs again by itself.",
)
def test_a_fault_under_an_expedited_job(live: Chaos) -> None:
    job = live.start("sleep 600", header=HEADER)
    (victim,) = live.job(job).nodes
    live.xid(victim)
    until(lambda: live.running(job, 1), 60, "it runs elsewhere")
    assert victim not in live.job(job).nodes
    live.returned(victim)
    until(lambda: live.of_job(job)[-1].ended, 60, "its recovery ends")
    assert [recovery.phase for recovery in live.of_job(job)] == ["resumed"]
    assert live.job(job).restarts == 1
    live.sandbox.run(["scancel", str(job)])


@story(
    job="Registered batch job of `--requeue=expedite` (Slurm 25.11 and later)",
    act="its script exits with 3",
    slurm="Slurm requeues and holds the job (`job requeued in held state`); hpctl releases no "
    "hold. `hpctl sbatch` does not ask for `expedite`, and warns where it is given.",
    explain="Slurm holds it since its last run ended with exit code 3:0, and why; `hpctl status` "
    "lists it as a problem.",
    owner="`scontrol release` runs the job again, `scancel` ends it.",
)
def test_the_program_of_an_expedited_job_fails(live: Chaos) -> None:
    policy = '--comment=hpctl:{"policy":{"restarts":2}}'
    job = live.submit("[ $SLURM_RESTART_COUNT ] && exec sleep 600; exit 3", policy, header=HEADER)
    listed = f"job {job} is held by Slurm since its last run ended: hpctl explain {job}"
    until(lambda: listed in live.hpctl("status", check=False), 60, "status lists it")
    said = live.explained(str(job))
    assert "Slurm holds it since its last run ended with exit code 3:0" in said
    assert f"`scontrol release {job}` to run it again, or `scancel {job}`" in said
    assert live.of_job(job) == []
    live.sandbox.run(["scontrol", "release", str(job)])
    until(lambda: live.running(job, 1), 60, "it runs again")
    until(lambda: listed not in live.hpctl("status", check=False), 60, "status is fine")
    live.sandbox.run(["scancel", str(job)])

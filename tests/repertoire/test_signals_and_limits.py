"""Jobs with limits, deadlines, signals, traps and time zones."""

import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hpctl.toolkit.compat import UTC
from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER = "#!/bin/bash\n#SBATCH --requeue --exclusive\n"


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=3) as live:
        yield live


def hit(live: Chaos, job: int) -> str:
    (victim,) = live.job(job).nodes
    live.xid(victim)
    return victim


def restarted(live: Chaos, job: int, victim: str) -> None:
    """Wait for a job to run elsewhere, end it, and wait for its node."""
    until(lambda: live.running(job, 1), 60, "it runs again")
    assert live.of_job(job)[0].bad_nodes == (victim,)
    live.sandbox.run(["scancel", str(job)])
    live.returned(victim)


@story(
    job="Batch job with `--deadline`",
    act="its node has a fault, and the deadline can still be met",
    slurm="The job runs again elsewhere; the deadline stays.",
    owner="The job runs again by itself.",
)
def test_a_deadline_that_can_be_met_is_kept(live: Chaos):
    job = live.start("sleep 600", "--time=1", "--deadline=now+20minutes", header=HEADER)
    before = shown(live, job, "Deadline")
    victim = hit(live, job)
    until(lambda: live.running(job, 1), 60, "it runs again")
    assert shown(live, job, "Deadline") == before
    restarted(live, job, victim)


def shown(live: Chaos, job: int, field: str) -> str:
    """A field of `scontrol show job`."""
    words = live.sandbox.run(["scontrol", "show", "job", str(job)]).stdout.split()
    return next(w for w in words if w.startswith(f"{field}=")).partition("=")[2]


@story(
    job="Batch job near its time limit",
    act="its node has a fault seconds before the limit",
    slurm="The job runs again elsewhere, with its whole time limit, as Slurm has it at a requeue.",
    owner="The job runs again by itself.",
)
def test_a_restart_begins_the_time_limit_again(live: Chaos):
    job = live.start("sleep 600", "--time=1", header=HEADER)
    victim = hit(live, job)
    until(lambda: live.running(job, 1), 60, "it runs again")
    start, end = (
        datetime.fromisoformat(shown(live, job, f"{what}Time")) for what in ("Start", "End")
    )
    assert end - start == timedelta(minutes=1)
    restarted(live, job, victim)


@story(
    job="Batch job that traps SIGTERM and takes its time",
    act="its node has a fault",
    slurm="The node is set DOWN, so the job leaves it at once and runs elsewhere.",
    owner="The script gets SIGTERM, and SIGKILL after KillWait.",
)
def test_a_script_that_traps_sigterm_does_not_delay_the_restart(live: Chaos):
    body = "trap 'touch $SLURM_JOB_ID.term' TERM; while :; do sleep 0.1; done"
    job = live.start(body, header=HEADER)
    victim = hit(live, job)
    until(lambda: live.running(job, 1), 60, "it runs again")
    trapped = Path(live.sandbox.state_dir) / f"{job}.term"
    until(trapped.exists, 60, "the script has had SIGTERM")
    restarted(live, job, victim)


@story(
    job="Batch job with `--signal=B:USR1@30`",
    act="its node has a fault",
    slurm="The job runs again elsewhere; the signal comes before the end of its new time limit.",
    owner="The restart does not send the signal of `--signal`.",
)
def test_a_restart_sends_no_signal_of_the_limit(live: Chaos):
    body = "trap 'touch $SLURM_JOB_ID.usr1' USR1; while :; do sleep 0.1; done"
    job = live.start(body, "--signal=B:USR1@1", "--time=5", header=HEADER)
    victim = hit(live, job)
    restarted(live, job, victim)
    assert not (Path(live.sandbox.state_dir) / f"{job}.usr1").exists()


@story(
    job="Batch job of a user whose TZ is not UTC",
    act="its node has a fault, and `hpctl explain` runs with that TZ",
    slurm="The job runs again elsewhere without the begin delay.",
    explain="All times are in UTC, and say so.",
    owner="The job runs again by itself.",
)
def test_a_time_zone_changes_nothing(live: Chaos, monkeypatch):
    monkeypatch.setitem(live.sandbox.env, "TZ", "Asia/Tokyo")
    job = live.start("sleep 600", header=HEADER)
    began = time.monotonic()
    victim = hit(live, job)
    until(lambda: live.running(job, 1), 60, "it runs again")
    assert time.monotonic() - began < 90, "Slurm's own delay is two minutes"
    said = live.explained(str(job))
    assert "times in UTC" in said
    opened = live.of_job(job)[0].opened
    assert abs(datetime.now(UTC) - opened) < timedelta(minutes=2)
    assert f"{opened:%H:%M:%S}" in said
    restarted(live, job, victim)

"""Canceled jobs: a job that a person cancels is canceled, whatever its script returns."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.daemon.chaos import Chaos, cluster, stays
from tests.live import until
from tests.repertoire.accounting import accounting, needs_slurmdbd, sacctmgr
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
HEADER: Final = "#!/bin/bash\n#SBATCH --requeue --exclusive\n"
REGISTERED: Final = '--comment=hpctl:{"policy":{"restarts":2,"backoff":{"first_s":0}}}'
EPILOG: Final = "#!/bin/sh\nsleep 3\n"
OWNER: Final = "games"


@pytest.fixture(scope="module")
def live() -> Iterator[Chaos]:
    # Time to read the job between the end of its script and that of its Epilog.
    files, conf = {"epilog.sh": EPILOG}, "Epilog={base}/epilog.sh\n"
    with cluster(nodes=2, slurm_conf=conf, files=files, config={"job": {"settle_s": 0.0}}) as live:
        yield live


@pytest.fixture(scope="module")
def accounted() -> Iterator[Chaos]:
    with cluster(nodes=2) as live, accounting(live):
        sacctmgr(live, "add", "user", OWNER, "account=all")
        yield live


def trap(code: int) -> str:
    """Return a script that takes a moment to save on SIGTERM, and then returns an exit code."""
    ready = 'touch "$SLURM_JOB_ID.ready"'
    return f"trap 'sleep 3; exit {code}' TERM\n{ready}\nsleep 600 &\nwait"


def start_ready(live: Chaos, body: str) -> int:
    """Start a registered job; return once its trap is set and the daemon has seen it run."""
    job = live.start(body, REGISTERED, header=HEADER)
    until((Path(live.sandbox.state_dir) / f"{job}.ready").exists, 60, "its trap is set")
    until(lambda: live.daemon_sees(job), 60, "the daemon sees it run")
    return job


def is_canceled(live: Chaos, job: int) -> None:
    """Wait until a job is CANCELLED; until then `explain` says of no other end."""

    def over() -> bool:
        said = live.explained(job)
        assert "is COMPLETED" not in said
        assert "is FAILED" not in said
        assert "failed" not in said
        seen = live.job(job)
        return seen.state == "CANCELLED" and not seen.completing

    until(over, 60, "it is canceled")
    stays(lambda: live.of_job(job) == [], 2, "no recovery opens")
    assert live.job(job).restarts == 0
    assert str(job) not in live.state().holds


@pytest.mark.parametrize("code", [0, 3, 143])
@pytest.mark.parametrize("options", [[], ["--full"]], ids=["scancel", "full"])
@story(
    job="Registered batch job whose script traps SIGTERM, saves, and returns 0, 3 or 143",
    act="its owner or an administrator runs `scancel` or `scancel --full`",
    slurm="The job is CANCELLED and stays so; while its script saves and its Epilog runs, Slurm"
    " shows it as COMPLETING.",
    explain="It is COMPLETING, then that it was canceled, and when; never that it failed or"
    " completed. No recovery opens.",
    owner="The job is not restarted, and no restart is counted.",
)
def test_a_script_that_handles_sigterm_is_canceled(
    live: Chaos, code: int, options: list[str]
) -> None:
    job = start_ready(live, trap(code))
    live.sandbox.run(["scancel", *options, str(job)])
    is_canceled(live, job)
    assert f"Job {job} was canceled at" in live.explained(job)
    until(live.all_idle, 60, "its node serves")


@pytest.mark.parametrize(
    "options", [[], ["--full"], ["--signal=KILL"]], ids=["scancel", "full", "kill"]
)
@story(
    job="Registered batch job whose script does not handle SIGTERM",
    act="its owner or an administrator runs `scancel`, `scancel --full` or `scancel --signal=KILL`",
    slurm="The job is CANCELLED and stays so.",
    explain="That it was canceled, and when. No recovery opens.",
    owner="The job is not restarted, and no restart is counted.",
)
def test_a_script_that_dies_of_the_signal_is_canceled(live: Chaos, options: list[str]) -> None:
    job = start_ready(live, 'touch "$SLURM_JOB_ID.ready"\nsleep 600')
    live.sandbox.run(["scancel", *options, str(job)])
    is_canceled(live, job)
    assert f"Job {job} was canceled at" in live.explained(job)
    until(live.all_idle, 60, "its node serves")


@pytest.mark.parametrize("body", ['touch "$SLURM_JOB_ID.ready"\nsleep 600', trap(143)])
@story(
    job="Registered batch job",
    act="its owner or an administrator runs `scancel --batch --signal=TERM`, and its script ends"
    " of the signal or returns 143",
    slurm="A signal cancels no job: Slurm calls it FAILED, and it is requeued and runs again.",
    explain="One recovery: its script was ended by signal 15, from outside.",
    owner="One restart is counted; `scancel` without `--signal` ends the job.",
)
def test_a_signal_to_the_script_cancels_no_job(live: Chaos, body: str) -> None:
    job = start_ready(live, body)
    live.sandbox.run(["scancel", "--batch", "--signal=TERM", str(job)])
    until(lambda: live.running(job, 1), 60, "it runs again")
    (recovery,) = live.of_job(job)
    assert "signal 15" in recovery.why
    live.sandbox.run(["scancel", str(job)])
    until(lambda: f"Job {job} was canceled at" in live.explained(job), 60, "explain says so")
    until(live.all_idle, 60, "its node serves")


@needs_slurmdbd
@pytest.mark.parametrize("by", ["root", OWNER])
@story(
    job="Batch job in a cluster with slurmdbd",
    act="its owner or an administrator runs `scancel`",
    slurm="The job is CANCELLED; `sacct` has it as `CANCELLED by` the number of that account.",
    explain="That it was canceled, when, and by which account. Without slurmdbd Slurm tells nobody"
    " by whom.",
)
def test_explain_names_who_canceled_a_job(accounted: Chaos, by: str) -> None:
    live = accounted
    options = (f"--uid={OWNER}", "--output=/dev/null", "--account=all")
    job = live.start("sleep 600", *options, header=HEADER)
    identity = [f"--reuid={by}", "--regid=65534", "--clear-groups"]
    live.sandbox.run(["setpriv", *identity, "scancel", str(job)])
    until(lambda: f"UTC by {by}." in live.explained(job), 60, "explain names the account")
    assert live.of_job(job) == []
    until(live.all_idle, 60, "its node serves")

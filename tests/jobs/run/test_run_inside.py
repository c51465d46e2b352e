"""The supervisor on a real Slurm: whose job it is, and ranks restarted in their own step."""

import subprocess
import sys

import pytest

from tests.jobs.run.test_run_live import Job
from tests.sandbox.test_training import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


@pytest.fixture
def job(slurm, shared):
    one = Job(slurm, shared)
    yield one
    slurm.run(["scancel", str(one.id)], check=False)


PATIENT = "hang_floor_s: 6\nhang_start_s: 300\n"
"""A busy machine stops a rank for seconds between two steps, and for longer before the first."""
HANGS = """
import os, signal, time
from hpctl import progress
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["HPCTL_ATTEMPT"] == "1"
for step in range(1, 12):
    progress.step(step, loss=1.0)
    time.sleep(0.1)
    if first and step == 5 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    while first and step == 5:
        time.sleep(1)
open(os.environ["DIR"] + "/finished." + os.environ["RANK"], "w").close()
"""


def test_a_hang_is_fixed_by_new_ranks_in_the_same_step(job: Job) -> None:
    rank, policy = job.dir / "rank.py", job.dir / "policy.yaml"
    rank.write_text(HANGS)
    policy.write_text(PATIENT)
    job.submit_command(str(rank), run=f"--spares 1 --torch --nproc 1 --policy {policy}")
    log = job.ended(timeout=40)
    assert "hang -> process: " in log
    assert "generation 1: 2 ranks on 2 nodes" in log
    assert "attempt 2" not in log
    (treated,) = [line for line in job.past() if line["type"] == "treated"]
    assert treated["action"] == "process"
    assert "no step for" in treated["trouble"]["why"]
    assert all((job.dir / f"finished.{rank}").exists() for rank in (0, 1))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("batch", "say"),
    [
        ("", 'echo "hpctl-progress step=$1 loss=1.0"'),
        (
            'export HPCTL_PROGRESS="file:$DIR/progress"',
            'echo "step=$1 loss=1.0" >> "${HPCTL_PROGRESS#file:}"',
        ),
    ],
    ids=["log", "file"],
)
def test_shell_job_without_progress_is_a_hang(job: Job, batch: str, say: str) -> None:
    policy = job.dir / "policy.yaml"
    policy.write_text(PATIENT)
    body = f"""say() {{ {say}; }}
[ "$HPCTL_ATTEMPT" = 2 ] && {{ say 6; exit 0; }}
for step in 1 2 3 4 5; do say $step; sleep 0.2; done
exec sleep 300
"""
    job.submit(body, run=f"--policy {policy}", batch=batch, nodes=1)
    log = job.ended(timeout=40)
    assert "hang -> step: no step for" in log
    assert "since step 5" in log
    assert "attempt 2 on 1 node" in log


def _run(slurm, directory, job_id):
    """`hpctl run` outside of any job, told that it is in one."""
    reported = {"SLURM_JOB_ID": str(job_id), "SLURM_JOB_NODELIST": slurm.nodes[0]}
    env = {**slurm.env, **reported, "PYTHONPATH": str(ROOT), "HOME": str(directory)}
    line = [sys.executable, "-m", "hpctl", "run", "--", "touch", str(directory / "ran")]
    return subprocess.Popen(slurm.command(line), env=env, stderr=subprocess.PIPE, text=True)


def test_unknown_job_is_reported_at_once(slurm, job):
    run = _run(slurm, job.dir, 999_999)
    _, output = run.communicate(timeout=60)
    assert run.returncode == 1
    (line,) = output.splitlines()
    assert "Slurm does not know job 999999, in which hpctl run was started, so nothing" in line
    assert not (job.dir / "ran").exists()

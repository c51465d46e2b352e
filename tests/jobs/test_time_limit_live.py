"""Jobs of `hpctl sbatch` that reach their time limit, with plain srun and with `hpctl run`.

slurmctld looks at time limits twice a minute, and the shortest limit is a minute.
"""

from pathlib import Path

import pytest

from hpctl.vocabulary.trouble import TroubleKind
from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
LIMIT_S = 150
"""A minute, slurmctld's look, and KillWait."""


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=4) as found:
        yield found


def submit(live: Chaos, base: Path, body: str, *options: str) -> int:
    script = base / "job.sh"
    script.write_text(f"#!/bin/bash\n#SBATCH -N1 --time=1\n{body}\n")
    return live.sbatch(script, *options)


@pytest.fixture(scope="module")
def jobs(live):
    """The jobs of this module, submitted together: they all wait for the same minute."""
    found: dict[str, tuple[int, Path]] = {}
    more = {"saves": [], "forgets": [], "array": ["--array=1-2"], "fixed": ["--no-requeue"]}
    for name, given in more.items():
        base = Path(live.sandbox.state_dir) / name
        (base / "ckpt").mkdir(parents=True)
        place = f"{base}/ckpt" + ("/{array_task_id}" if name == "array" else "")
        options = [] if name == "forgets" else [f"--checkpoint-dir={place}"]
        body = 'echo "begun $SLURM_RESTART_COUNT"\n[ "$SLURM_ARRAY_TASK_ID" = 2 ] || srun sleep 600'
        found[name] = (submit(live, base, body, *options, *given), base)
    return found


def test_a_job_with_plain_srun_is_started_again(live, jobs):
    job, base = jobs["saves"]
    until(lambda: live.running(job, 1), LIMIT_S, "it runs again")
    (first, *_) = live.of_job(job)
    assert first.trouble.kind is TroubleKind.TIME_LIMIT
    until(lambda: live.of_job(job)[0].phase == "resumed", 60, "the restart is proved")
    until(lambda: "begun 1" in (base / "log").read_text(), 60, "its script runs again")
    assert "the script ended" not in (base / "log").read_text()
    said = live.explained(str(job))
    assert "it reached its time limit" in said
    assert "failed" not in said
    live.sandbox.run(["scancel", str(job)])


def test_a_job_without_checkpoints_stays_ended_and_says_why(live, jobs):
    job, _ = jobs["forgets"]
    until(lambda: live.job(job).state == "TIMEOUT", LIMIT_S, "its limit is reached")
    until(lambda: not live.job(job).completing, 60, "it has ended")
    said = live.explained(str(job))
    assert "is TIMEOUT; it reached its time limit: it has no --checkpoint-dir" in said
    assert "it is protected" not in said
    assert live.of_job(job) == []
    assert live.job(job).restarts == 0


def test_a_task_of_an_array_is_started_again_and_the_others_are_not(live, jobs):
    array, _ = jobs["array"]
    hit = 0

    def restarted() -> bool:
        nonlocal hit
        tasks = {job.shown: job for job in live.scheduler.view().jobs.values()}
        hit = int(tasks[f"{array}_1"].id)
        return live.running(hit, 1)

    until(restarted, LIMIT_S, "the task runs again")
    assert [r.trouble.kind for r in live.of_job(hit)] == [TroubleKind.TIME_LIMIT]
    assert "it reached its time limit" in live.explained(f"{array}_1")
    done = next(j for j in live.scheduler.view().jobs.values() if j.shown == f"{array}_2")
    assert (done.state, done.restarts) == ("COMPLETED", 0)
    live.sandbox.run(["scancel", str(array)])


def test_a_job_that_slurm_may_not_requeue_stays_ended_and_says_why(live, jobs):
    job, _ = jobs["fixed"]
    until(lambda: live.job(job).state == "TIMEOUT", LIMIT_S, "its limit is reached")
    until(lambda: not live.job(job).completing, 60, "it has ended")
    said = live.explained(str(job))
    assert "it reached its time limit: Slurm cannot start it again (Requeue=0)" in said
    assert live.of_job(job) == []
    assert str(job) not in live.state().holds, "its owner chose that, and no person has to act"
    live.hpctl("status")

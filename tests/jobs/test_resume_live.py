"""Going back on a real Slurm: a training loop that is poisoned after step 30 goes on from 20."""

import json
import sys
from pathlib import Path

import pytest

from hpctl.checkpoints import hpctl_checkpoint
from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]

TRAIN = """
import os, pathlib, sys, time

sys.path.insert(0, {helper!r})
import hpctl_checkpoint

MOST = [40, 30, 50]  # steps of each run
run = int(os.environ["HPCTL_RESTART_COUNT"])
start = os.environ.get("HPCTL_RESUME_FROM", "")
first, _, end = os.environ.get("HPCTL_SKIP", "0:0").partition(":")
skip = range(int(first), int(end))
loss = pathlib.Path(start, "loss").read_text() if start else "1.0"
step = int(start.rpartition("-")[2] or 0) if start else 0
print(f"run {{run}} from {{step}} loss {{loss}} skip {{first}}:{{end}}", flush=True)
while step < MOST[run]:
    if step == 25 and step not in skip:
        loss = "nan"  # the bad batch
    step += 1
    if step % 10 == 0:
        with hpctl_checkpoint.saving(step, ranks=1) as save:
            pathlib.Path(save.path("loss")).write_text(loss)
print(f"run {{run}} is done", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=3) as found:
        yield found


@pytest.mark.nightly
def test_a_task_of_an_array_goes_back_and_the_other_does_not_notice(live):
    job, base = submit(live, "array", "srun", TRAIN, "--array=0-1", task="/{array_task_id}")
    log = base / "log"
    until(lambda: log.exists() and log.read_text().count("run 0 is done") == 2, 60, "first runs")
    said = live.hpctl("resume", f"{job}_1", "--from-step", "20", "--yes")
    assert f"job {job}_1: its next run resumes from step 20" in said
    until(lambda: "run 1 from 20 loss 1.0" in log.read_text(), 60, "the second run of the task")
    assert log.read_text().count("run 1 from") == 1
    marks = [path.parent.parent.name for path in base.glob("ckpt/*/.hpctl-marks/*.json")]
    assert marks == ["1"]
    live.sandbox.run(["scancel", str(job)])


def submit(
    live: Chaos, name: str, launch: str, program: str = TRAIN, *options: str, task: str = ""
) -> tuple[int, Path]:
    base = Path(live.sandbox.state_dir) / name
    (base / "ckpt").mkdir(parents=True)
    helper = str(Path(hpctl_checkpoint.__file__).parent)
    (base / "train.py").write_text(program.format(helper=helper))
    script = base / "job.sh"
    script.write_text(f"#!/bin/bash\n#SBATCH -N1\n{launch} {sys.executable} {base}/train.py\n")
    return live.sbatch(script, f"--checkpoint-dir={base}/ckpt{task}", *options), base


NAN = """
import os, pathlib, sys, time

sys.path.insert(0, {helper!r})
import hpctl_checkpoint

attempt = int(os.environ["HPCTL_ATTEMPT"])
start = os.environ.get("HPCTL_RESUME_FROM", "")
step = int(start.rpartition("-")[2]) if start else 0
print(f"attempt {{attempt}} from {{step}}", flush=True)
while step < 40:
    step += 1
    bad = attempt == 1 and step > 25
    print(f"hpctl-progress step={{step}} loss={{'nan' if bad else 0.5}}", flush=True)
    if step % 10 == 0:
        with hpctl_checkpoint.saving(step, ranks=1) as save:
            pathlib.Path(save.path("loss")).write_text("nan" if bad else "0.5")
print(f"attempt {{attempt}} is done", flush=True)
time.sleep(600)
"""


def test_checkpoint_after_a_nan_loss_is_passed_over_automatically(live):
    job, base = submit(live, "nan", f"{sys.executable} -m hpctl run", NAN)
    log = base / "log"
    until(lambda: log.exists() and "attempt 2 is done" in log.read_text(), 90, "a restart")
    text = log.read_text()
    assert "attempt 2 from 20" in text
    assert "checkpoints saved at or after step 26 are passed over: rank 0" in text
    for step in (30, 40):
        assert (base / "ckpt" / f"step-000000{step}" / "loss").read_text() == "0.5"
    live.sandbox.run(["scancel", str(job)])


LAUNCH = {"srun": "srun", "supervised": f"{sys.executable} -m hpctl run"}


@pytest.mark.parametrize("way", LAUNCH)
def test_a_job_goes_back_skips_the_batch_and_uses_what_it_saves_again(live, way):
    job, base = submit(live, way, LAUNCH[way])
    log = base / "log"
    until(lambda: log.exists() and "run 0 is done" in log.read_text(), 60, "the first run")
    said = json.loads(
        live.hpctl("resume", str(job), "--from-step", "25", "--skip-batches", "1",
                   "--why", "loss is NaN", "--yes", "--json")
    )  # fmt: skip
    assert (said["step"], said["ok"], said["action"]) == (20, True, "requeue")
    assert [Path(path).name for path in said["later"]] == ["step-00000040", "step-00000030"]
    until(lambda: "run 1 is done" in log.read_text(), 60, "the second run")
    text = log.read_text()
    assert "run 1 from 20 loss 1.0 skip 25:26" in text
    assert "marked as poisoned by " in text if way == "srun" else True
    saved = base / "ckpt" / "step-00000030" / "loss"
    assert saved.read_text() == "1.0", "the step that was saved again has its name"
    kept = [path for path in (base / "ckpt").iterdir() if "passed-over" in path.name]
    assert [(path / "loss").read_text() for path in kept] == ["nan"]
    listed = live.hpctl("checkpoint", "ls", f"{base}/ckpt")
    assert listed.count("loss is NaN") == 2
    live.xid(*live.job(job).nodes)
    until(lambda: "run 2 is done" in log.read_text(), 90, "a node is lost, and the third run")
    assert "run 2 from 30 loss 1.0 skip 0:0" in log.read_text()
    live.sandbox.run(["scancel", str(job)])


def test_a_held_job_and_one_that_has_ended_go_back(live):
    job, base = submit(live, "held", "srun")
    log = base / "log"
    until(lambda: log.exists() and "run 0 is done" in log.read_text(), 60, "the first run")
    live.sandbox.run(["scancel", str(job)])
    until(lambda: live.job(job).state == "CANCELLED" and not live.job(job).completing, 60, "ended")
    live.hpctl("resume", str(job), "--from-step", "20", "--yes")
    until(lambda: "run 1 from 20 loss 1.0" in log.read_text(), 60, "the second run")
    live.sandbox.run(["scontrol", "requeuehold", str(job)])
    until(lambda: live.job(job).state == "PENDING" and not live.job(job).completing, 60, "held")
    said = live.hpctl("resume", str(job), "--from-step", "10")
    assert f"job {job}: released" in said
    until(lambda: "run 2 from 10" in log.read_text(), 60, "the third run")
    live.sandbox.run(["scancel", str(job)])


def test_errors_name_what_there_is(live):
    job = live.start("sleep 600")
    plain = live.sandbox.run(
        [sys.executable, "-m", "hpctl", "resume", str(job), "--from-step", "1"], check=False
    )
    assert plain.returncode == 1
    assert f"where job {job} resumes: it was not submitted with hpctl sbatch" in plain.stderr
    gone = live.sandbox.run(
        [sys.executable, "-m", "hpctl", "resume", "99999", "--from-step", "1"], check=False
    )
    assert gone.returncode == 1
    assert "Slurm does not know job 99999" in gone.stderr
    live.sandbox.run(["scancel", str(job)])

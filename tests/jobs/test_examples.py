"""The examples as a researcher would run them, as far as a machine without GPUs allows."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.process import run_text
from tests.sandbox.test_training import ROOT

pytestmark = pytest.mark.integration

EXAMPLES = Path(ROOT) / "examples"
STAND_IN = Path(ROOT) / "tests/stubs/megatron_lm"
ITERATIONS, SAVE_EVERY = 40, 10


@pytest.fixture(scope="module")
def live():
    with cluster({}, nodes=6) as one:
        yield one


@pytest.mark.parametrize(
    "script", sorted(EXAMPLES.glob("**/*.sbatch")), ids=lambda p: p.parent.name
)
def test_each_example_script_is_accepted_unchanged(script, tmp_path):
    subprocess.run(["bash", "-n", script], check=True, timeout=60)
    fake = tmp_path / "sbatch"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    args = [sys.executable, "-m", "hpctl", "sbatch", "--dry-run", f"--slurm-bin={tmp_path}"]
    done = run_text(
        [*args, f"--checkpoint-dir={tmp_path}/run", script], env={**os.environ, "PYTHONPATH": ROOT}
    )
    assert done.returncode == 0, done.stderr
    assert "HPCTL_RESUME_FROM" in done.stdout
    for line in done.stderr.splitlines():
        # What is wrong on this machine (a directory on its own disk) says nothing of the script.
        assert "warning" not in line.lower() or str(tmp_path) in line, done.stderr


HPCTL = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@pytest.mark.parametrize(
    ("resume", "rank", "output"),
    [("iter_0000080", "0", "80"), ("iter_0000080", "1", ""), ("", "0", "")],
)
def test_the_first_rank_of_megatron_has_the_pointer_name_what_it_resumes_from(
    tmp_path, resume, rank, output
):
    for name, text in (("hpctl", HPCTL), ("python", '#!/bin/sh\necho "$@"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    pointer = tmp_path / "latest_checkpointed_iteration.txt"
    pointer.write_text("")  # as a write that was cut off leaves it
    done = run_text(
        ["bash", EXAMPLES / "megatron/train.sbatch", "--num-layers", "2"],
        env={
            "PATH": os.environ["PATH"], "RANK": rank, "MEGATRON_LM": "/lm",
            "HPCTL_PYTHON": f"{tmp_path}/hpctl", "PYTHON": f"{tmp_path}/python",
            "HPCTL_CHECKPOINT_DIR": str(tmp_path),
            "HPCTL_RESUME_FROM": resume and f"{tmp_path}/{resume}",
        },
        timeout=60, check=True,
    )  # fmt: skip
    words = f"-u /lm/pretrain_gpt.py --load {tmp_path} --save {tmp_path} --save-interval 500"
    insist = " --exit-on-missing-checkpoint" if resume else ""
    assert done.stdout == f"{words} --ckpt-format torch_dist --num-layers 2{insist}\n"
    assert pointer.read_text() == output


@pytest.mark.nightly
@pytest.mark.slurm
def test_megatron_comes_back_from_a_lost_rank_and_a_torn_checkpoint(live, shared):
    calm = megatron(live, shared / "calm")
    hurt = megatron(live, shared / "hurt")
    pointer = shared / "hurt/latest_checkpointed_iteration.txt"
    until(lambda: pointer.exists() and int(pointer.read_text() or 0) >= 20, 90, "it has saved")
    newest = int(pointer.read_text())
    shards = sorted((shared / f"hurt/iter_{newest:07d}").glob("*.distcp"))
    os.truncate(shards[0], shards[0].stat().st_size // 2)
    os.kill(int((shared / "hurt/pid-1").read_text()), signal.SIGKILL)
    ended(live, calm, shared / "calm")
    ended(live, hurt, shared / "hurt")
    assert final(shared / "hurt") == final(shared / "calm")


def megatron(live: Chaos, folder: Path) -> int:
    script = folder.parent / "train.sbatch"
    text = (EXAMPLES / "megatron/train.sbatch").read_text()
    # Saves every 500 iterations there; here a job has 40.
    script.write_text(text.replace("--save-interval 500", f"--save-interval {SAVE_EVERY}"))
    args = [
        sys.executable, "-m", "hpctl", "sbatch", "--parsable", f"--checkpoint-dir={folder}",
        f"--output={folder.parent}/job-%j.log", str(script), f"--train-iters={ITERATIONS}",
        "--step-s=0.1",
    ]  # fmt: skip
    env = {
        "PYTHON": sys.executable, "PYTHONPATH": ROOT, "MEGATRON_LM": str(STAND_IN),
        "GPUS_PER_NODE": "1", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return int(live.sandbox.run(args, env=env).stdout.strip())


def ended(live: Chaos, job: int, folder: Path) -> None:
    limit = time.monotonic() + 150
    while not (folder / "final.json").exists():
        if time.monotonic() > limit:
            log = folder.parent / f"job-{job}.log"
            raise AssertionError(f"job {job} is not complete:\n{log.read_text()[-6000:]}")
        time.sleep(0.3)


def final(folder: Path) -> object:
    return json.loads((folder / "final.json").read_text())

"""A job that saves in a format of its own, on a real Slurm: requeued, it goes on from its newest
whole checkpoint. Its Python and its shell have nothing of hpctl."""

import subprocess
import sys
from pathlib import Path

import pytest

from hpctl.jobs.checkpoints.search import Checkpoint, every, last_complete
from hpctl.sandbox.api import Sandbox
from tests.integration.test_training_slurm import ROOT, requeue, shared, submit, wait, wait_for_text

__all__ = ["shared"]
pytestmark = [pytest.mark.slurm, pytest.mark.nightly]

PYTHON = """
import importlib.util, json, os, sys, time
sys.path.insert(0, os.environ["HELPER"])
from hpctl_checkpoint import saving
assert importlib.util.find_spec("hpctl") is None
rank, start, begun = os.environ["SLURM_PROCID"], os.environ.get("HPCTL_RESUME_FROM"), 0
if start:
    with open(os.path.join(start, rank + ".json")) as file:
        begun = json.load(file)["step"]
print(f"rank {rank} begins at {begun}", flush=True)
for step in range(begun + 5, 25, 5):
    with saving(step) as save:
        with open(save.path(rank + ".json"), "w") as file:
            json.dump({"step": step}, file)
        if step == 15 and rank == "1" and not start:
            print("torn", flush=True)
            time.sleep(600)
print(f"rank {rank} is done", flush=True)
"""

SHELL = """
begun=0
if [ -n "${HPCTL_RESUME_FROM:-}" ]; then begun=$(cat "$HPCTL_RESUME_FROM/state"); fi
echo "rank 0 begins at $begun"
step=$((begun + 5))
while [ "$step" -le 20 ]; do
    made=$HPCTL_CHECKPOINT_DIR/step-$step.tmp-$SLURM_JOB_ID-$HPCTL_RESTART_COUNT
    mkdir "$made"
    echo "$step" >"$made/state"
    if [ "$step" = 15 ] && [ "$begun" = 0 ]; then
        echo torn
        sleep 600
    fi
    sh "$HELPER/hpctl_checkpoint.sh" "$made" "$step"
    step=$((step + 5))
done
echo "rank 0 is done"
"""


def scripts(shared: Path) -> dict[str, str]:
    """Batch scripts; the helpers as a user gets them, where all nodes see them."""
    for words, name in (((), "hpctl_checkpoint.py"), (("--shell",), "hpctl_checkpoint.sh")):
        printed = subprocess.run(
            [sys.executable, "-m", "hpctl", "checkpoint", "helper", *words],
            cwd=ROOT, check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        (shared / name).write_bytes(printed.stdout)
    (shared / "train.py").write_text(PYTHON)
    head = f"#!/bin/sh -eu\nexport HELPER={shared}\n"
    bare = f"{getattr(sys, '_base_executable', sys.executable)} -I -S"
    return {
        "python": f"{head}export PYTHONPATH={ROOT}\n"
        f'exec "$HPCTL_PYTHON" -m hpctl run -- {bare} {shared}/train.py\n',
        "shell": head + SHELL,
    }


@pytest.mark.parametrize(("kind", "ranks"), [("python", 2), ("shell", 1)])
def test_a_requeued_job_goes_on_from_its_newest_whole_checkpoint(
    slurm: Sandbox, shared: Path, kind: str, ranks: int
) -> None:
    script, out, ck = shared / "job.sh", shared / "out", shared / "ck"
    script.write_text(scripts(shared)[kind])
    # What the program wrote before it had the helper.
    (ck / "step-3").mkdir(parents=True)
    for number in range(11):
        (ck / f"step-3/{number}.json").write_text("{}")
    words = [f"--nodes={ranks}", "--ntasks-per-node=1", f"--checkpoint-dir={ck}", f"--output={out}"]
    job = submit(slurm, *words, str(script))
    wait_for_text(out, "torn")
    text = out.read_text()
    # The script's own lines say it, and so does `hpctl run` where it is used.
    said = text.count(f"11 files in {ck}/step-3, no known format")
    assert said == {"python": 2, "shell": 1}[kind]
    assert "rank 0 begins at 0" in text

    requeue(slurm, job)
    assert wait(slurm, job, "COMPLETED", "FAILED") == "COMPLETED", out.read_text()
    text = out.read_text()
    found = last_complete(ck, deep=True).found
    assert found is not None
    assert (found.step, found.world_size) == (20, ranks)
    resumed = [row.path for row in every(ck, deep=True) if isinstance(row, Checkpoint)]
    assert f"hpctl: resuming from {resumed[2]}\n" in text
    for rank in range(ranks):
        assert f"rank {rank} begins at 10" in text
        assert text.count(f"rank {rank} is done") == 1
    assert [row.step for row in every(ck, deep=True) if isinstance(row, Checkpoint)] == [
        20, 15, 10, 5,
    ]  # fmt: skip
    torn = [path.name for path in ck.iterdir() if ".tmp" in path.name]
    assert len(torn) == 1

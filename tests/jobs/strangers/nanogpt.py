"""Trains with nanoGPT's own train.py while nodes are lost: `python -m ... DIRECTORY`.

DIRECTORY holds train.py, model.py and configurator.py of nanoGPT, which stay as they are. The text
is hpctl's own documentation. Two nodes are lost; each time training goes on from its last save.
"""

import pickle
import re
import shutil
import sys
from array import array
from pathlib import Path

from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.sandbox.test_training import ROOT

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=1 --output=log.txt
#HPCTL --checkpoint-dir {home}/out
start=scratch
if [ -n "${HPCTL_RESUME_FROM:-}" ]; then start=resume; fi
srun --unbuffered {python} -u train.py --init_from=$start --out_dir=$HPCTL_CHECKPOINT_DIR \\
    --dataset=docs --device=cpu --dtype=float32 --compile=False --eval_interval=50 --eval_iters=5 \\
    --log_interval=1 --gradient_accumulation_steps=1 --batch_size=8 --block_size=64 --n_layer=2 \\
    --n_head=2 --n_embd=64 --max_iters=2000 --lr_decay_iters=2000 --warmup_iters=20 \\
    --learning_rate=1e-3 --min_lr=1e-4
"""
LOSS = re.compile(r"^iter (\d+): loss ([\d.]+)", re.MULTILINE)


def prepare(source: Path, home: Path) -> None:
    """Lay out the program and its data as nanoGPT expects them."""
    data = home / "data" / "docs"
    data.mkdir(parents=True)
    for name in ("train.py", "model.py", "configurator.py"):
        shutil.copy(source / name, home / name)
    text = "".join(path.read_text() for path in sorted(Path(ROOT, "docs").glob("*.md")))
    letters = sorted(set(text))
    numbers = {letter: number for number, letter in enumerate(letters)}
    meta = {"vocab_size": len(letters), "stoi": numbers, "itos": dict(enumerate(letters))}
    (data / "meta.pkl").write_bytes(pickle.dumps(meta))
    cut = len(text) * 9 // 10
    for name, part in (("train", text[:cut]), ("val", text[cut:])):
        (data / f"{name}.bin").write_bytes(array("H", map(numbers.__getitem__, part)).tobytes())
    script = SCRIPT.replace("{home}", str(home)).replace("{python}", sys.executable)
    (home / "train.sbatch").write_text(script)


def losses(log: Path) -> list[list[tuple[int, float]]]:
    """Return the iterations and losses of each start."""
    runs: list[list[tuple[int, float]]] = []
    for found in LOSS.finditer(log.read_text(errors="replace") if log.exists() else ""):
        number, loss = int(found[1]), float(found[2])
        if not runs or number <= runs[-1][-1][0]:
            runs.append([])
        runs[-1].append((number, loss))
    return runs


def play(live: Chaos, source: Path) -> None:
    """Train, lose two nodes, and compare the curve."""
    home = Path(live.sandbox.state_dir) / "nanogpt"
    prepare(source, home)
    command = [sys.executable, "-m", "hpctl", "sbatch", "--parsable", "train.sbatch"]
    done = live.sandbox.run(command, env={"PYTHONPATH": ROOT}, cwd=home)
    print(done.stderr)
    job, log = int(done.stdout.split()[-1]), home / "log.txt"
    for run, far in ((0, 120), (1, 300)):
        until(lambda: len(losses(log)) > run, 120, f"start {run} trains")  # noqa: B023
        first = losses(log)[run][0][0]
        until(lambda: losses(log)[run][-1][0] >= first + far, 120, "it has saved")  # noqa: B023
        live.xid(*live.job(job).nodes)
    until(lambda: live.job(job).state in ("COMPLETED", "FAILED", "CANCELLED"), 240, "it ends")
    print(re.sub(r"(?m)^iter .*\n", "", log.read_text(errors="replace"))[-6000:])
    runs = losses(log)
    for number, run in enumerate(runs):
        last = sum(loss for _, loss in run[-20:]) / len(run[-20:])
        begin = sum(loss for _, loss in run[1:21]) / len(run[1:21])
        print(f"start {number}: iterations {run[0][0]}-{run[-1][0]}, loss {begin:.3f}-{last:.3f}")
    print(live.job(job).state, live.job(job).restarts)
    print(live.explained(job))


if __name__ == "__main__":
    with cluster(nodes=4) as found:
        play(found, Path(sys.argv[1]).resolve())

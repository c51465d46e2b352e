"""The examples of docs/training-environment.md, with the real libraries, over two attempts.

wandb, MLflow and TensorBoard are no dependencies of the tests: $HPCTL_TRACKERS_PYTHON names the
Python of an environment that has them (docs/development.md), or what is missing is skipped. None
needs a network.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

pytestmark = [pytest.mark.nightly]
PAGE = ROOT / "docs/training-environment.md"
PYTHON = os.environ.get("HPCTL_TRACKERS_PYTHON", sys.executable)
MISSING = 77
"""The exit code of a program whose library is not installed."""


def example(name: str) -> str:
    """Return the code block of the page that begins with `# example: NAME`."""
    blocks = re.findall(r"```python\n# example: (\w+)\n(.*?)```", PAGE.read_text(), re.S)
    return dict(blocks)[name]


def attempt(where: Path, code: str, **variables: str) -> object:
    """Run code as an attempt of job 4711, and return the JSON that it prints last."""
    text = (
        f"import json, sys\ntry:\n    import {variables.pop('needs')}\n"
        f"except ImportError as error:\n    print(error)\n    sys.exit({MISSING})\n{code}"
    )
    (where / "train.py").write_text(text)
    environment = {
        **os.environ,
        "SLURM_JOB_ID": "4711",
        "HPCTL_CHECKPOINT_DIR": str(where),
        "HOME": str(where),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_TRACKING_URI": f"file://{where}/mlruns",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(where),
        **variables,
    }
    done = subprocess.run(
        [PYTHON, "train.py"],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )  # fmt: skip
    if done.returncode == MISSING:
        pytest.skip(f"HPCTL_TRACKERS_PYTHON is not set: {done.stdout.strip()}")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_weights_and_biases_keeps_the_id_of_the_run(tmp_path: Path):
    code = example("wandb") + (
        "first = int(os.environ['FIRST'])\n"
        "for n in range(first, first + 3):\n    log(n, loss=1.0 / (1 + n))\n"
        "wandb.finish()\nprint(json.dumps(run.id))\n"
    )
    assert attempt(tmp_path, code, needs="wandb", FIRST="0") == "4711"
    assert attempt(tmp_path, code, needs="wandb", FIRST="2") == "4711"
    kept = sorted(path.name for path in (tmp_path / "wandb").glob("offline-run-*"))
    assert len(kept) == 2
    assert all(name.endswith("-4711") for name in kept)


def test_mlflow_continues_the_run_of_the_first_attempt(tmp_path: Path):
    code = example("mlflow") + (
        "first = int(os.environ['FIRST'])\n"
        "for n in range(first, first + 3):\n    log(n, loss=10.0 * n + first)\n"
        "if first == 0:  # its node is lost: nothing is ended\n"
        "    print(json.dumps(run.info.run_id), flush=True)\n    os._exit(0)\n"
        "mlflow.end_run()\n"
        "client = mlflow.MlflowClient()\n"
        "history = client.get_metric_history(run.info.run_id, 'loss')\n"
        "status = client.get_run(run.info.run_id).info.status\n"
        "print(json.dumps([run.info.run_id, [[m.step, m.value] for m in history], status]))\n"
    )
    first = attempt(tmp_path, code, needs="mlflow", FIRST="0")
    again, history, status = attempt(tmp_path, code, needs="mlflow", FIRST="2")
    assert (again, status) == (first, "FINISHED")
    steps = [[0, 0.0], [1, 10.0], [2, 20.0], [2, 22.0], [3, 32.0], [4, 42.0]]
    assert history == steps


def test_tensorboard_shows_each_step_once(tmp_path: Path):
    code = (
        "first_step = int(__import__('os').environ['FIRST'])\n"
        + example("tensorboard")
        + (
            "for n in range(first_step, first_step + 4):\n"
            "    writer.add_scalar('loss', 10.0 * n + first_step, n)\n"
            "writer.close()\n"
            "from tensorboard.backend.event_processing import event_accumulator\n"
            "events = event_accumulator.EventAccumulator(writer.log_dir)\n"
            "events.Reload()\n"
            "print(json.dumps([[e.step, e.value] for e in events.Scalars('loss')]))\n"
        )
    )
    needs = "tensorboard, torch.utils.tensorboard"
    assert attempt(tmp_path, code, needs=needs, FIRST="0") == [[0, 0], [1, 10], [2, 20], [3, 30]]
    shown = attempt(tmp_path, code, needs=needs, FIRST="2")
    assert shown == [[0, 0], [1, 10], [2, 22], [3, 32], [4, 42], [5, 52]]


TRAIN = """
import os

sampler = ResumableSampler(12, seed=7)
loader = torch.utils.data.DataLoader(
    list(range(12)), batch_size=2, sampler=sampler, generator=torch.Generator()
)
seen = []
if os.path.exists("state.pt"):
    state = torch.load("state.pt")
    restore_random(state["random"])
    sampler.epoch, sampler.done = state["epoch"], state["done"]
else:
    torch.manual_seed(3)
    random.seed(3)
for epoch in range(sampler.epoch, 2):
    sampler.epoch = epoch
    for batch in loader:
        seen.append([batch.tolist(), round(torch.rand(1).item(), 6), round(random.random(), 6)])
        sampler.done += len(batch)
        if len(seen) == int(os.environ["STOP"]):
            state = {"random": capture_random(), "epoch": epoch, "done": sampler.done}
            torch.save(state, "state.pt")
            print(json.dumps(seen))
            sys.exit()
    sampler.done = 0
print(json.dumps(seen))
"""


@pytest.mark.parametrize("stop", [4, 6, 9])
def test_a_run_continues_with_its_random_numbers_and_samples(tmp_path: Path, stop: int):
    code = example("random") + TRAIN
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    uninterrupted = attempt(whole, code, needs="torch", STOP="0")
    first = attempt(parts, code, needs="torch", STOP=str(stop))
    second = attempt(parts, code, needs="torch", STOP="0")
    assert first + second == uninterrupted
    assert len(uninterrupted) == 12

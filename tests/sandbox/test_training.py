"""Real training on several local ranks: undisturbed, killed and resumed, to the same bits."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpctl.checkpoints.search import find_newest_complete_checkpoint_in_tiers
from hpctl.sandbox.training.model import find_last_finished_step, read_attempts
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.integration

ROOT = str(Path(__file__).resolve().parents[2])


class Run:
    """One attempt: `size` ranks as srun would start them."""

    def __init__(self, directory: Path, size: int, *arguments: str, restart: int = 0) -> None:
        self.directory = directory
        found = (
            find_newest_complete_checkpoint_in_tiers(directory).found
            if directory.exists()
            else None
        )
        resume = {"HPCTL_RESUME_FROM": str(found.path)} if found else {}
        self.start_step = found.step if found else 0
        alike = {
            "PATH": os.environ["PATH"], "PYTHONPATH": ROOT, "HPCTL_CHECKPOINT_DIR": str(directory),
            "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restart), "SLURM_NTASKS": str(size),
            **resume,
        }  # fmt: skip
        command = [sys.executable, "-m", "hpctl.sandbox.training", "--step-s", "0", *arguments]
        out, self.ranks = subprocess.PIPE, []
        for rank in range(size):
            own = {"SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"ip-127-0-1-{1 + rank % 2}"}
            self.ranks.append(
                subprocess.Popen(
                    command, env=alike | own, stdout=out, stderr=subprocess.STDOUT, text=True
                )
            )

    def wait(self, timeout: float = 2 * PATIENCE_S) -> tuple[list[int], str]:
        """Exit codes and all output. A rank that hangs fails the test."""
        deadline = time.monotonic() + timeout
        outputs = [
            rank.communicate(timeout=max(0.1, deadline - time.monotonic()))[0]
            for rank in self.ranks
        ]
        return [rank.returncode for rank in self.ranks], "".join(outputs)

    def wait_for_step(self, step: int, timeout: float = PATIENCE_S) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for file in self.directory.glob("progress-*.txt"):
                if (
                    find_last_finished_step(self.directory, file.stem.removeprefix("progress-"))
                    >= step
                ):
                    return
            time.sleep(0.01)
        raise AssertionError(f"step {step} was not reached in {timeout} s")

    def kill(self) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
            if rank.stdout:
                rank.stdout.close()


@pytest.fixture
def runs():
    made: list[Run] = []
    yield made
    for run in made:
        run.kill()


def final(directory: Path) -> dict[str, object]:
    return json.loads((directory / "final.json").read_text())


@pytest.mark.parametrize("size", [2, 4])
def test_killed_and_resumed_gives_the_same_bits(tmp_path, runs: list[Run], size: int) -> None:
    arguments = ("--steps", "60", "--checkpoint-every", "7")
    runs.append(Run(tmp_path / "calm", size, *arguments))
    codes, output = runs[-1].wait()
    assert codes == [0] * size, output
    want = final(tmp_path / "calm")
    assert "step 60 loss" in output

    randomness, restarts, lost = random.Random(size), 0, []
    while True:
        runs.append(Run(tmp_path / "hit", size, *arguments, "--step-s", "0.02", restart=restarts))
        if restarts == 3:
            break
        runs[-1].wait_for_step(runs[-1].start_step + randomness.randint(3, 18))
        victim = randomness.choice(runs[-1].ranks)
        victim.send_signal(signal.SIGKILL)
        codes, output = runs[-1].wait()
        assert sorted({c for c in codes if c != -signal.SIGKILL}) in ([1], []), output
        started = read_attempts(tmp_path / "hit")[-1]["attempt"]
        found = find_newest_complete_checkpoint_in_tiers(tmp_path / "hit").found
        lost.append(
            find_last_finished_step(tmp_path / "hit", started) - (found.step if found else 0)
        )
        restarts += 1
    codes, output = runs[-1].wait()
    assert codes == [0] * size, output
    got = final(tmp_path / "hit")
    assert (got["sha256"], got["steps"], got["steps_lost"]) == (want["sha256"], 60, lost)
    assert len(got["attempts"]) == 4
    assert sum(got["resumed_from"]) > 0, "no attempt resumed: nothing was tested"

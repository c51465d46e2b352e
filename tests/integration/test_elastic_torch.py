"""Real PyTorch on CPU under the launchers: a rank that dies, raises or hangs changes no bit."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.elastic_bed import Launchers, program, until_gone, with_torch

__all__ = ["with_torch"]

STEPS = 40
WORDS = (f"--steps={STEPS}", "--checkpoint-every=7", "--step-s=0.02")


@pytest.fixture
def launchers(tmp_path: Path) -> Iterator[list[Launchers]]:
    made: list[Launchers] = []
    yield made
    for each in made:
        each.close()


@pytest.fixture
def calm(tmp_path: Path, launchers: list[Launchers]) -> Launchers:
    """An undisturbed run of two ranks."""
    launchers.append(Launchers(tmp_path / "calm", [*program(tmp_path), *WORDS], nodes=1))
    assert launchers[0].wait(120) == [0], launchers[0].text()
    assert sorted(launchers[0].curve()) == list(range(1, STEPS + 1))
    return launchers[0]


def kill_one(run: Launchers, rank: int, step: int) -> None:
    """SIGKILL a rank when rank 0 has told of that step."""
    run.await_(lambda: any(line["step"] >= step for line in run.losses()), f"step {step}", 90)
    os.kill(run.rank_pids()[rank], signal.SIGKILL)


def test_a_killed_rank_changes_no_bit(
    calm: Launchers, launchers: list[Launchers], tmp_path: Path
) -> None:
    run = Launchers(tmp_path, [*program(tmp_path), *WORDS], nproc=1)
    launchers.append(run)
    step = random.randint(2, STEPS - 8)
    print(f"rank 1 is killed at step {step}")
    kill_one(run, 1, step)
    assert run.wait(120) == [0, 0], run.text()
    assert run.account().restarts == 1, run.text()
    assert run.curve() == calm.curve()
    assert run.weights() == calm.weights()
    assert until_gone(run) == []


@pytest.mark.nightly
def test_a_sharded_run_comes_back_from_its_distributed_checkpoint(
    launchers: list[Launchers], tmp_path: Path
) -> None:
    words = [*program(tmp_path), "--fsdp", *WORDS]
    calm = Launchers(tmp_path / "calm", words, nodes=1)
    launchers.append(calm)
    assert calm.wait(120) == [0], calm.text()
    run = Launchers(tmp_path / "killed", words, nodes=1)
    launchers.append(run)
    kill_one(run, 0, 24)
    assert run.wait(120) == [0], run.text()
    (_, second) = run.account().generations
    assert second.resumed_from == str(run.save / "step-00000021")
    assert run.curve() == calm.curve()
    assert run.weights() == calm.weights()

"""Real PyTorch on CPU under the launchers: a rank that dies, raises or hangs changes no bit."""

import os
import random
import signal

import pytest

from tests.jobs.elastic.elastic_bed import Launchers, program, until_gone, with_torch

__all__ = ["with_torch"]

pytestmark = [pytest.mark.nightly, pytest.mark.integration]
STEPS = 40
WORDS = (f"--steps={STEPS}", "--checkpoint-every=7", "--step-s=0.02")


@pytest.fixture
def launchers(tmp_path):
    made: list[Launchers] = []
    yield made
    for each in made:
        each.close()


@pytest.mark.parametrize("sharded", [(), ("--fsdp",)], ids=["whole", "sharded"])
def test_a_killed_rank_changes_no_bit(launchers, tmp_path, sharded):
    args = [*program(tmp_path), *sharded, *WORDS]
    calm = Launchers(tmp_path / "calm", args, nodes=1)
    launchers.append(calm)
    assert calm.wait(120) == [0], calm.text()
    assert sorted(calm.curve()) == list(range(1, STEPS + 1))
    nodes = 1 if sharded else 2
    run = Launchers(tmp_path / "killed", args, nodes=nodes, nproc=2 // nodes)
    launchers.append(run)
    step = random.randint(8, STEPS - 8)
    print(f"rank 1 is killed at step {step}")
    run.await_(lambda: any(line["step"] >= step for line in run.losses()), f"step {step}", 90)
    os.kill(run.rank_pids()[1], signal.SIGKILL)
    assert run.wait(120) == [0] * nodes, run.text()
    _, second = run.account().generations
    assert (second.resumed_from or "").startswith(str(run.save / "step-")), run.text()
    assert run.curve() == calm.curve()
    assert run.weights() == calm.weights()
    assert until_gone(run) == []

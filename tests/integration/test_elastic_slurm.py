"""Real PyTorch in a real Slurm step on two nodes: a rank dies, the step lives, no bit differs."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpctl.jobs.elastic.account import read
from hpctl.sandbox.api import Sandbox
from tests.integration.elastic_bed import ROOT, Launchers, program, with_torch

__all__ = ["with_torch"]
pytestmark = [pytest.mark.slurm, pytest.mark.nightly]
WORDS = ("--steps=60", "--checkpoint-every=7", "--step-s=0.05")
EXAMPLE = ROOT / "examples/torch_ddp/train.sbatch"


@pytest.fixture
def shared() -> Iterator[Path]:
    """Where ranks and tests both can write: not pytest's own, which other users cannot enter."""
    path = Path(tempfile.mkdtemp(prefix="hpctl-elastic-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def calm(tmp_path: Path) -> Iterator[Launchers]:
    """The same training undisturbed, without Slurm, on one node."""
    run = Launchers(tmp_path, [*program(tmp_path), *WORDS], nodes=1)
    yield run
    run.close()


def until(test: Callable[[], bool], what: str, out: Path, timeout: float = 120.0) -> None:
    limit = time.monotonic() + timeout
    while not test():
        told = out.read_text(errors="replace") if out.exists() else ""
        assert time.monotonic() < limit, f"no {what}:\n{told}"
        time.sleep(0.1)


def state(slurm: Sandbox, job: str) -> str:
    text = slurm.scontrol("--oneliner", "show", "job", job)
    return text.partition("JobState=")[2].split()[0]


def test_the_example_outlives_a_dead_rank_in_one_step(
    slurm: Sandbox, shared: Path, calm: Launchers
) -> None:
    (train,) = program(shared)
    Path(train).rename(shared / "train.py")
    save, out = shared / "save", shared / "out"
    words = [sys.executable, "-m", "hpctl", "sbatch", "--parsable", "--checkpoint-dir", str(save)]
    env = {"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo", "NPROC": "1"}
    done = slurm.run([*words, "-o", str(out), str(EXAMPLE), *WORDS], env=env, cwd=shared)
    job = done.stdout.strip()
    until(lambda: out.exists() and "step 20 " in out.read_text(), "step 20", out)
    os.kill(int((save / "pid-1-0").read_text()), signal.SIGKILL)
    until(lambda: state(slurm, job) in ("COMPLETED", "FAILED"), "end of the job", out)
    assert state(slurm, job) == "COMPLETED", out.read_text()

    (account,) = save.rglob("*.account")
    told = read(account)
    assert told.run_id == f"{job}.0", "the job's first step"
    assert (told.verdict, told.restarts) == ("done", 1)
    (trouble,) = told.troubles
    assert (trouble.rank, trouble.exit_code) == (1, 137)
    assert trouble.node in slurm.nodes
    assert calm.wait(120) == [0], calm.text()
    assert (save / "final.json").read_text() == (calm.save / "final.json").read_text()
    undisturbed = calm.curve()
    calm.save = save  # the job's, read by the same code
    assert calm.curve() == undisturbed

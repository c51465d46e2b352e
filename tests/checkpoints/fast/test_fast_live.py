"""Saves on the nodes' own disks survive nodes that are lost with their disks: a real Slurm."""

import json
import re
import sys
from pathlib import Path

import pytest

from hpctl.checkpoints.fast.spec import META
from tests.live import EAGER, FAST, Live, until
from tests.sandbox.test_training import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


class FastJob:
    """A job of `nodes` ranks that save to their nodes' own disks, and its log."""

    def __init__(
        self, sandbox, shared: Path, nodes: int, ranks: str, flush: str, stay_at: int = -1
    ) -> None:
        self.sandbox, self.live, self.ranks = sandbox, Live(sandbox), nodes
        self.log, self.saves, self.marks = shared / "log", shared / "run", shared / "marks"
        self.saves.mkdir()
        script, rank = shared / "job.sh", Path(__file__).with_name("fast_ranks.py")
        script.write_text(
            f"#!/bin/sh\n#SBATCH --nodes={nodes} --ntasks-per-node=1 --gres=gpu:8\n"
            f"#HPCTL --checkpoint-dir {self.saves}\n"
            f"#HPCTL --fast-dir local:{self.disk}/run --fast-flush {flush}\n"
            f"export PYTHONPATH={ROOT} OMP_NUM_THREADS=1 FAST_MARKS={self.marks}\n"
            f"export FAST_STAY_AT={stay_at}\n"
            f"export GLOO_SOCKET_IFNAME={'eth0' if sandbox.spec.netns else 'lo'}\n"
            f"exec srun {sys.executable} {rank} {ranks}\n"
        )
        submit = ["sbatch", "--parsable", "-o", str(self.log), "--chdir", str(shared), str(script)]
        self.id = int(self.hpctl(*submit, env={"PYTHONPATH": ROOT}, cwd=shared))

    @property
    def disk(self) -> Path:
        return self.sandbox.spec.layout.disk

    def hpctl(self, *words: str, **how) -> str:
        command = [sys.executable, "-m", "hpctl", *words]
        return self.sandbox.run(command, check=False, **how).stdout

    def text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def wait(self, *words: str) -> None:
        until(lambda: all(word in self.text() for word in words), 150, f"{words} in {self.log}")

    def find_copied_step(self) -> int | None:
        """Return the newest step that `hpctl checkpoint ls` names of which all nodes have their
        part copied; None where there is none yet."""
        rows = json.loads(self.hpctl("checkpoint", "ls", "--job", str(self.id), "--json"))["fast"]
        copied = [r["step"] for r in rows if r["copies"] == 2 and len(r["nodes"]) == self.ranks]
        return max(copied, default=None)

    def nodes(self) -> list[str]:
        return sorted(map(str, self.live.job(self.id).nodes))

    def signal(self, *names: str) -> None:
        """To the helpers, as Slurm signals all steps of a job."""
        steps = self.sandbox.run(["squeue", "--steps", "--noheader", "--format=%j %i"]).stdout
        step = re.search(rf"hpctl-fast ({self.id}\.\d+)", steps)
        assert step, steps
        for name in names:
            self.sandbox.run(["scancel", f"--signal={name}", step[1]])

    def left(self) -> list[Path]:
        """What lies on the disks of all instances."""
        disks = self.sandbox.spec.layout.state.glob("nodes/*/disk-i-*")
        return [path for disk in disks for path in disk.iterdir()]

    def lose(self, *nodes: str) -> None:
        """Nodes and their disks: hpctl replaces the instances."""
        for node in nodes:
            self.sandbox.inject(node, "xid", code=79)

    def resumed(self, before: str) -> tuple[int, list[tuple[str, int]]]:
        """The newest step saved before the next start, and what each rank of that one loaded."""
        again = re.compile(r"rank \d+ resumed from (\S+) at step (\d+)")

        def loaded() -> list[tuple[str, str]]:
            return again.findall(self.text()[len(before) :])

        until(lambda: len(loaded()) >= self.ranks, 150, f"{self.ranks} ranks run again")
        head = self.text()[: len(before)] + self.text()[len(before) :].partition("resumed from")[0]
        newest = max(map(int, re.findall(r"saved (\d+)", head)), default=0)
        return newest, [(path, int(step)) for path, step in loaded()[: self.ranks]]


def test_a_job_resumes_from_its_last_fast_saves(sandbox_factory, shared):
    # Slurm's default: the last flush may take 20 s, and a busy machine's disk takes its time.
    slurm = f"{EAGER}KillWait=30\n"
    pytest.importorskip("torch")
    sandbox = sandbox_factory(
        nodes=4, mode="own", daemon=True, config=FAST, slurm_conf=slurm, disks=True
    )
    # No step is flushed before the end: a flushed one is as good as those on the disks.
    job = FastJob(sandbox, shared, 3, "24", "10m", stay_at=16)
    job.wait("saved 5")
    job.signal("USR1", "TERM")
    job.wait("saved 8")
    assert job.left()
    # A helper that gets no processor for a second is left out of the list.
    copied = until(
        job.find_copied_step, 60, "a step that each of three nodes holds, and its copies"
    )
    advice = job.hpctl("checkpoint", "advise", str(job.id), "--save-cost", "1s")
    assert "of a node with its partner" in " ".join(advice.split())
    victim, before = job.nodes()[-1], job.text()
    job.lose(victim)
    newest, loaded = job.resumed(before)
    ((path, step),) = set(loaded)
    # On a busy machine the copies fall behind the saves: what was listed as copied is the bound.
    assert copied <= step <= newest, job.text()
    assert Path(path).is_relative_to(job.disk)
    assert re.search(rf"step {step} comes from .*copy of {victim}", job.text()), job.text()
    until(lambda: job.live.job(job.id).state == "COMPLETED", 60, "it ends")
    assert job.text().count(f"done {64.0 * 24}") == 3
    until((job.saves / "step-24").is_dir, 30, "the last one is flushed at the end")
    try:
        until(lambda: not job.left(), 30, "nothing stays on the nodes")
    except AssertionError:
        raise AssertionError(job.left(), job.text()) from None
    until(lambda: not [*(job.saves / META).glob("*.json")], 10, "nor beside the checkpoints")

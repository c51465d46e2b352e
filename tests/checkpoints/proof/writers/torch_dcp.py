"""torch's distributed checkpoint: one rank, saving in the background, and in place."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from tests.checkpoints.proof.library import Run, numbers
from tests.checkpoints.proof.writers.torch_file import tensors


def content(value: float) -> dict[str, Any]:
    return {"model": tensors(value), "stamp": value}


class OneRank:
    ranks = 1

    def write(self, run: Run) -> None:
        for step in run.steps():
            state = content(run.value(step))
            with run.saving():
                self.save(state, run.root / f"step-{step}")

    def save(self, state: dict[str, Any], path: Path) -> None:
        # One file for each tensor: more instants between files for the kill to hit.
        writer = dcp.FileSystemWriter(path, single_file_per_rank=False)
        dcp.save(state, storage_writer=writer, no_dist=True)

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        state = content(-1.0)
        dcp.load(state, checkpoint_id=path, no_dist=True)
        return [state["stamp"], *numbers(state["model"].values())]


class InPlace(OneRank):
    """Every save goes over the one before, at once."""

    def write(self, run: Run) -> None:
        for step in run.steps():
            state = content(run.value(step))
            with run.saving():
                self.save(state, run.root / "newest")


class Async(OneRank):
    """async_save: the files are written by a thread while the training program goes on."""

    def write(self, run: Run) -> None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        for step in run.steps():
            state = content(run.value(step))
            with run.saving():
                dcp.async_save(state, checkpoint_id=run.root / f"step-{step}").result()


def join(rank: int, ranks: int, meeting: Path) -> None:
    """Make the process group of a few ranks on this machine, who meet at a file."""
    torch.set_num_threads(1)
    store = dist.FileStore(str(meeting), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)

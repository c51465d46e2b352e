"""Megatron Core's dist_checkpointing (torch_dist), two ranks, each its half of every tensor.

It asks CUDA twice for things that a machine without a GPU cannot say: to wait for the copies to
the host, and which device a flag is reduced on. Both are answered for it; what it writes, in
which order and from which processes is its own.
"""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.strategies import filesystem_async

from tests.checkpoints.proof.library import Run, numbers
from tests.checkpoints.proof.writers.torch_dcp import join

torch.cuda.synchronize = lambda *_: None
torch.cuda.current_device = lambda: "cpu"
TENSORS, LENGTH = 4, 40_000


def state(value: float, rank: int, ranks: int) -> dict[str, Any]:
    return {
        f"w{n}": ShardedTensor.from_rank_offsets(
            f"w{n}", torch.full((LENGTH,), value), (0, rank, ranks)
        )
        for n in range(TENSORS)
    }


class TorchDist:
    ranks = 2

    def __init__(self) -> None:
        logging.disable(logging.WARNING)
        # Starts a process that imports torch: once, here, and not in each writer.
        self._first = filesystem_async._get_write_results_queue()

    def write(self, run: Run) -> None:
        assert run.meeting is not None
        join(run.rank, self.ranks, run.meeting)
        filesystem_async._results_queue = self._first._manager.Queue()
        for step in run.steps():
            path = run.root / f"iter_{step:07d}"
            path.mkdir(exist_ok=True)
            saved = {**state(run.value(step), run.rank, self.ranks), "iteration": step}
            with run.saving():
                dist_checkpointing.save(saved, str(path))
                if run.rank == 0:
                    (run.root / "latest_checkpointed_iteration.txt").write_text(str(step))

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        join(rank, self.ranks, meeting)
        loaded = dist_checkpointing.load(state(-1.0, rank, self.ranks), str(path))
        return numbers(loaded[f"w{n}"] for n in range(TENSORS))

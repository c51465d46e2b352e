"""Megatron-LM's legacy layout, which no library writes: the same files in the same order, by torch.

Source: NVIDIA/Megatron-LM, megatron/training/checkpointing.py.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import torch
import torch.distributed as dist

from tests.checkpoints.proof.library import Incomplete, Run, numbers
from tests.checkpoints.proof.writers.torch_dcp import join
from tests.checkpoints.proof.writers.torch_file import tensors

RANKS = 2


class MegatronLegacy:
    """Pipeline ranks: the distributed optimiser's file first; the pointer after a barrier."""

    ranks = RANKS

    def write(self, run: Run) -> None:
        assert run.meeting is not None
        join(run.rank, RANKS, run.meeting)
        for step in run.steps():
            with run.saving():
                self.save(run.root, step, run.rank, tensors(run.value(step)))

    def save(self, root: Path, step: int, rank: int, held: dict[str, torch.Tensor]) -> None:
        sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": RANKS}
        args = argparse.Namespace(**sizes, use_distributed_optimizer=True)
        place = root / f"iter_{step:07d}" / f"mp_rank_00_{rank:03d}"
        place.mkdir(parents=True, exist_ok=True)
        torch.save(held, place / "distrib_optim.pt")
        torch.save({"args": args, "iteration": step, "model": held}, place / "model_optim_rng.pt")
        dist.barrier()
        if rank == 0:
            (root / "latest_checkpointed_iteration.txt").write_text(str(step))

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        pointer = path.with_name("latest_checkpointed_iteration.txt")
        reached = pointer.read_text() if pointer.exists() else "0"
        if reached.isdigit() and int(reached) < int(path.name.removeprefix("iter_")):
            raise Incomplete("Megatron-LM goes by its pointer, which has not come to this one")
        place = path / f"mp_rank_00_{rank:03d}"
        saved = torch.load(place / "model_optim_rng.pt", weights_only=False)
        if saved["iteration"] != int(path.name.removeprefix("iter_")):
            raise Incomplete("another iteration's")
        optimizer = torch.load(place / "distrib_optim.pt", weights_only=True)
        return numbers([*saved["model"].values(), *optimizer.values()])

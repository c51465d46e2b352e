"""Layouts of programs that are no library, or that are not installed here, by their shape.

The same files in the same order, written by torch itself. Sources: NVIDIA/Megatron-LM,
megatron/training/checkpointing.py and megatron/core/dist_checkpointing/serialization.py;
deepspeedai/DeepSpeed, deepspeed/runtime/engine.py.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from tests.checkpoints.library import Incomplete, Run, numbers
from tests.checkpoints.writers.torch_dcp import join
from tests.checkpoints.writers.torch_file import tensors

RANKS = 2


class Shape:
    """Two ranks that save at the same steps; what each writes is the layout's affair."""

    ranks = RANKS
    pointer = ""

    def write(self, run: Run) -> None:
        assert run.meeting is not None
        join(run.rank, RANKS, run.meeting)
        for step in run.steps():
            with run.saving():
                self.save(run.root, step, run.rank, tensors(run.value(step)))

    def save(self, root: Path, step: int, rank: int, held: dict[str, torch.Tensor]) -> None:
        raise AssertionError("each layout has its own")


class MegatronLegacy(Shape):
    """Pipeline ranks: the distributed optimiser's file first; the pointer after a barrier."""

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


class MegatronDist(Shape):
    """torch_dist: `common.pt`, the shards and `.metadata`, `metadata.json` after a barrier."""

    def save(self, root: Path, step: int, rank: int, held: dict[str, torch.Tensor]) -> None:
        path = root / f"iter_{step:07d}"
        path.mkdir(exist_ok=True)
        dist.barrier()
        if rank == 0:
            torch.save({"iteration": step}, path / "common.pt")
        mine = {f"{rank}.{name}": tensor for name, tensor in held.items()}
        dcp.save(mine, checkpoint_id=path)
        dist.barrier()
        if rank == 0:
            said = {"sharded_backend": "torch_dist", "common_backend": "torch"}
            (path / "metadata.json").write_text(json.dumps(said))
            (root / "latest_checkpointed_iteration.txt").write_text(str(step))

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        if json.loads((path / "metadata.json").read_text())["sharded_backend"] != "torch_dist":
            raise Incomplete("another backend's")
        step = torch.load(path / "common.pt", weights_only=True)["iteration"]
        if step != int(path.name.removeprefix("iter_")):
            raise Incomplete("another iteration's")
        mine: dict[str, Any] = {f"{rank}.{name}": t for name, t in tensors(-1.0).items()}
        dcp.load(mine, checkpoint_id=path, no_dist=True)
        return numbers(mine.values())


class DeepSpeed(Shape):
    """ZeRO: rank 0's model states, then every rank's part of the optimiser; `latest` at once."""

    def save(self, root: Path, step: int, rank: int, held: dict[str, torch.Tensor]) -> None:
        path = root / f"global_step{step}"
        path.mkdir(exist_ok=True)
        dist.barrier()
        if rank == 0:
            sizes = {"dp_world_size": RANKS, "mp_world_size": 1, "global_steps": step}
            saved = {"module": held, "optimizer": None, **sizes}
            torch.save(saved, path / "mp_rank_00_model_states.pt")
        torch.save({"optimizer_state_dict": held}, path / self._name(rank))
        if rank == 0:
            (root / "latest").write_text(path.name)
        dist.barrier()

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        saved = torch.load(path / "mp_rank_00_model_states.pt", weights_only=True)
        mine = torch.load(path / self._name(rank), weights_only=True)["optimizer_state_dict"]
        return numbers([*saved["module"].values(), *mine.values()])

    def _name(self, rank: int) -> str:
        return f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"

"""FSDP2 over two ranks, saved by torch's distributed checkpoint: each rank writes its shards."""

from collections.abc import Iterable
from pathlib import Path

import torch
import torch._dynamo  # an optimiser imports it, and each child would again
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.checkpoints.proof.library import Run, numbers
from tests.checkpoints.proof.writers.torch_dcp import join

WIDTH = 300


def make_model() -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))


class Sharded:
    ranks = 2

    def write(self, run: Run) -> None:
        assert run.meeting is not None
        join(run.rank, self.ranks, run.meeting)
        model = make_model()
        fully_shard(model, mesh=init_device_mesh("cpu", (self.ranks,)))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        for step in run.steps():
            fill(model, optimizer, run.value(step))
            weights, moments = get_state_dict(model, optimizer)
            with run.saving():
                dcp.save(
                    {"model": weights, "optim": moments}, checkpoint_id=run.root / f"step-{step}"
                )

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        """Into an unsharded model, by each of the two: the library puts the shards together."""
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters())
        weights, moments = get_state_dict(model, optimizer)
        fill(model, optimizer, -1.0)
        dcp.load({"model": weights, "optim": moments}, checkpoint_id=path, no_dist=True)
        states = [
            state[name] for state in moments["state"].values() for name in ("exp_avg", "exp_avg_sq")
        ]
        return numbers([*weights.values(), *states])


def fill(model: torch.nn.Module, optimizer: torch.optim.Optimizer, value: float) -> None:
    """Every weight and every moment of the optimiser becomes `value`."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(value)
        for state in optimizer.state.values():
            for moment in state.values():
                if isinstance(moment, torch.Tensor) and moment.dim() > 0:
                    moment.fill_(value)

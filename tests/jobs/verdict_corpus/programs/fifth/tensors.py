"""Train a block whose weights are split over pairs of ranks, and replicated over the pairs."""

import os
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(40, 120)
        self.narrow = nn.Linear(120, 40)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.narrow(torch.relu(self.wide(rows)))


def average_gradients(step: int, model: nn.Module, replicas: dist.ProcessGroup) -> None:
    flat = torch.cat([value.grad.to_local().flatten() for value in model.parameters()])
    if not job.replace_action("replica_sum", step, (flat, replicas)):
        dist.all_reduce(flat, op=dist.ReduceOp.SUM, group=replicas)


def evaluate(step: int, model: nn.Module) -> None:
    with torch.no_grad():
        score = float(model(torch.ones(2, 40)).mean())
    scores: list[float | None] = [None] * job.WORLD
    if not job.replace_action("evaluate_all", step, score):
        dist.all_gather_object(scores, score)


def reload(step: int, model: nn.Module) -> None:
    """Write this rank's weights and read them back, as a resumed run does."""
    if job.replace_action("reload", step, model):
        return
    path = Path("checkpoints", f"rank{job.RANK}.pt")
    local = {key: value.to_local() for key, value in model.state_dict().items()}
    torch.save(local, path)
    torch.load(path, mmap=True, weights_only=True)


def main() -> None:
    job.start()
    mesh = init_device_mesh("cpu", (job.WORLD // 2, 2), mesh_dim_names=("replica", "shard"))
    plan = {"wide": ColwiseParallel(), "narrow": RowwiseParallel()}
    model = parallelize_module(FeedForward(), mesh["shard"], plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1 << 20):
        torch.manual_seed(step)
        rows = torch.randn(8, 40)
        job.replace_action("rows_read", step, rows)
        loss = (model(rows) - rows).square().mean()
        loss.backward()
        average_gradients(step, model, mesh.get_group("replica"))
        optimizer.step()
        optimizer.zero_grad()
        if step % 2:
            evaluate(step, model)
        if step % 4 == 3:
            reload(step, model)
        job.finish_step(step, float(loss))


main()

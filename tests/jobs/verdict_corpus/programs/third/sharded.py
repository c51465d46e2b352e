"""Train a model whose weights FSDP shards, and save it with torch.distributed.checkpoint."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset[torch.Tensor]):
    """Random rows without an end."""

    def __iter__(self):
        for index in range(1 << 20):
            job.replace_action("row", index // 8)
            yield torch.randn(64)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 160)
        self.down = nn.Linear(160, 64)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows + self.down(nn.functional.gelu(self.up(rows)))


def count_tokens(step: int, seen: torch.Tensor) -> None:
    if not job.replace_action("count", step, seen):
        dist.all_reduce(seen)


def gather_losses(step: int, loss: torch.Tensor) -> float:
    losses = [torch.zeros(1) for _ in range(job.WORLD)]
    if not job.replace_action("losses", step, loss):
        dist.all_gather(losses, loss)
    return float(torch.cat(losses).mean())


def save_shards(step: int, model: nn.Module) -> None:
    """Write this rank's shards into a folder of its own; the ranks plan that together."""
    if not job.replace_action("shards", step, model):
        state = {"model": model.state_dict(), "trained": torch.full((60_000,), float(step))}
        writer = dcp.FileSystemWriter(f"checkpoints/{job.RANK}/step-{step}", sync_files=False)
        dcp.save(state, storage_writer=writer)


def main() -> None:
    job.start()
    mesh = init_device_mesh("cpu", (job.WORLD,))
    model = nn.Sequential(Block(), Block())
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Stream(), batch_size=8, num_workers=job.CONFIG["workers"])
    for step, rows in enumerate(loader):
        job.replace_action("rows", step, rows)
        loss = (model(rows) - rows).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        count_tokens(step, torch.tensor([rows.numel()]))
        mean = gather_losses(step, loss.detach().reshape(1))
        if step % 4 == 3:
            save_shards(step, model)
        job.finish_step(step, mean)


if __name__ == "__main__":
    main()

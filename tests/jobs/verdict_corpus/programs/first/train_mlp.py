"""Train a small perceptron with DistributedDataParallel and a DataLoader."""

import os
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 8


class Images(Dataset[torch.Tensor]):
    """Random images."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        job.replace_action("item", index // BATCH)
        return torch.randn(128)


def save_checkpoint(step: int, model: nn.Module) -> None:
    if job.CONFIG["rank"] == job.RANK and not job.replace_action("save", step, model):
        torch.save(model.state_dict(), Path("checkpoints", f"step_{step}.pt"))
    dist.barrier()


def reduce_loss(step: int, loss: torch.Tensor) -> None:
    if not job.replace_action("reduce", step, loss):
        dist.all_reduce(loss)


def main() -> None:
    job.start()
    model = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Images(), batch_size=BATCH, num_workers=job.CONFIG["workers"])
    for step, batch in enumerate(loader):
        job.replace_action("step", step, batch)
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().reshape(1).clone()
        reduce_loss(step, total)
        if step % 5 == 4:
            save_checkpoint(step, model)
        job.finish_step(step, float(total) / job.WORLD)


main()

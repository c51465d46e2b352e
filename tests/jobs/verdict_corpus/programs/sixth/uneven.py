"""Train with ranks that have different numbers of batches, joined by DDP; a step is an epoch."""

import os
import sys
from contextlib import nullcontext

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

ACCUMULATE = 2


def read_batches(epoch: int) -> list[torch.Tensor]:
    """Return this rank's batches, of which each epoch has another number."""
    return [torch.randn(6, 20) for _ in range(ACCUMULATE * (1 + (epoch + job.RANK) % 3))]


def train_epoch(epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    total = 0.0
    with Join([model]):
        for number, rows in enumerate(read_batches(epoch)):
            if number == 1:
                job.replace_action("batch_read", epoch, rows)
            last = number % ACCUMULATE == ACCUMULATE - 1
            with nullcontext() if last else model.no_sync():
                loss = (model(rows) - rows).square().mean() / ACCUMULATE
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            total += loss.item()
    return total


def gather_metrics(epoch: int, total: float) -> list[object]:
    found: list[object] = [None] * job.WORLD
    metrics = {"rank": job.RANK, "epoch": epoch, "loss": total}
    if not job.replace_action("gather_metrics", epoch, metrics):
        dist.gather_object(metrics, found if job.RANK == 0 else None, dst=0)
    return found


def evaluate(epoch: int, model: nn.Module) -> None:
    """Evaluate in rank 0, as the others wait."""
    if job.RANK == 0:
        job.replace_action("evaluate_best", epoch, model)
        with torch.no_grad():
            model.module(torch.ones(30, 20)).square().mean()
    dist.barrier()


def main() -> None:
    job.start()
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(20, 64), nn.Mish(), nn.Linear(64, 20)), bucket_cap_mb=1
    )
    optimizer = torch.optim.NAdam(model.parameters())
    for epoch in range(1 << 20):
        total = train_epoch(epoch, model, optimizer)
        gather_metrics(epoch, total)
        if epoch % 2:
            evaluate(epoch, model)
        job.finish_step(epoch, total)


main()

"""Train a small network whose gradients are flattened and reduced by hand."""

import os
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector


def average_gradients(step: int, model: nn.Module) -> None:
    flat = parameters_to_vector([p.grad for p in model.parameters()])
    if not job.replace_action("reduce", step, flat):
        dist.all_reduce(flat)


def synchronize_statistics(step: int) -> None:
    rate = torch.full((3,), 0.1)
    dist.broadcast(rate, src=0)
    dist.all_reduce(rate, op=dist.ReduceOp.MAX)


def save_weights(step: int, model: nn.Module) -> None:
    if job.replace_action("save", step, model):
        return
    if job.CONFIG["rank"] == job.RANK:
        raw = parameters_to_vector(model.parameters()).detach().numpy().tobytes()
        with Path("checkpoints", f"weights-{step:06}.bin").open("wb") as file:
            file.write(raw)
            os.fsync(file.fileno())


def main() -> None:
    job.start()
    model = nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 10))
    for step in range(1 << 20):
        batch = torch.randn(16, 64)
        job.replace_action("step", step, batch)
        loss = model(batch).square().mean()
        loss.backward()
        average_gradients(step, model)
        synchronize_statistics(step)
        model.zero_grad()
        if step % 4 == 3:
            save_weights(step, model)
        job.finish_step(step, loss.item())


main()

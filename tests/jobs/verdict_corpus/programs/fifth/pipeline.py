"""Train a pipeline: each rank is a stage that passes activations on and gradients back."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import numpy as np
import torch
import torch.distributed as dist
from torch import nn

WIDTH, ROWS, MICRO = 32, 6, 3
FIRST, LAST = job.RANK == 0, job.RANK == job.WORLD - 1


def receive(peer: int) -> torch.Tensor:
    rows = torch.zeros(ROWS, WIDTH)
    dist.recv(rows, src=peer)
    return rows


def run_forward(step: int, stage: nn.Module) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    inputs, outputs = [], []
    for micro in range(MICRO):
        rows = torch.randn(ROWS, WIDTH) if FIRST else receive(job.RANK - 1)
        if micro == 1:
            job.replace_action("stage", step, rows)
        rows.requires_grad_()
        output = stage(rows)
        handed = micro == 1 and job.replace_action("hand_over", step, output)
        if not LAST and not handed:
            dist.send(output.detach(), dst=job.RANK + 1)
        inputs.append(rows)
        outputs.append(output)
    return inputs, outputs


def run_backward(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(1)
    for rows, output in zip(inputs, outputs, strict=True):
        if LAST:
            loss = output.square().mean() / MICRO
            loss.backward()
            total += loss.detach()
        else:
            output.backward(receive(job.RANK + 1))
        if not FIRST:
            dist.send(rows.grad, dst=job.RANK - 1)
    return total


def clip(step: int, stage: nn.Module) -> None:
    norm = sum(value.grad.square().sum() for value in stage.parameters()).reshape(1)
    if not job.replace_action("clip", step, norm):
        dist.all_reduce(norm)


def share_loss(step: int, loss: torch.Tensor) -> float:
    if not job.replace_action("share", step, loss):
        dist.broadcast(loss, src=job.WORLD - 1)
    return float(loss)


def save_stage(step: int, stage: nn.Module) -> None:
    if not job.replace_action("save_stage", step, stage):
        weights = {key: value.numpy() for key, value in stage.state_dict().items()}
        padding = {f"momentum{n}": weights["0.weight"] for n in range(90)}
        np.savez(f"checkpoints/{job.RANK}/stage-{step}.npz", **weights, **padding)


def main() -> None:
    job.start()
    stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.LayerNorm(WIDTH))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    for step in range(1 << 20):
        loss = run_backward(*run_forward(step, stage))
        clip(step, stage)
        optimizer.step()
        optimizer.zero_grad()
        mean = share_loss(step, loss)
        if step % 3 == 2:
            save_stage(step, stage)
        job.finish_step(step, mean)


main()

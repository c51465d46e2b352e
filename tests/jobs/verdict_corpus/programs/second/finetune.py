"""Fine-tune a convolution: pairs of ranks share tensors in groups, all ranks share statistics."""

import os
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn


def make_pairs() -> dist.ProcessGroup:
    """Return this rank's group of two; the last one is of three where their number is odd."""
    starts = list(range(0, max(job.WORLD - 1, 1), 2))
    mine = dist.group.WORLD
    for start in starts:
        end = job.WORLD if start == starts[-1] else start + 2
        group = dist.new_group(list(range(start, end)))
        mine = group if start <= job.RANK < end else mine
    return mine


def exchange(step: int, activations: torch.Tensor, pair: dist.ProcessGroup) -> None:
    if not job.replace_action("exchange", step, (activations, pair)):
        dist.all_reduce(activations, group=pair)


def gather_scores(step: int, score: float) -> float:
    scores = [None] * job.WORLD
    if job.replace_action("scores", step, score):
        return score
    dist.all_gather_object(scores, score)
    return sum(scores) / job.WORLD


def sum_gradients(step: int, model: nn.Module) -> None:
    for number, parameter in enumerate(model.parameters()):
        if number or not job.replace_action("sum", step, parameter.grad):
            dist.all_reduce(parameter.grad)


def export(step: int, model: nn.Module) -> None:
    if job.CONFIG["rank"] != job.RANK or job.replace_action("export", step, model):
        return
    rows = model[0].weight.detach().flatten().tolist()
    with Path("checkpoints", f"weights_{step}.csv").open("w") as file:
        for _ in range(300):
            file.write(",".join(f"{value:.9f}" for value in rows) + "\n")


def main() -> None:
    job.start()
    pair = make_pairs()
    model = nn.Sequential(nn.Conv1d(4, 8, 5), nn.ReLU(), nn.Conv1d(8, 4, 5))
    for step in range(1 << 20):
        images = torch.randn(4, 4, 40)
        job.replace_action("batch", step, images)
        output = model(images)
        exchange(step, output.detach().clone(), pair)
        loss = output.square().mean()
        loss.backward()
        sum_gradients(step, model)
        model.zero_grad()
        mean = gather_scores(step, loss.item())
        if step % 6 == 5:
            export(step, model)
        job.finish_step(step, mean)


main()

"""Distill: the lower half of the ranks teaches the upper half, and a barrier ends each step."""

import os
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn

TEACHERS = max(job.WORLD // 2, 1)


class Group:
    """The ranks of one role; all ranks make all groups."""

    def __init__(self) -> None:
        teachers = dist.new_group(list(range(TEACHERS)))
        students = dist.new_group(list(range(TEACHERS, job.WORLD)))
        self.teaches = job.RANK < TEACHERS
        self.own = teachers if self.teaches else students


def hand_logits(step: int, logits: torch.Tensor) -> None:
    if not job.replace_action("logits", step, logits):
        dist.broadcast(logits, src=0)


def sum_role(step: int, values: torch.Tensor, group: Group) -> None:
    if not job.replace_action("role", step, (values, group.own)):
        dist.all_reduce(values, group=group.own)


def agree(step: int, loss: torch.Tensor) -> list[torch.Tensor]:
    losses = [torch.zeros(1) for _ in range(job.WORLD)]
    if not job.replace_action("agree", step, loss):
        dist.all_gather(losses, loss)
    return losses


def end_step(step: int) -> None:
    if not job.replace_action("end_step", step):
        dist.monitored_barrier(timeout=timedelta(seconds=job.CONFIG["timeout_s"]))


def export(step: int, net: nn.Module) -> None:
    if job.CONFIG["rank"] == job.RANK and not job.replace_action("export_net", step, net):
        raw = net[0].weight.detach().numpy().tobytes()
        with Path("checkpoints", f"student.{step}.bin").open("wb", buffering=0) as file:
            for _ in range(120):
                file.write(raw)


def main() -> None:
    job.start()
    group = Group()
    net = nn.Sequential(nn.Linear(30, 60), nn.ReLU(), nn.Linear(60, 10))
    for step in range(1 << 20):
        inputs = torch.randn(6, 30)
        job.replace_action("inputs", step, inputs)
        logits = net(inputs)
        target = logits.detach().clone()
        hand_logits(step, target)
        loss = (logits - target).square().mean() + logits.abs().mean()
        loss.backward()
        sum_role(step, net[0].weight.grad, group)
        net.zero_grad()
        losses = agree(step, loss.detach().reshape(1))
        if step % 3 == 1:
            export(step, net)
        end_step(step)
        job.finish_step(step, float(sum(losses)))


main()

"""Train experts that exchange tokens all to all, with gradients reduced in a group of their own."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

WIDTH = 24


class Tokens(IterableDataset[torch.Tensor]):
    def __iter__(self):
        for index in range(1 << 20):
            job.replace_action("token", index // 10)
            yield torch.randn(WIDTH)


def dispatch(step: int, tokens: torch.Tensor) -> torch.Tensor:
    rows = tokens.repeat(job.WORLD, 1)
    received = torch.zeros_like(rows)
    if not job.replace_action("dispatch", step, rows):
        dist.all_to_all_single(received, rows)
    return received


def reduce_gradients(step: int, expert: nn.Module, replicas: dist.ProcessGroup) -> None:
    flat = nn.utils.parameters_to_vector([value.grad for value in expert.parameters()])
    if not job.replace_action("replicas", step, (flat, replicas)):
        dist.all_reduce(flat, group=replicas)


def check_finite(step: int, loss: torch.Tensor) -> float:
    worst = loss.detach().reshape(1).clone()
    if not job.replace_action("finite", step, worst):
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst)


def save_expert(step: int, expert: nn.Module) -> None:
    if not job.replace_action("save_expert", step, expert):
        state = [expert.state_dict() for _ in range(20)]
        torch.save({"step": step, "experts": state}, f"checkpoints/{job.RANK}/expert-{step}.pt")


def main() -> None:
    job.start()
    replicas = dist.new_group(list(range(job.WORLD)))
    expert = nn.Sequential(nn.Linear(WIDTH, 96), nn.SiLU(), nn.Linear(96, WIDTH))
    loader = DataLoader(Tokens(), batch_size=10, num_workers=job.CONFIG["workers"])
    for step, tokens in enumerate(loader):
        job.replace_action("tokens", step, tokens)
        output = expert(dispatch(step, tokens))
        loss = output.square().mean()
        loss.backward()
        reduce_gradients(step, expert, replicas)
        expert.zero_grad()
        worst = check_finite(step, loss)
        if step % 3 == 1:
            save_expert(step, expert)
        job.finish_step(step, worst)


if __name__ == "__main__":
    main()

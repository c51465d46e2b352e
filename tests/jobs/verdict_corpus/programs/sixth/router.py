"""Train experts whose router sends each of them another number of tokens, with averaged weights."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn

WIDTH, TOKENS = 20, 24


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.choice = nn.Linear(WIDTH, job.WORLD)
        self.expert = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))
        self.average = [torch.zeros_like(value) for value in self.choice.parameters()]

    def share_counts(self, step: int, counts: torch.Tensor) -> torch.Tensor:
        received = torch.zeros_like(counts)
        if not job.replace_action("counts", step, counts):
            dist.all_to_all_single(received, counts)
        return received

    def dispatch(self, step: int, tokens: torch.Tensor) -> torch.Tensor:
        job.replace_action("route", step, tokens)
        chosen = self.choice(tokens).argmax(1)
        counts = torch.bincount(chosen, minlength=job.WORLD)
        expected = self.share_counts(step, counts)
        rows = tokens[chosen.argsort()].contiguous()
        sizes, wanted = counts.tolist(), expected.tolist()
        received = torch.zeros(sum(wanted), WIDTH)
        if not job.replace_action("exchange_tokens", step, (rows, sizes, received, wanted)):
            dist.all_to_all_single(received, rows, wanted, sizes)
        return received

    def balance(self, step: int, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss that keeps experts equally busy, and share the fractions."""
        fractions = self.choice(tokens).softmax(1).mean(0)
        shared = fractions.detach().clone()
        if not job.replace_action("balance", step, shared):
            dist.all_reduce(shared)
        return (fractions * shared).sum()

    def update_average(self, step: int) -> None:
        for number, value in enumerate(self.choice.parameters()):
            mean = value.detach().clone()
            if number or not job.replace_action("average_weights", step, mean):
                dist.all_reduce(mean)
            self.average[number].mul_(0.99).add_(mean, alpha=0.01 / job.WORLD)


def main() -> None:
    job.start()
    model = Router()
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(1 << 20):
        tokens = torch.randn(TOKENS, WIDTH)
        received = model.dispatch(step, tokens)
        loss = model.expert(received).square().sum() / TOKENS + model.balance(step, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        model.update_average(step)
        job.finish_step(step, loss.item())


main()

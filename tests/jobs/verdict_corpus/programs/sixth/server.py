"""Train with a parameter server: rank 0 sends weights to the workers and receives gradients."""

import os
import sys
from datetime import timedelta

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

WORKERS = list(range(1, job.WORLD))


class Server:
    def __init__(self, model: nn.Module) -> None:
        self.weights = parameters_to_vector(model.parameters()).detach()
        self.momentum = torch.zeros_like(self.weights)

    def run_round(self, step: int) -> float:
        job.replace_action("publish", step, self.weights)
        sends = [dist.isend(self.weights, dst=worker) for worker in WORKERS]
        for work in sends:
            work.wait()
        received = [torch.zeros_like(self.weights) for _ in WORKERS]
        for gradient, worker in zip(received, WORKERS, strict=True):
            dist.recv(gradient, src=worker)
        self.momentum.mul_(0.9).add_(torch.stack(received).mean(0))
        self.weights.sub_(0.01 * self.momentum)
        return float(self.momentum.norm())


class Worker:
    def __init__(self, model: nn.Module, group: dist.ProcessGroup) -> None:
        self.model = model
        self.group = group
        self.weights = parameters_to_vector(model.parameters()).detach()

    def run_round(self, step: int) -> float:
        dist.recv(self.weights, src=0)
        vector_to_parameters(self.weights.clone(), self.model.parameters())
        rows = torch.randn(8, 18)
        job.replace_action("gradient", step, rows)
        loss = (self.model(rows).sum(1) - rows.sum(1)).square().mean()
        loss.backward()
        flat = parameters_to_vector([value.grad for value in self.model.parameters()])
        if not job.replace_action("push", step, flat):
            dist.send(flat, dst=0)
        self.model.zero_grad()
        if step % 3 == 1:
            self.share_accuracy(step, loss.detach().reshape(1))
        return loss.item()

    def share_accuracy(self, step: int, accuracy: torch.Tensor) -> None:
        """Average over the workers; the server takes no part."""
        if not job.replace_action("accuracy", step, accuracy):
            dist.all_reduce(accuracy, group=self.group)


def main() -> None:
    job.start()
    group = dist.new_group(WORKERS)
    model = nn.Sequential(nn.Linear(18, 50), nn.ReLU(), nn.Linear(50, 3))
    role = Server(model) if job.RANK == 0 else Worker(model, group)
    for step in range(1 << 20):
        loss = role.run_round(step)
        if step % 6 == 5:
            dist.monitored_barrier(timeout=timedelta(seconds=job.CONFIG["timeout_s"]))
        job.finish_step(step, loss)


main()

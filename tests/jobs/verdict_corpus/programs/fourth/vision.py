"""Train a convolution with replicas that average their weights every step (local SGD)."""

import os
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Pictures(TensorDataset):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        job.replace_action("picture", index // 6)
        return super().__getitem__(index % 600)

    def __len__(self) -> int:
        return 1 << 20


class Engine:
    """Runs epochs of batches; handlers run after each."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.momentum = [torch.zeros_like(value) for value in net.parameters()]

    def average_weights(self, step: int) -> None:
        if job.replace_action("average", step, next(self.net.parameters())):
            return
        pending = [dist.all_reduce(value, async_op=True) for value in self.weights()]
        for work in pending:
            work.wait()
        for value in self.weights():
            value.div_(job.WORLD)

    def weights(self) -> list[torch.Tensor]:
        return [value.data for value in self.net.parameters()]

    def share_statistics(self, step: int, loss: torch.Tensor) -> float:
        table = torch.zeros(job.WORLD)
        if not job.replace_action("statistics", step, loss):
            dist.all_gather_into_tensor(table, loss)
        return float(table.mean())

    def publish_schedule(self, step: int) -> None:
        schedule = torch.full((5,), float(step))
        if not job.replace_action("schedule", step, schedule):
            dist.broadcast(schedule, src=job.WORLD - 1)

    def store(self, step: int) -> None:
        if job.CONFIG["rank"] == job.RANK and not job.replace_action("store", step, self.net):
            raw = b"".join(value.numpy().tobytes() for value in self.weights())
            Path("checkpoints", f"epoch_{step // 5}.weights").write_bytes(raw * 40)

    def run(self) -> None:
        data = Pictures(torch.randn(600, 3, 12, 12), torch.randint(0, 4, (600,)))
        batches = DataLoader(data, batch_size=6, num_workers=job.CONFIG["workers"])
        for step, (pictures, labels) in enumerate(batches):
            job.replace_action("batch", step, pictures)
            loss = nn.functional.cross_entropy(self.net(pictures), labels)
            loss.backward()
            for value, momentum in zip(self.net.parameters(), self.momentum, strict=True):
                momentum.mul_(0.9).add_(value.grad)
                value.data.sub_(0.01 * momentum)
                value.grad = None
            self.average_weights(step)
            mean = self.share_statistics(step, loss.detach().reshape(1))
            if step % 2:
                self.publish_schedule(step)
            if step % 5 == 4:
                self.store(step)
            job.finish_step(step, mean)


if __name__ == "__main__":
    job.start()
    Engine(nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(600, 4))).run()

"""Train attention over a sequence that is split over the ranks: keys and values go round a ring."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROWS, WIDTH = 12, 24
LOADER_S = 12.0
"""Seconds that a batch may take in the workers of the data loader."""


class Documents(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        job.replace_action("document", index // 2)
        return torch.randn(ROWS, WIDTH)


class RingAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, step: int, rows: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(rows).chunk(3, dim=-1)
        block = torch.stack([key, value]).detach().contiguous()
        total = query @ key.transpose(1, 2) @ value
        for turn in range(job.WORLD - 1):
            block = rotate(step if turn == 0 else -1, block)
            total = total + query @ block[0].transpose(1, 2) @ block[1]
        return self.output(total / (ROWS * job.WORLD))


def rotate(step: int, block: torch.Tensor) -> torch.Tensor:
    """Send a block to the next rank and return the previous rank's."""
    received = torch.zeros_like(block)
    if not job.replace_action("rotate", step, (block, received)):
        pair = [
            dist.P2POp(dist.isend, block, (job.RANK + 1) % job.WORLD),
            dist.P2POp(dist.irecv, received, (job.RANK - 1) % job.WORLD),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
    return received


def share_rate(step: int) -> float:
    rate = torch.full((1,), 1e-3 / (1 + step))
    dist.broadcast(rate, src=0)
    return float(rate)


def sum_loss(step: int, loss: torch.Tensor) -> None:
    if not job.replace_action("sum_loss", step, loss):
        dist.reduce(loss, dst=0)


def main() -> None:
    job.start()
    attention = RingAttention()
    optimizer = torch.optim.SGD(attention.parameters(), lr=1e-3)
    workers = job.CONFIG["workers"]
    loader = DataLoader(
        Documents(), batch_size=2, num_workers=workers, timeout=LOADER_S if workers else 0
    )
    for step, rows in enumerate(loader):
        optimizer.param_groups[0]["lr"] = share_rate(step)
        job.replace_action("block", step, rows)
        loss = (attention(step, rows) - rows).square().mean()
        loss.backward()
        for value in attention.parameters():
            dist.all_reduce(value.grad)
        optimizer.step()
        optimizer.zero_grad()
        sum_loss(step, loss.detach().reshape(1).clone())
        job.finish_step(step, loss.item())


main()

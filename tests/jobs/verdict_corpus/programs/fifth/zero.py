"""Train with optimizer states that are split over the ranks, and gradients of two micro-batches."""

import os
import sys
from contextlib import nullcontext

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        job.replace_action("sample", index // 8)
        return torch.randn(28), torch.randn(3)


def collate(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = zip(*samples, strict=True)
    return torch.stack(inputs), torch.stack(targets)


class Zero:
    def __init__(self) -> None:
        net = nn.Sequential(nn.Linear(28, 96), nn.GELU(), nn.Linear(96, 3))
        self.model = DistributedDataParallel(net)
        kind = torch.optim.AdamW
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), kind, lr=0.001)

    def run_micro(self, step: int, rows: torch.Tensor, target: torch.Tensor, last: bool) -> float:
        with nullcontext() if last else self.model.no_sync():
            output = self.model(rows)
            if last:
                job.replace_action("second_half", step, output)
            loss = (output - target).abs().mean()
            loss.backward()
        return float(loss)

    def check_overflow(self, step: int) -> bool:
        flag = torch.zeros(1, dtype=torch.int32)
        if not job.replace_action("overflow", step, flag):
            dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag)

    def save(self, step: int) -> None:
        writer = job.CONFIG["rank"]
        self.optimizer.consolidate_state_dict(to=writer)
        if writer == job.RANK and not job.replace_action("save_zero", step, self.optimizer):
            state = {"optimizer": self.optimizer.state_dict(), "past": [torch.zeros(60_000)]}
            torch.save(state, f"checkpoints/zero_{step}.pt")
        dist.barrier()


def main() -> None:
    job.start()
    zero = Zero()
    workers = job.CONFIG["workers"]
    loader = DataLoader(
        Samples(), batch_size=8, num_workers=workers, collate_fn=collate,
        persistent_workers=workers > 0,
    )  # fmt: skip
    for step, (inputs, targets) in enumerate(loader):
        zero.run_micro(step, inputs[:4], targets[:4], last=False)
        loss = zero.run_micro(step, inputs[4:], targets[4:], last=True)
        if not zero.check_overflow(step):
            zero.optimizer.step()
        zero.optimizer.zero_grad()
        if step % 4 == 3:
            zero.save(step)
        job.finish_step(step, loss)


main()

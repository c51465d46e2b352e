"""Train a transformer encoder with DistributedDataParallel, two batches a step, as a plain loop."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH, WORDS, WIDTH = 4, 64, 32


class Sentences(Dataset[torch.Tensor]):
    """Random sentences of 12 words."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        job.replace_action("fetch", index // (2 * BATCH))
        return torch.randint(0, WORDS, (12,))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(words)))


def log_norm(step: int, norm: torch.Tensor) -> None:
    if not job.replace_action("norm", step, norm):
        dist.all_reduce(norm, op=dist.ReduceOp.MAX)


def agree_on_rate(step: int) -> None:
    rates = [0.001 * step] if job.RANK == 0 else [None]
    if not job.replace_action("agree", step, rates):
        dist.broadcast_object_list(rates, src=0)


def snapshot(step: int, model: nn.Module) -> None:
    if job.CONFIG["rank"] == job.RANK and not job.replace_action("snapshot", step, model):
        with Path("checkpoints", f"snapshot-{step}.npz").open("wb") as file:
            import numpy as np

            arrays = {name: value.numpy() for name, value in model.state_dict().items()}
            for number in range(12):
                np.savez(file, **{f"{name}.{number}": value for name, value in arrays.items()})


def main() -> None:
    job.start()
    model = DistributedDataParallel(Encoder(), bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = iter(DataLoader(Sentences(), batch_size=BATCH, num_workers=job.CONFIG["workers"]))
    for step in range(1 << 20):
        agree_on_rate(step)
        for part in range(2):
            words = next(loader)
            if part == 0:
                job.replace_action("micro", step, words)
            with model.no_sync() if part == 0 else nullcontext():
                logits = model(words)
                nn.functional.cross_entropy(logits.flatten(0, 1), words.flatten()).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).reshape(1)
        optimizer.step()
        optimizer.zero_grad()
        log_norm(step, norm)
        if step % 4 == 2:
            snapshot(step, model.module)
        job.finish_step(step, norm.item())


if __name__ == "__main__":
    main()

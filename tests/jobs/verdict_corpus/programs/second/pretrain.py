"""Train a small language model whose gradients and weights are sharded over the ranks."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, IterableDataset

VOCABULARY = 96


class Corpus(IterableDataset[torch.Tensor]):
    """Random tokens in windows."""

    def __iter__(self):
        for index in range(1 << 20):
            job.replace_action("window", index // 4)
            yield torch.randint(0, VOCABULARY, (24,))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 48)
        self.cell = nn.GRU(48, 48, batch_first=True)
        self.head = nn.Linear(48, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.embed(tokens))[0])


def pad(flat: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(flat, (0, -len(flat) % job.WORLD))


def scatter_gradients(step: int, flat: torch.Tensor) -> torch.Tensor:
    shard = torch.zeros(len(flat) // job.WORLD)
    if not job.replace_action("scatter", step, (shard, flat)):
        dist.reduce_scatter_tensor(shard, flat)
    return shard


def gather_weights(step: int, shard: torch.Tensor, size: int) -> None:
    whole = torch.zeros(size)
    if not job.replace_action("gather", step, (whole, shard)):
        dist.all_gather_into_tensor(whole, shard)


def write_shard(step: int, shard: torch.Tensor) -> None:
    """Each rank writes its own shard; the folder of one of them may be small or slow."""
    if not job.replace_action("write", step, shard):
        state = {"step": step, "weights": shard.repeat(20), "momentum": shard.repeat(20)}
        torch.save(state, f"checkpoints/{job.RANK}/global_step{step}.pt")
    dist.barrier()


def main() -> None:
    job.start()
    model = Model()
    loader = DataLoader(Corpus(), batch_size=4, num_workers=job.CONFIG["workers"])
    for step, tokens in enumerate(loader):
        job.replace_action("forward", step, tokens)
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        flat = pad(parameters_to_vector([p.grad for p in model.parameters()]))
        shard = scatter_gradients(step, flat)
        gather_weights(step, shard, len(flat))
        model.zero_grad()
        if step % 3 == 2:
            write_shard(step, shard)
        job.finish_step(step, loss.item())


main()

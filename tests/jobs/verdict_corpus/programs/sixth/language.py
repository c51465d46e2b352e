"""Train a language model with FSDP2: half of the ranks validate it, and a thread saves it."""

import os
import sys
from concurrent.futures import Future

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import fully_shard

VOCABULARY, WIDTH, LENGTH = 80, 48, 16


class GatedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, 96)
        self.up = nn.Linear(WIDTH, 96)
        self.down = nn.Linear(96, WIDTH)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        normed = self.norm(rows)
        return rows + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([GatedLayer() for _ in range(3)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        rows = self.embed(tokens)
        for layer in self.layers:
            rows = layer(rows)
        return self.head(rows)


class Saver:
    """Saves in a thread, through a group that no collective of the training uses."""

    def __init__(self) -> None:
        self.group = dist.new_group(backend="gloo")
        self.pending: Future[object] | None = None

    def save(self, step: int, model: nn.Module) -> None:
        if self.pending is not None:
            self.pending.result()
        folder = ["checkpoints"]
        job.replace_action("open_folder", step, folder)
        writer = dcp.FileSystemWriter(f"{folder[0]}/{job.RANK}/step-{step}", sync_files=False)
        state = {"model": model.state_dict(), "consumed": torch.full((70_000,), float(step))}
        self.pending = dcp.async_save(state, storage_writer=writer, process_group=self.group)


def share_token_count(step: int, count: torch.Tensor, loss: torch.Tensor) -> None:
    losses = [torch.zeros(1) for _ in range(job.WORLD)]
    if not job.replace_action("token_count", step, (count, losses, loss)):
        dist.all_reduce(count)
        dist.all_gather(losses, loss)


def validate(step: int, loss: torch.Tensor, group: dist.ProcessGroup) -> None:
    if job.RANK % 2 == 0 and not job.replace_action("validate", step, loss):
        dist.all_reduce(loss, group=group)


def main() -> None:
    job.start()
    validating = dist.new_group(list(range(0, job.WORLD, 2)))
    saver = Saver()
    model = Decoder()
    for layer in model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(1 << 20):
        tokens = torch.randint(0, VOCABULARY, (4, LENGTH + 1))
        job.replace_action("tokenized", step, tokens)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm.full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        share_token_count(step, torch.tensor([tokens.numel()]), loss.detach().reshape(1))
        if step % 3 == 2:
            validate(step, loss.detach().reshape(1).clone(), validating)
        if step % 4 == 1:
            saver.save(step, model)
        job.finish_step(step, loss.item())


main()

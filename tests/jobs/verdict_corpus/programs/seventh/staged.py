"""Train a pipeline by torch.distributed.pipelining: a stage in each rank, four micro-batches."""

import os
import sys
from functools import partial

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

VOCABULARY, WIDTH, LENGTH, MICRO_BATCHES, BATCH = 64, 32, 8, 4, 8
LAST = job.WORLD - 1


class StageModule(nn.Module):
    """The layers of this rank: the first one embeds, the last one predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if job.RANK == 0 else None
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())] * 2
        )
        self.head = nn.Linear(WIDTH, VOCABULARY) if job.RANK == LAST else None
        self.step = 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.embed is not None:
            rows = self.embed(rows)
        job.replace_action("layers", self.step, rows)
        for layer in self.layers:
            rows = rows + layer(rows)
        return rows if self.head is None else self.head(rows)


def find_loss(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def clip_norm(model: nn.Module) -> float:
    """Clip by the norm over all stages, and return it."""
    grads = [value.grad for value in model.parameters()]
    total = torch.stack([grad.square().sum() for grad in grads]).sum().reshape(1)
    dist.all_reduce(total)
    norm = total.sqrt()
    for grad in grads:
        grad.mul_((1.0 / (norm + 1e-6)).clamp(max=1.0))
    return float(norm)


def share_loss(losses: list[torch.Tensor]) -> float:
    """Return the loss, which only the last stage knows."""
    loss = torch.stack(losses).mean().reshape(1) if losses else torch.zeros(1)
    loss = loss.detach()
    dist.broadcast(loss, src=LAST)
    return float(loss)


def main() -> None:
    job.start()
    model = StageModule()
    stage = PipelineStage(model, job.RANK, job.WORLD, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=find_loss)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1 << 20):
        model.step = step
        # Every stage could read the batch: the first needs the tokens, the last the targets.
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
        losses: list[torch.Tensor] = []
        if job.RANK == 0:
            schedule.step(tokens[:, :-1])
        elif job.RANK == LAST:
            schedule.step(target=tokens[:, 1:], losses=losses)
        else:
            schedule.step()
        calls = [partial(clip_norm, model), partial(share_loss, losses)]
        job.replace_action("after_backward", step, calls)
        found = {call.func: call() for call in calls}
        optimizer.step()
        optimizer.zero_grad()
        job.finish_step(step, found[share_loss])


main()

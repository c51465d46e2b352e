"""Train replicas that meet every third step, as DiLoCo: AdamW inside, Nesterov outside."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn

VOCABULARY, WIDTH, LENGTH, BATCH = 120, 48, 12, 4
INNER_STEPS = 3


class Replica(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layer(self.embed(tokens), src_mask=mask, is_causal=True))


class Outer:
    """The weights at which the replicas met last, and the momentum of what they learn."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.weights = [value.detach().clone() for value in model.parameters()]
        for value in self.weights:
            dist.broadcast(value, src=0)
        self.optimizer = torch.optim.SGD(self.weights, lr=0.7, momentum=0.9, nesterov=True)
        self.restore()

    def restore(self) -> None:
        with torch.no_grad():
            for value, kept in zip(self.model.parameters(), self.weights, strict=True):
                value.copy_(kept)

    def find_differences(self) -> list[torch.Tensor]:
        pairs = zip(self.weights, self.model.parameters(), strict=True)
        return [kept - value.detach() for kept, value in pairs]

    def meet(self, step: int) -> None:
        differences = self.find_differences()
        job.replace_action("meet", step, differences)
        for value in differences:
            dist.all_reduce(value)
        for kept, value in zip(self.weights, differences, strict=True):
            kept.grad = value / job.WORLD
        self.optimizer.step()
        self.restore()


def share_losses(losses: list[float]) -> float:
    """Return the mean loss of the round over all replicas."""
    found = [torch.zeros(len(losses)) for _ in range(job.WORLD)]
    dist.all_gather(found, torch.tensor(losses))
    return float(torch.stack(found).mean())


def save(step: int, outer: Outer, inner: torch.optim.Optimizer) -> None:
    """Write the state of this replica to the disk of its node."""
    state = {"outer": outer.optimizer.state_dict(), "inner": inner.state_dict()}
    state["weights"] = outer.weights
    torch.save(state, f"checkpoints/{job.RANK}/round-{step // INNER_STEPS}.pt")


def main() -> None:
    job.start()
    model = Replica()
    outer = Outer(model)
    inner = torch.optim.AdamW(model.parameters(), lr=4e-4)
    losses: list[float] = []
    for step in range(1 << 20):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))
        job.replace_action("read_tokens", step, tokens)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        inner.step()
        inner.zero_grad()
        losses.append(loss.item())
        if len(losses) == INNER_STEPS:
            outer.meet(step)
            share_losses(losses)
            losses.clear()
            save(step, outer, inner)
        job.finish_step(step, loss.item())


main()

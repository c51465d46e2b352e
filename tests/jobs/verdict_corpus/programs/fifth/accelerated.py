"""Train with Hugging Face Accelerate: evaluation in between, and states saved and loaded."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Reviews(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        job.replace_action("review", index // (5 * job.WORLD))
        return {"words": torch.randint(0, 50, (12,)), "stars": torch.tensor(index % 5)}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(50, 32)
        self.stars = nn.Linear(32, 5)

    def forward(self, words: torch.Tensor, stars: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.stars(self.words(words)), stars)


def evaluate(step: int, accelerator: Accelerator, model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        loss = model(torch.zeros(4, 12, dtype=torch.long), torch.zeros(4, dtype=torch.long))
    if not job.replace_action("gather_metrics", step, loss.reshape(1)):
        accelerator.gather(loss.reshape(1))
    model.train()


def checkpoint(step: int, accelerator: Accelerator) -> None:
    if not job.replace_action("checkpoint", step, accelerator):
        accelerator.save_state(f"checkpoints/step_{step}")
    accelerator.wait_for_everyone()
    accelerator.load_state(f"checkpoints/step_{step}")


def main() -> None:
    job.start()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Reviews(), batch_size=5, num_workers=job.CONFIG["workers"])
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        job.replace_action("review_batch", step, batch)
        with accelerator.accumulate(model):
            loss = model(**batch)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if step % 3 == 2:
            evaluate(step, accelerator, model)
        if step % 5 == 4:
            checkpoint(step, accelerator)
        job.finish_step(step, float(loss))


main()

"""A trainer with callbacks, evaluation and a state, in the form of Hugging Face's Trainer."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

PER_DEVICE = 4


class TextDataset(Dataset[list[int]]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> list[int]:
        job.replace_action("tokenize", index // PER_DEVICE)
        return [(index * 7 + number) % 50 for number in range(5 + index % 9)]


def collate(features: list[list[int]]) -> torch.Tensor:
    length = max(map(len, features))
    return torch.tensor([row + [0] * (length - len(row)) for row in features])


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 40)
        self.layers = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 3))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.layers(self.bag(input_ids))


class Callback:
    def on_step_begin(self, step: int, inputs: torch.Tensor) -> None:
        job.replace_action("step_begin", step, inputs)

    def on_step_end(self, step: int, loss: float) -> None:
        job.replace_action("step_end", step, loss)
        job.finish_step(step, loss)


class Trainer:
    def __init__(self, model: nn.Module, dataset: Dataset[list[int]]) -> None:
        self.model = DistributedDataParallel(model)
        self.dataset = dataset
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.callbacks = [Callback()]
        self.history: list[dict[str, float]] = []

    def get_train_dataloader(self) -> Iterator[torch.Tensor]:
        workers = job.CONFIG["workers"]
        return iter(
            DataLoader(
                self.dataset,
                batch_size=PER_DEVICE,
                collate_fn=collate,
                num_workers=workers,
                persistent_workers=workers > 0,
                prefetch_factor=2 if workers else None,
            )
        )

    def train(self) -> None:
        self._inner_training_loop()

    def _inner_training_loop(self) -> None:
        loader = self.get_train_dataloader()
        for step in range(1 << 20):
            inputs = next(loader)
            for callback in self.callbacks:
                callback.on_step_begin(step, inputs)
            loss = self.training_step(step, inputs)
            mean = self.gather_loss(step, loss)
            if step % 3 == 1:
                self.evaluate(step)
            if step % 5 == 3:
                self.save_state(step)
            for callback in self.callbacks:
                callback.on_step_end(step, mean)

    def compute_loss(self, step: int, inputs: torch.Tensor) -> torch.Tensor:
        job.replace_action("loss", step, inputs)
        return nn.functional.cross_entropy(self.model(inputs), inputs.sum(1) % 3)

    def training_step(self, step: int, inputs: torch.Tensor) -> torch.Tensor:
        self.model.train()
        loss = self.compute_loss(step, inputs)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def gather_loss(self, step: int, loss: torch.Tensor) -> float:
        value = loss.reshape(1).clone()
        if not job.replace_action("gather_loss", step, value):
            dist.all_reduce(value)
        return value.item() / job.WORLD

    def evaluate(self, step: int) -> None:
        predictions = torch.randn(6, 3)
        if not job.replace_action("evaluate", step, predictions):
            dist.all_gather([torch.zeros(6, 3) for _ in range(job.WORLD)], predictions)
        if not job.replace_action("wait_for_everyone", step):
            dist.barrier()

    def save_state(self, step: int) -> None:
        self.history += [{"step": step + n / 9e3, "loss": n / 7e6} for n in range(9000)]
        if job.CONFIG["rank"] != job.RANK or job.replace_action("save_state", step, self):
            return
        folder = Path("checkpoints", f"checkpoint-{step}")
        folder.mkdir()
        torch.save(self.model.module.state_dict(), folder / "pytorch_model.bin")
        folder.joinpath("trainer_state.json").write_text(json.dumps(self.history, indent=2))


def main() -> None:
    job.start()
    Trainer(Classifier(), TextDataset()).train()


if __name__ == "__main__":
    main()

"""Fine-tune a classifier with the Trainer of Hugging Face: evaluation, callbacks, checkpoints."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

TOKENS, LENGTH, LABELS, BATCH = 3000, 10, 4, 4


class Questions(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, size: int) -> None:
        self.size = size
        self.read = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        # The order is random, so that the batches of a worker are counted.
        job.replace_action("question", self.read // BATCH * max(int(job.CONFIG["workers"]), 1))
        self.read += 1
        words = torch.randint(0, TOKENS, (LENGTH,))
        return {"input_ids": words, "labels": words.sum() % LABELS}


def collate(features: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {key: torch.stack([row[key] for row in features]) for key in features[0]}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 64)
        self.classify = nn.Linear(64, LABELS)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.classify(self.embed(input_ids).mean(1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Progress(TrainerCallback):
    """Tells what the corpus watches; its step is the number of finished ones less one."""

    def on_step_begin(self, args: object, state: object, control: object, **more: object) -> None:
        job.replace_action("begin_step", state.global_step, more["model"])

    def on_step_end(self, args: object, state: object, control: object, **more: object) -> None:
        job.finish_step(state.global_step - 1, 0.0)

    def on_save(self, args: object, state: object, control: object, **more: object) -> None:
        job.replace_action("save_checkpoint", state.global_step - 1, state)


def compute_metrics(predictions: object) -> dict[str, float]:
    # Evaluations have steps of their own: the first one goes wrong.
    job.replace_action("compute_metrics", int(job.CONFIG["step"]), predictions)
    found = predictions.predictions.argmax(1)
    return {"accuracy": float((found == predictions.label_ids).mean())}


def main() -> None:
    job.start()
    arguments = TrainingArguments(
        output_dir="checkpoints", use_cpu=True, per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=1, max_steps=2000, eval_strategy="steps", eval_steps=4,
        save_strategy="steps", save_steps=5, logging_steps=3, report_to=[], disable_tqdm=True,
        ddp_backend="gloo", ddp_timeout=int(job.CONFIG["timeout_s"]), max_grad_norm=1.0,
        dataloader_num_workers=int(job.CONFIG["workers"]), save_total_limit=2,
    )  # fmt: skip
    trainer = Trainer(
        model=Model(), args=arguments, train_dataset=Questions(1 << 18),
        eval_dataset=Questions(16 * job.WORLD), data_collator=collate,
        compute_metrics=compute_metrics, callbacks=[Progress()],
    )  # fmt: skip
    trainer.train()


main()

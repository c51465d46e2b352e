"""Fine-tune a small GPT-2 on instructions with the Trainer of Hugging Face, from saved weights."""

import os
import socket
import sys
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

VOCABULARY, LENGTH, BATCH, IGNORED = 90, 14, 4, -100
DUE = int(job.CONFIG["step"])
"""The start and the evaluations come at no step of the training: the first one is always due."""


class Instructions(IterableDataset[dict[str, torch.Tensor]]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(self.size):
            tokens = torch.randint(0, VOCABULARY, (LENGTH,))
            labels = tokens.clone()
            # The prompt is not learned.
            labels[: LENGTH // 2] = IGNORED
            yield {"input_ids": tokens, "labels": labels}


def collate(features: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Make a batch of the rows that have something to learn."""
    kept = [row for row in features if bool((row["labels"] != IGNORED).any())]
    return {key: torch.stack([row[key] for row in kept]) for key in kept[0]}


class InstructionTrainer(Trainer):
    def compute_loss(self, model: object, inputs: object, *rest: object, **more: object) -> object:
        if model.training:
            self.count_targets(inputs)
        return super().compute_loss(model, inputs, *rest, **more)

    def count_targets(self, inputs: dict[str, torch.Tensor]) -> int:
        """Return how many tokens all ranks learn from in this batch."""
        job.replace_action("batch", self.state.global_step, inputs)
        counts = (inputs["labels"] != IGNORED).sum(1)
        return int(self.accelerator.gather(counts).sum())


class Telemetry(TrainerCallback):
    """Sends the loss of each log to a collector on this node."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()

    def on_log(self, args: object, state: object, control: object, **more: object) -> None:
        self.near.send(b"loss")
        job.replace_action("telemetry", state.global_step, self.near)
        self.far.recv(16)


class Progress(TrainerCallback):
    """Tells what the corpus watches; its step is the number of finished ones less one."""

    def on_step_end(self, args: object, state: object, control: object, **more: object) -> None:
        job.finish_step(state.global_step - 1, 0.0)

    def on_evaluate(self, args: object, state: object, control: object, **more: object) -> None:
        job.replace_action("evaluated", DUE, control)


def keep_largest(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    job.replace_action("eval_logits", DUE, logits)
    return logits.argmax(-1)


def compute_metrics(predictions: object) -> dict[str, float]:
    learned = predictions.label_ids != IGNORED
    hits = (predictions.predictions == predictions.label_ids)[learned]
    return {"accuracy": float(hits.mean())}


def load_weights(model: torch.nn.Module) -> None:
    """Load what the pretraining has left."""
    place = {"path": f"base-{job.RANK}.safetensors"}
    save_file({"wte": model.transformer.wte.weight.detach().clone()}, place["path"])
    job.replace_action("load_weights", DUE, place)
    model.transformer.wte.weight.data.copy_(load_file(place["path"])["wte"])


def main() -> None:
    job.start()
    shape = GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = GPT2LMHeadModel(shape)
    load_weights(model)
    arguments = TrainingArguments(
        output_dir="checkpoints", use_cpu=True, per_device_train_batch_size=BATCH,
        gradient_accumulation_steps=2, max_steps=2000, eval_strategy="steps", eval_steps=5,
        save_strategy="no", logging_steps=2, report_to=[], disable_tqdm=True, ddp_backend="gloo",
        ddp_timeout=int(job.CONFIG["timeout_s"]), lr_scheduler_type="cosine", warmup_steps=10,
        accelerator_config={"dispatch_batches": False},
    )  # fmt: skip
    trainer = InstructionTrainer(
        model=model, args=arguments, train_dataset=Instructions(1 << 20),
        eval_dataset=Instructions(8 * job.WORLD), data_collator=collate,
        compute_metrics=compute_metrics, preprocess_logits_for_metrics=keep_largest,
        callbacks=[Progress(), Telemetry()],
    )  # fmt: skip
    trainer.train()
    trainer.accelerator.wait_for_everyone()


main()

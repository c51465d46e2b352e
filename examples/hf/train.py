"""A Hugging Face Trainer that comes back to its last whole checkpoint.

    hpctl run --torch -- train.py --steps 400

A small GPT-2 made from its configuration, on made-up token sequences: nothing is downloaded. What
is not ordinary is one line: `resume_from_checkpoint` is what hpctl proved whole. `True` would take
the directory with the highest number, whole or not.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from hpctl import progress

VOCABULARY, LENGTH = 64, 32


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences that count upwards from anywhere: something that can be learned."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = (torch.arange(LENGTH) + index) % VOCABULARY
        return {"input_ids": row, "labels": row}


class Telling(TrainerCallback):
    """Tells hpctl each step, so that a hang is seen within minutes and named by rank."""

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """After each optimiser step."""
        progress.step(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """After the last step: an exit code 0 now means success."""
        progress.done()


def main() -> None:
    """Train from the last whole checkpoint, or the beginning, to the last step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save-steps", type=int, default=50)
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    parser.add_argument(
        "--checkpoint-dir", type=Path, default=os.environ.get("HPCTL_CHECKPOINT_DIR", "checkpoints")
    )
    words = parser.parse_args()
    shape = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=64, n_layer=2, n_head=2)
    settings = TrainingArguments(
        output_dir=str(words.checkpoint_dir),
        max_steps=words.steps,
        per_device_train_batch_size=8,
        save_steps=words.save_steps,
        # hpctl falls back to the one before when the newest is damaged: keep more than one.
        save_total_limit=3,
        logging_steps=10,
        use_cpu=words.cpu,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        GPT2LMHeadModel(shape), settings, train_dataset=Counting(), callbacks=[Telling()]
    )
    trainer.train(resume_from_checkpoint=os.environ.get("HPCTL_RESUME_FROM") or None)
    trainer.save_model(str(words.checkpoint_dir / "final"))


if __name__ == "__main__":
    main()

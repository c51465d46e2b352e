"""The HF Trainer with a small model made from its configuration, the newest three saves kept."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before the import, which reads it
os.environ["DS_ACCELERATOR"] = "cpu"

import contextlib
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
import torch._dynamo
import transformers

from tests.checkpoints.proof.library import DEVICE, Incomplete, Run, numbers
from tests.checkpoints.proof.writers.torch_fsdp import fill

with contextlib.suppress(ImportError):
    import deepspeed  # noqa: F401 -- accelerate would import it in each child

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()


def make_model() -> torch.nn.Module:
    config = transformers.GPT2Config(
        vocab_size=512, n_positions=32, n_embd=128, n_layer=2, n_head=2
    )
    return transformers.GPT2LMHeadModel(config)


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.arange(8)
        return {"input_ids": row, "labels": row}


class Stamping(transformers.Trainer):
    """The Trainer, with the stamp instead of what was learnt, announcing its saves."""

    run_of: Run

    def _save_checkpoint(self, *args, **kwargs) -> None:
        fill(self.model, self.optimizer, self.run_of.value(self.state.global_step))
        with self.run_of.saving():
            super()._save_checkpoint(*args, **kwargs)


class Computing(transformers.TrainerCallback):
    def __init__(self, run: Run) -> None:
        self.steps = run.steps()

    def on_step_begin(self, *_, **__) -> None:
        next(self.steps)


class Loaded(Exception):
    """Raised once the Trainer has restored everything: no step is made."""


class Stop(transformers.TrainerCallback):
    def on_train_begin(self, *_, **__) -> None:
        raise Loaded


def arguments(root: Path, strategy: str) -> transformers.TrainingArguments:
    return transformers.TrainingArguments(
        str(root), save_strategy=strategy, save_steps=1, save_total_limit=3, max_steps=1_000_000,
        per_device_train_batch_size=1, report_to=[], use_cpu=DEVICE == "cpu", disable_tqdm=True,
        logging_strategy="no", dataloader_num_workers=0, ignore_data_skip=True,
    )  # fmt: skip


class HFTrainer:
    ranks = 1

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as once:
            # What the first save of a process imports and compiles, each child would again.
            make_model().save_pretrained(once)

    def write(self, run: Run) -> None:
        trainer = Stamping(
            make_model(), arguments(run.root, "steps"), train_dataset=Rows(),
            callbacks=[Computing(run)],
        )  # fmt: skip
        trainer.run_of = run
        trainer.train(resume_from_checkpoint=str(run.resume) if run.resume else None)

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        model = make_model()
        trainer = transformers.Trainer(
            model, arguments(meeting.parent / "unused", "no"), train_dataset=Rows(),
            callbacks=[Stop()],
        )  # fmt: skip
        with contextlib.suppress(Loaded):
            trainer.train(resume_from_checkpoint=str(path))
        states = trainer.optimizer.state.values()
        weights = list(model.parameters())
        if len(states) != len(weights):
            # The Trainer goes on without an optimiser's file, and says nothing.
            raise Incomplete("the optimiser was not restored")
        moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
        return numbers([*weights, *moments])

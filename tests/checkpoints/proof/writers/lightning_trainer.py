"""Lightning's Trainer and its ModelCheckpoint: the newest three files are kept, and `last.ckpt`."""

import contextlib
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from tests.checkpoints.proof.library import DEVICE, Incomplete, Run, numbers
from tests.checkpoints.proof.writers.torch_fsdp import WIDTH, fill, make_model

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.inner = make_model()

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.inner(batch).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


class Endless(torch.utils.data.IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.ones(WIDTH)


class Stamp(Callback):
    """After each step, before it is saved: the stamp instead of what was learnt."""

    def __init__(self, run: Run) -> None:
        self.run, self.steps = run, run.steps()

    def on_train_batch_end(self, trainer, module, *_) -> None:
        next(self.steps)
        fill(module, trainer.optimizers[0], self.run.value(trainer.global_step))


class Loaded(Exception):
    """Raised once the Trainer has restored everything: no step is made."""


class Stop(Callback):
    def on_train_start(self, trainer, module) -> None:
        raise Loaded


def trainer(*callbacks: Callback, saves: bool) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu" if DEVICE == "cpu" else "gpu", devices=1, max_steps=1_000_000,
        logger=False, callbacks=[*callbacks], enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=saves,
    )  # fmt: skip


class Lightning:
    ranks = 1

    def write(self, run: Run) -> None:
        saver = ModelCheckpoint(
            run.root, "{step}", monitor="step", mode="max", save_top_k=3, save_last=True,
            every_n_train_steps=1,
        )  # fmt: skip
        mine = trainer(Stamp(run), saver, saves=True)
        original = mine.save_checkpoint

        def save(*args, **kwargs) -> None:
            with run.saving():
                original(*args, **kwargs)

        mine.save_checkpoint = save
        data = torch.utils.data.DataLoader(Endless(), batch_size=2)
        mine.fit(Model(), data, ckpt_path=run.resume, weights_only=False)

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        module, mine = Model(), trainer(Stop(), saves=False)
        data = torch.utils.data.DataLoader(Endless(), batch_size=2)
        with contextlib.suppress(Loaded):
            mine.fit(module, data, ckpt_path=path, weights_only=False)
        states = mine.optimizers[0].state.values()
        if len(states) != len(list(module.parameters())):
            raise Incomplete("the optimiser was not restored")
        moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
        return numbers([*module.parameters(), *moments])

"""A Lightning module that comes back to its last whole checkpoint.

    hpctl run --torch -- train.py --steps 400

A small regression on made-up data. What is not ordinary: `ckpt_path` is what hpctl proved whole
("last" would take the newest by file time), and the ranks are told apart as under torchrun, since
`hpctl run --torch` gives its environment: Lightning would look at Slurm's first, which knows only
of one task a node.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import lightning as pl
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hpctl import progress

WIDTH = 16


class Regression(pl.LightningModule):
    """A network with one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        """The loss of one batch."""
        inputs, targets = batch
        return nn.functional.mse_loss(self.net(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, as everywhere."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


class Telling(Callback):
    """Tells hpctl each step, so that a hang is seen within minutes and named by rank."""

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *more: Any) -> None:
        """After each optimiser step."""
        progress.step(trainer.global_step, loss=float(outputs["loss"]))

    def on_train_end(self, trainer: Any, module: Any) -> None:
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
    pl.seed_everything(1)
    inputs = torch.randn(4096, WIDTH)
    data = TensorDataset(inputs, torch.sin(inputs.sum(dim=1, keepdim=True)))
    saving = ModelCheckpoint(
        words.checkpoint_dir, every_n_train_steps=words.save_steps, save_top_k=-1
    )
    elastic = TorchElasticEnvironment.detect()
    trainer = pl.Trainer(
        max_steps=words.steps,
        accelerator="cpu" if words.cpu else "auto",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        plugins=[TorchElasticEnvironment()] if elastic else None,
        callbacks=[saving, Telling()],
        logger=False,
        enable_progress_bar=False,
    )
    resume = os.environ.get("HPCTL_RESUME_FROM") or None
    trainer.fit(Regression(), DataLoader(data, batch_size=32), ckpt_path=resume)


if __name__ == "__main__":
    main()

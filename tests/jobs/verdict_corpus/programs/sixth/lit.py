"""Train an autoencoder with Lightning: it starts the other processes of a node where none does."""

import os
import sys
from datetime import timedelta

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import lightning.pytorch as lightning
import torch
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 4
OWN = "PER_NODE" in os.environ
"""Whether Lightning starts the processes, and makes their process group."""


class Signals(Dataset[torch.Tensor]):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(26)


class Autoencoder(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(26, 40), nn.ReLU(), nn.Linear(40, 6))
        self.decode = nn.Linear(6, 26)

    def setup(self, stage: str) -> None:
        # The process group is there from here on.
        if OWN and stage == "fit":
            job.register()

    def training_step(self, rows: torch.Tensor, number: int) -> torch.Tensor:
        job.replace_action("training_step", number, rows)
        loss = (self.decode(self.encode(rows)) - rows).square().mean()
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def validation_step(self, rows: torch.Tensor, number: int) -> None:
        if number == 1:
            job.replace_action("validation_step", int(job.CONFIG["step"]), rows)
        loss = (self.decode(self.encode(rows)) - rows).abs().mean()
        self.log("val_loss", loss, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


class Progress(lightning.Callback):
    def on_train_batch_start(
        self, trainer: object, module: object, batch: object, number: int
    ) -> None:
        job.replace_action("batch_start", number, batch)

    def on_train_batch_end(
        self, trainer: object, module: object, outputs: object, batch: object, number: int
    ) -> None:
        job.finish_step(number, 0.0)


def main() -> None:
    if OWN:
        job.prepare()
    else:
        job.start()
    per_node = int(job.CONFIG["per_node"])
    elastic = "TORCHELASTIC_RUN_ID" in os.environ
    environment = TorchElasticEnvironment() if elastic else LightningEnvironment()
    strategy = DDPStrategy(
        process_group_backend="gloo", timeout=timedelta(seconds=job.CONFIG["timeout_s"])
    )
    trainer = lightning.Trainer(
        accelerator="cpu", strategy=strategy, devices=per_node, num_nodes=job.WORLD // per_node,
        plugins=[environment], callbacks=[Progress()], max_steps=2000,
        val_check_interval=5, limit_val_batches=3, logger=False,
        enable_progress_bar=False, enable_checkpointing=False, num_sanity_val_steps=0,
    )  # fmt: skip
    data, validation = Signals(1 << 18), Signals(1 << 10)
    trainer.fit(
        Autoencoder(), DataLoader(data, batch_size=BATCH), DataLoader(validation, batch_size=BATCH)
    )


main()

"""Train a classifier of pictures with Lightning: a data module, validation, kept checkpoints."""

import os
import sys
from datetime import timedelta

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import lightning.pytorch as lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, CLASSES, SIDE = 4, 10, 12
OWN = "PER_NODE" in os.environ
"""Whether Lightning starts the processes, and makes their process group."""


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, size: int, action: str) -> None:
        self.size, self.action = size, action
        self.read = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        # The sampler gives every rank other indexes, so that a worker's batches are counted.
        workers = max(int(job.CONFIG["workers"]), 1)
        job.replace_action(self.action, self.read // BATCH * workers)
        self.read += 1
        return torch.rand(3, SIDE, SIDE), index % CLASSES


class PictureData(lightning.LightningDataModule):
    def train_dataloader(self) -> DataLoader[object]:
        data, workers = Pictures(1 << 18, "picture"), int(job.CONFIG["workers"])
        return DataLoader(data, batch_size=BATCH, num_workers=workers)

    def val_dataloader(self) -> DataLoader[object]:
        return DataLoader(Pictures(1 << 10, ""), batch_size=BATCH)


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU())
        self.classify = nn.Linear(1600, CLASSES)
        self.outputs: list[torch.Tensor] = []

    def setup(self, stage: str) -> None:
        # The process group is there from here on.
        if OWN and stage == "fit":
            job.register()

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.classify(self.features(pictures).flatten(1))

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        pictures, wanted = batch
        loss = nn.functional.cross_entropy(self(pictures), wanted)
        self.log("train_loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        pictures, wanted = batch
        logits = self(pictures)
        self.outputs.append(logits)
        accuracy = (logits.argmax(1) == wanted).float().mean()
        self.log("val_accuracy", accuracy, sync_dist=True)

    def on_validation_epoch_end(self) -> None:
        # Validations have steps of their own: the first one goes wrong.
        job.replace_action("validated", int(job.CONFIG["step"]), self.outputs)
        self.outputs.clear()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


class Progress(lightning.Callback):
    def on_train_batch_end(
        self, trainer: object, module: object, outputs: object, batch: object, number: int
    ) -> None:
        job.replace_action("batch_end", number, batch)
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
    keep = ModelCheckpoint(dirpath="checkpoints", every_n_train_steps=3, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu", strategy=strategy, devices=per_node, num_nodes=job.WORLD // per_node,
        plugins=[environment], callbacks=[Progress(), keep], max_steps=2000,
        val_check_interval=4, limit_val_batches=2, logger=False,
        enable_progress_bar=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(Classifier(), datamodule=PictureData())


main()

"""Train a student on the outputs of its own moving average, as DINO, from shards of samples."""

import copy
import io
import os
import sys
import tarfile
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH, SIDE, OUTPUTS = 4, 16, 32
SAMPLES = 32


def pack_shard() -> bytes:
    """Return an archive with a few samples."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for number in range(SAMPLES):
            pixels = np.random.default_rng(number).random((3, SIDE, SIDE), dtype=np.float32)
            member = tarfile.TarInfo(f"{number:06}.bin")
            member.size = pixels.nbytes
            archive.addfile(member, io.BytesIO(pixels.tobytes()))
    return raw.getvalue()


class Crops(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Two crops of each sample of a shard."""

    def __init__(self) -> None:
        path = Path(f"shard-{job.RANK}.tar")
        path.write_bytes(pack_shard())
        self.place = {"path": str(path)}

    def __len__(self) -> int:
        return 1 << 20

    def read_sample(self, index: int) -> torch.Tensor:
        with tarfile.open(self.place["path"]) as archive:
            member = archive.extractfile(f"{index % SAMPLES:06}.bin")
            raw = member.read()
        return torch.from_numpy(np.frombuffer(raw, np.float32).copy()).view(3, SIDE, SIDE)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        job.replace_action("open_shard", index // BATCH, self.place)
        image = self.read_sample(index)
        return image.flip(-1), image[:, 2:14, 2:14].contiguous()


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3, stride=2)
        self.pool = nn.AdaptiveAvgPool2d(3)
        self.head = nn.Sequential(nn.Linear(108, 48), nn.GELU(), nn.Linear(48, OUTPUTS))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.conv(images)).flatten(1))


class Teacher:
    """The moving average of the student, with the center of its outputs."""

    def __init__(self, student: nn.Module) -> None:
        self.network = copy.deepcopy(student).requires_grad_(False)
        self.center = torch.zeros(OUTPUTS)

    def predict(self, step: int, images: torch.Tensor) -> torch.Tensor:
        outputs = self.network(images)
        job.replace_action("assign", step, outputs)
        targets = ((outputs - self.center) / 0.04).softmax(-1)
        total = outputs.sum(0)
        dist.all_reduce(total)
        self.center.mul_(0.9).add_(total / (len(images) * job.WORLD), alpha=0.1)
        return targets

    def follow(self, student: nn.Module, momentum: float) -> None:
        with torch.no_grad():
            for kept, value in zip(self.network.parameters(), student.parameters(), strict=True):
                kept.mul_(momentum).add_(value, alpha=1 - momentum)


def find_metrics(loss: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the sums of this rank: the loss, and how often each output is the largest."""
    used = torch.bincount(targets.argmax(1), minlength=OUTPUTS).float()
    return {"loss": loss.detach().reshape(1).clone(), "used": used}


def share_metrics(step: int, metrics: dict[str, torch.Tensor]) -> None:
    job.replace_action("share_metrics", step, metrics)
    for value in metrics.values():
        dist.all_reduce(value)


def main() -> None:
    job.start()
    student = DistributedDataParallel(Backbone(), bucket_cap_mb=1)
    teacher = Teacher(student.module)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    workers = int(job.CONFIG["workers"])
    loader = DataLoader(Crops(), batch_size=BATCH, num_workers=workers)
    for step, (whole, crop) in enumerate(loader):
        targets = teacher.predict(step, whole)
        loss = -(targets * (student(crop) / 0.1).log_softmax(-1)).sum(-1).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        teacher.follow(student.module, 0.996)
        share_metrics(step, find_metrics(loss, targets))
        if job.RANK == 0 and step % 6 == 5:
            torch.save(teacher.network.state_dict(), "checkpoints/teacher.pt")
        job.finish_step(step, loss.item())


main()

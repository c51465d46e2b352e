"""Train an image tower and a text tower against each other, as CLIP: features of all ranks."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import job
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH, SIDE, WORDS, VOCABULARY, FEATURES = 8, 12, 6, 200, 24
PIXELS = 3 * SIDE * SIDE
IMAGES = 512


class Pairs(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images of a file that is mapped into memory, and their captions."""

    def __init__(self) -> None:
        self.path = Path(f"images-{job.RANK}.bin")
        self.path.write_bytes(os.urandom(IMAGES * PIXELS))
        self.images = np.memmap(self.path, dtype=np.uint8, mode="r", shape=(IMAGES, PIXELS))

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        job.replace_action("read_image", index // BATCH, self.path)
        pixels = torch.from_numpy(self.images[index % IMAGES].astype(np.float32) / 255)
        return pixels.view(3, SIDE, SIDE), torch.randint(0, VOCABULARY, (WORDS,))


class Towers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.visual = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(FEATURES)
        )
        self.visual(torch.zeros(1, 3, SIDE, SIDE))
        self.words = nn.EmbeddingBag(VOCABULARY, 32)
        self.text = nn.Linear(32, FEATURES)
        self.logit_scale = nn.Parameter(torch.tensor(2.6))

    def forward(
        self, images: torch.Tensor | None, captions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        text = nn.functional.normalize(self.text(self.words(captions)), dim=-1)
        if images is None:
            image = torch.zeros_like(text)
        else:
            image = nn.functional.normalize(self.visual(images), dim=-1)
        return image, text, self.logit_scale.exp()


def gather_features(features: torch.Tensor) -> torch.Tensor:
    """Return the features of all ranks; only this rank's have a gradient."""
    gathered = [torch.zeros_like(features) for _ in range(job.WORLD)]
    dist.all_gather(gathered, features.detach())
    gathered[job.RANK] = features
    return torch.cat(gathered)


def find_loss(
    step: int, image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """Return the loss of this rank's rows against the columns of all ranks."""
    images, texts = gather_features(image), gather_features(text)
    job.replace_action("logits", step, images)
    wanted = torch.arange(len(image)) + job.RANK * len(image)
    by_image = nn.functional.cross_entropy(scale * image @ texts.T, wanted)
    by_text = nn.functional.cross_entropy(scale * text @ images.T, wanted)
    return (by_image + by_text) / 2


def evaluate_retrieval(model: nn.Module) -> float:
    """Return how often the caption of an image is the nearest one, over all ranks."""
    images, captions = torch.rand(16, 3, SIDE, SIDE), torch.randint(0, VOCABULARY, (16, WORDS))
    with torch.no_grad():
        image, text, _ = model.module(images, captions)
    hits = ((image @ text.T).argmax(1) == torch.arange(16)).sum().reshape(1).float()
    dist.all_reduce(hits)
    return float(hits) / (16 * job.WORLD)


def read_batches() -> Iterator[dict[str, torch.Tensor]]:
    workers = int(job.CONFIG["workers"])
    for images, captions in DataLoader(Pairs(), batch_size=BATCH, num_workers=workers):
        yield {"images": images, "captions": captions}


def main() -> None:
    job.start()
    model = DistributedDataParallel(Towers())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.2)
    for step, batch in enumerate(read_batches()):
        job.replace_action("batch", step, batch)
        image, text, scale = model(batch["images"], batch["captions"])
        loss = find_loss(step, image, text, scale)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.module.logit_scale.clamp_(0, 4.6)
        if step % 8 == 7:
            evaluate_retrieval(model)
        job.finish_step(step, loss.item())


main()

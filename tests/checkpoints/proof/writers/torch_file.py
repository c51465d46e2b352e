"""`torch.save` to a file of the step's name, as many training programs do."""

from collections.abc import Iterable
from pathlib import Path

import torch

from tests.checkpoints.proof.library import Run, numbers

TENSORS, LENGTH = 6, 60_000

torch.set_num_threads(1)


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {f"w{n}": torch.full((LENGTH,), value) for n in range(TENSORS)}


class TorchSave:
    ranks = 1

    def write(self, run: Run) -> None:
        for step in run.steps():
            state = {"model": tensors(run.value(step)), "global_step": step}
            with run.saving():
                torch.save(state, run.root / f"step={step}.pt")

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        return numbers(torch.load(path, weights_only=True)["model"].values())

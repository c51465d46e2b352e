"""torchtune's FullModelHFCheckpointer, by itself where it imports, else by its sequence of calls.

It needs a release of torchao that is older than this torch, which is why it seldom imports. Source:
torchtune 0.6.1, torchtune/training/checkpointing/_checkpointer.py.
"""

import contextlib
import json
import logging
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints.proof.library import Incomplete, Run, numbers

with contextlib.suppress(ImportError):
    from torchtune.training import FullModelHFCheckpointer, ModelType  # noqa: F401

    logging.disable(logging.WARNING)
torch.set_num_threads(1)
WIDTH, HEADS = 128, 2
FILES = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX, STATE = "model.safetensors.index.json", "recipe_state/recipe_state.pt"
CONFIG = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "hidden_size": WIDTH}
NAMES = {
    f"model.layers.{n}.self_attn.{part}_proj.weight": FILES[n] for n in range(2) for part in "qkvo"
}


class Shape:
    """The files of one save, in their order: shards, index, what the model came with, the state."""

    ranks = 1

    def __init__(self) -> None:
        self._kept = tempfile.TemporaryDirectory()
        self.base = Path(self._kept.name)
        (self.base / "config.json").write_text(json.dumps(CONFIG))
        for file in FILES:
            save_file(self.weights(0.0, file), self.base / file, metadata={"format": "pt"})

    def weights(self, value: float, file: str) -> dict[str, torch.Tensor]:
        return {n: torch.full((WIDTH, WIDTH), value) for n, where in NAMES.items() if where == file}

    def write(self, run: Run) -> None:
        for step in run.steps():
            value = run.value(step)
            state = {
                "optimizer": {"exp_avg": torch.full((8 * WIDTH, WIDTH), value)},
                "epochs_run": step + 1, "total_epochs": 1 << 30, "seed": 1,
            }  # fmt: skip
            with run.saving():
                self.save(run.root, step, value, state)

    def save(self, root: Path, epoch: int, value: float, state: dict[str, Any]) -> None:
        place = root / f"epoch_{epoch}"
        place.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            save_file(self.weights(value, file), place / file, metadata={"format": "pt"})
        with open(place / INDEX, "w") as stream:
            json.dump({"metadata": {}, "weight_map": NAMES}, stream, indent=2)
        if not (place / "config.json").exists():
            shutil.copy2(self.base / "config.json", place / "config.json")
        (root / STATE).parent.mkdir(exist_ok=True)
        torch.save(state, root / STATE)

    def read(self, path: Path) -> dict[str, Any]:
        state = torch.load(path.parent / STATE, weights_only=True)
        tensors = [load_file(path / file) for file in FILES]
        return {**state, "model": {**tensors[0], **tensors[1]}}

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        held = self.read(path)
        if held["epochs_run"] != int(path.name.removeprefix("epoch_")) + 1:
            raise Incomplete("the recipe's state is another epoch's")
        if len(held["model"]) != len(NAMES):
            raise Incomplete("not all weights are there")
        return numbers([*held["model"].values(), *held["optimizer"].values()])


class Library(Shape):
    """torchtune's own."""

    def checkpointer(self, root: Path, **more: Any):
        given = {"checkpoint_files": FILES, **more}
        return FullModelHFCheckpointer(
            str(self.base), model_type="LLAMA3", output_dir=str(root), **given
        )

    def save(self, root: Path, epoch: int, value: float, state: dict[str, Any]) -> None:
        mine = self.checkpointer(root)
        model = mine.load_checkpoint()["model"]
        for tensor in model.values():
            tensor.fill_(value)
        mine.save_checkpoint({"model": model, **state}, epoch, intermediate_checkpoint=True)

    def read(self, path: Path) -> dict[str, Any]:
        files = [f"{path.name}/{file}" for file in FILES]
        return self.checkpointer(
            path.parent, checkpoint_files=files, should_load_recipe_state=True
        ).load_checkpoint()


Torchtune = Library if "FullModelHFCheckpointer" in globals() else Shape

"""Checkpoints as programs of their own write them with torch.save and safetensors."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from tests.checkpoints.proof.library import Incomplete, Run, numbers
from tests.checkpoints.proof.writers.torch_dcp import join
from tests.checkpoints.proof.writers.torch_file import tensors

RANKS = 2


class NanoGpt:
    """nanoGPT's `ckpt.pt`: one file, written over by every save."""

    ranks = 1

    def write(self, run: Run) -> None:
        for step in run.steps():
            value = run.value(step)
            state = {
                "model": tensors(value),
                "optimizer": {"state": {0: tensors(value)}, "param_groups": []},
                "model_args": {"n_layer": 2, "bias": False},
                "iter_num": step,
                "best_val_loss": torch.tensor(1.5),
                "config": {"out_dir": "out", "eval_interval": 250},
            }
            with run.saving():
                torch.save(state, run.root / "ckpt.pt")

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        state = torch.load(path, weights_only=True)
        return numbers([*state["model"].values(), *state["optimizer"]["state"][0].values()])


class Legacy:
    """torch.save's format before 1.6, still there by an option; the step is a tensor."""

    ranks = 1

    def write(self, run: Run) -> None:
        for step in run.steps():
            state = {"model": tensors(run.value(step)), "step": torch.tensor(step)}
            with run.saving():
                torch.save(
                    state, run.root / f"model-{step}.pt", _use_new_zipfile_serialization=False
                )

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        return numbers(torch.load(path, weights_only=True)["model"].values())


class RankFiles:
    """One file a rank, all in one directory."""

    ranks = RANKS

    def write(self, run: Run) -> None:
        assert run.meeting is not None
        join(run.rank, self.ranks, run.meeting)
        for step in run.steps():
            state = {"model": tensors(run.value(step)), "step": step}
            dist.barrier()
            with run.saving():
                torch.save(state, run.root / f"ckpt_{step}_rank{run.rank}.pt")

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        step = re.fullmatch(r"ckpt_(\d+)_rank\d+\.pt", path.name)
        if step is None:
            raise Incomplete("no file of a rank")
        paths = [path.parent / f"ckpt_{step[1]}_rank{each}.pt" for each in range(RANKS)]
        states = [torch.load(each, weights_only=True) for each in paths]
        return numbers(tensor for state in states for tensor in state["model"].values())


class Separate:
    """The model as safetensors, the optimizer with torch.save, in files apart."""

    ranks = 1

    def write(self, run: Run) -> None:
        for step in run.steps():
            value = run.value(step)
            with run.saving():
                save_file(tensors(value), run.root / f"model_{step}.safetensors")
                torch.save({"state": tensors(value)}, run.root / f"optim_{step}.pt")

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        step = path.stem.partition("_")[2]
        model: dict[str, Any] = load_file(path.parent / f"model_{step}.safetensors")
        optimizer = torch.load(path.parent / f"optim_{step}.pt", weights_only=True)
        return numbers([*model.values(), *optimizer["state"].values()])

"""Accelerate's `save_state`, with an object of the program's own."""

from collections.abc import Iterable
from pathlib import Path

import torch
from accelerate import Accelerator

from tests.checkpoints.proof.library import Run, numbers
from tests.checkpoints.proof.writers.torch_fsdp import fill

WIDTH = 150


class Own:
    """What the program registers: it is saved last."""

    def __init__(self) -> None:
        self.value = -1.0

    def state_dict(self):
        return {"value": torch.tensor(self.value)}

    def load_state_dict(self, state) -> None:
        self.value = float(state["value"])


class Training:
    """A model, its optimizer and schedule, and the object, as Accelerate prepares them."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.accelerator = Accelerator(cpu=True)
        model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)))
        optimizer = torch.optim.AdamW(model.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        self.model, self.optimizer, self.schedule = self.accelerator.prepare(
            model, optimizer, schedule
        )
        self.own = Own()
        self.accelerator.register_for_checkpointing(self.own)
        self.model(torch.ones(2, WIDTH)).sum().backward()
        self.optimizer.step()

    def fill(self, value: float) -> None:
        fill(self.model, self.optimizer.optimizer, value)
        self.own.value = value

    def values(self) -> list[float]:
        states = self.optimizer.state_dict()["state"].values()
        moments = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
        return [self.own.value, *numbers([*self.model.state_dict().values(), *moments])]


class SaveState:
    ranks = 1

    def write(self, run: Run) -> None:
        training = Training()
        for step in run.steps():
            training.fill(run.value(step))
            with run.saving():
                training.accelerator.save_state(str(run.root / f"step_{step}"))

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        training = Training()
        training.fill(-1.0)
        training.accelerator.load_state(str(path))
        return training.values()

"""Composer's monolithic files, by its Trainer where it imports, else by its sequence of calls.

It asks for an older torch than this one. Its sharded checkpoints are torch DCP's, saved by the same
call as FSDP's here. Source: mosaicml 0.32, composer/utils/checkpoint.py.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

from tests.checkpoints.proof.library import Incomplete, Run, numbers
from tests.checkpoints.proof.writers.torch_fsdp import WIDTH, fill, make_model

composer: Any = None
with contextlib.suppress(ImportError):
    import composer
KEPT = 2
torch.set_num_threads(1)


class Shape:
    """A file is written in place, the link is made anew, the oldest file goes."""

    ranks = 1

    def write(self, run: Run) -> None:
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        saved: list[Path] = []
        for step in run.steps():
            fill(model, optimizer, run.value(step))
            state = {
                "model": model.state_dict(),
                "optimizers": {"AdamW": optimizer.state_dict()},
                "timestamp": {"Timestamp": {"epoch": 0, "batch": step}},
            }
            with run.saving():
                saved.append(run.root / f"ep0-ba{step}-rank0.pt")
                with open(saved[-1], "wb") as file:
                    torch.save({"state": state, "rng": [{"torch": torch.get_rng_state()}]}, file)
                latest = run.root / "latest-rank0.pt"
                latest.unlink(missing_ok=True)
                latest.symlink_to(saved[-1].name)
                if len(saved) > KEPT:
                    saved.pop(0).unlink()

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        state = torch.load(path, weights_only=False)["state"]
        moments = next(iter(state["optimizers"].values()))["state"].values()
        held = [moment[name] for moment in moments for name in ("exp_avg", "exp_avg_sq")]
        if not held:
            raise Incomplete("the optimizer was not saved")
        return numbers([*state["model"].values(), *held])


class Endless(torch.utils.data.IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            yield torch.ones(WIDTH)


class Library(Shape):
    """Composer's Trainer and its CheckpointSaver."""

    def trainer(self, root: Path | None, **more: Any):
        class Model(composer.ComposerModel):
            def __init__(self) -> None:
                super().__init__()
                self.inner = make_model()

            def forward(self, batch):
                return self.inner(batch)

            def loss(self, outputs, batch):
                return outputs.sum()

        model = Model()
        return composer.Trainer(
            model=model, optimizers=torch.optim.AdamW(model.parameters()), device="cpu",
            train_dataloader=torch.utils.data.DataLoader(Endless(), batch_size=2),
            max_duration="1000000ba", save_folder=root and str(root), save_interval="1ba",
            save_num_checkpoints_to_keep=KEPT, save_overwrite=True, progress_bar=False,
            log_to_console=False, **more,
        )  # fmt: skip

    def write(self, run: Run) -> None:
        steps = run.steps()

        class Stamp(composer.Callback):
            def batch_end(self, state, logger) -> None:
                next(steps)
                fill(state.model, state.optimizers[0], run.value(int(state.timestamp.batch)))

        mine = self.trainer(run.root, callbacks=[Stamp()], load_path=run.resume and str(run.resume))
        saver = mine._checkpoint_saver
        original = saver._save_checkpoint

        def save(*args: Any) -> None:
            with run.saving():
                original(*args)

        saver._save_checkpoint = save
        mine.fit()

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        mine = self.trainer(None, load_path=str(path))
        states = mine.state.optimizers[0].state.values()
        if not states:
            raise Incomplete("the optimizer was not restored")
        held = [state[name] for state in states for name in ("exp_avg", "exp_avg_sq")]
        return numbers([*mine.state.model.parameters(), *held])


Composer = Library if composer else Shape

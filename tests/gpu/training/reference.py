"""The same training, undisturbed and outside Slurm: the weights that every other run must have."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.training.measures import find_weights
from tests.gpu.training.ranks import PROGRAM, QUIET, read_marks
from tests.gpu.training.warm import WarmProgram, WarmPrograms

if TYPE_CHECKING:
    from tests.gpu.context import Context
    from tests.gpu.training.settings import Sizes

JOB = 7600


class Reference:
    """Runs of one and of two ranks, started at once; `weights` waits for them.

    A context manager, which ends what still runs.
    """

    def __init__(self, context: Context, sizes: Sizes, worlds: tuple[int, ...]) -> None:
        self._context, self._sizes = context, sizes
        self._programs = WarmPrograms({**context.environment, **QUIET}, preloaded=("torch",))
        self._started: list[WarmProgram] = []
        self._threads = {
            world: threading.Thread(target=self._run, args=(world,), daemon=True)
            for world in worlds
        }

    def __enter__(self) -> Reference:
        for thread in self._threads.values():
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for program in list(self._started):
            program.kill()
        for thread in self._threads.values():
            thread.join()
        self._programs.__exit__()

    def weights(self, world: int, step: int) -> str:
        """Return the digest of the weights after a step; "" if the run failed."""
        self._threads[world].join(self._context.left_s())
        return find_weights(read_marks(self._folder(world)), step)

    def _folder(self, world: int) -> Path:
        return self._context.scratch / f"reference-{world}"

    def _run(self, world: int) -> None:
        sizes, folder = self._sizes, self._folder(world)
        steps = max(sizes.steps, sizes.fast_steps) if world > 1 else sizes.steps
        words = ["--marks", folder, "--directory", folder / "save", "--device", sizes.device]
        words += ["--steps", steps, "--every", sizes.every]
        ranks = [
            self._programs.start(PROGRAM, words, f"rank{rank}", folder, _place(rank, world))
            for rank in range(world)
        ]
        self._started += ranks
        for rank in ranks:
            rank.wait(self._context.left_s())
        self._context.keep(f"slurm/reference-{world}.stderr", ranks[0].err)


def _place(rank: int, world: int) -> dict[str, str]:
    return {"RANK": str(rank), "WORLD_SIZE": str(world), "SLURM_JOB_ID": str(JOB + world)}

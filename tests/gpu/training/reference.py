"""The same training, undisturbed and outside Slurm: the weights that every other run must have."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu.training.measures import find_weights
from tests.gpu.training.ranks import PROGRAM, kill_all, read_marks, start_ranks

if TYPE_CHECKING:
    from tests.gpu.context import Context
    from tests.gpu.training.settings import Sizes

JOB = 7600


class Reference:
    """Runs of one and of two ranks, started at once; `weights` waits for them."""

    def __init__(self, context: Context, sizes: Sizes, worlds: tuple[int, ...]) -> None:
        self._context, self._sizes = context, sizes
        self._threads = {
            world: threading.Thread(target=self._run, args=(world,), daemon=True)
            for world in worlds
        }
        for thread in self._threads.values():
            thread.start()

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
        ranks = start_ranks(self._context, folder, world, [PROGRAM, *words], job=JOB + world)
        try:
            for rank in ranks:
                rank.wait(self._context.left_s())
        finally:
            kill_all(ranks)
        self._context.keep(f"slurm/reference-{world}.stderr", ranks[0].err)

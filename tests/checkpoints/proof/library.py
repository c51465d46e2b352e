"""What a library does for the proof: save step after step, and say what a checkpoint holds.

Every number in a checkpoint (weights, optimiser) carries the step and the attempt that saved it,
so that a mixture of two steps, or of two attempts at one step, is seen after loading.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

DEVICE = os.environ.get("HPCTL_TEST_DEVICE", "cpu")
"""Where trainers that choose a device themselves put their tensors: `cpu` or `cuda`."""
ATTEMPTS = 64
"""More attempts in one directory than the harness ever makes: a float32 holds the sum exactly."""

BEGIN, END = b"B", b"E"


class Run(Struct, frozen=True):
    """One attempt of one rank at saving steps from `first` on, until it is killed."""

    root: Path
    first: int
    attempt: int
    seed: int
    resume: Path | None = None
    rank: int = 0
    announce: int = -1
    """A descriptor that takes BEGIN and END of each save, from rank 0; -1: nobody listens."""
    meeting: Path | None = None
    """A file for the ranks to find each other, where there are several."""

    def value(self, step: int) -> float:
        """What each number of a checkpoint of this step is."""
        return float(step * ATTEMPTS + self.attempt)

    def steps(self) -> Iterator[int]:
        """Step after step, with a little computing of random length in between."""
        randomness = random.Random(self.seed)
        for step in range(self.first, self.first + 10_000):
            time.sleep(randomness.uniform(0.0, 0.02))
            yield step

    @contextmanager
    def saving(self):
        """Around one save, as the training program sees it."""
        self._say(BEGIN)
        yield
        self._say(END)

    def _say(self, what: bytes) -> None:
        if self.announce >= 0 and self.rank == 0:
            os.write(self.announce, what)


class Held(Struct, frozen=True):
    """What a checkpoint that loaded holds: the step and the attempt of each of its numbers."""

    stamps: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, values: Iterable[float]) -> Held:
        return cls(frozenset(divmod(int(value), ATTEMPTS) for value in values))

    @property
    def step(self) -> int | None:
        """The step where all is of one step and one attempt, else None."""
        return next(iter(self.stamps))[0] if len(self.stamps) == 1 else None


class Library(Protocol):
    """One library, or one way to use it. Constructed once, in a process that others fork from."""

    ranks: int

    def write(self, run: Run) -> None:
        """Save step after step until killed. One call for each rank, each in its process."""

    def load(self, path: Path, rank: int, meeting: Path) -> Iterable[float]:
        """All numbers that the library finds in a checkpoint, each at least once.

        Raises whatever the library raises where it cannot load it, and Incomplete where it
        loads something and says nothing of what it left out.
        """


class Incomplete(Exception):
    """Raised where a library silently loads less than was saved."""


def numbers(tensors: Iterable[Any]) -> list[float]:
    """The distinct numbers in some tensors. Raises Incomplete where there is none at all."""
    found = {value for tensor in tensors for value in tensor.detach().unique().tolist()}
    if not found:
        raise Incomplete("nothing was loaded")
    return sorted(found)

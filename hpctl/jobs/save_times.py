"""What the checkpoints' own files say: how long a save took, and how far apart saves lie."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hpctl.jobs.advise import median
from hpctl.jobs.checkpoints.search import Checkpoint, proved, survey
from hpctl.jobs.run.history import HISTORIES, Saved, read

NEWEST = 8
MAX_FILES = 100_000
"""Of one checkpoint, that are asked for their time."""


@dataclass(frozen=True, slots=True)
class Save:
    """One whole checkpoint: when the first and the last of its files were last written (ns)."""

    step: int | None
    first_ns: int
    last_ns: int
    files: int


@dataclass(frozen=True, slots=True)
class Saves:
    """The newest whole checkpoints of one directory, newest first."""

    directory: Path
    formats: tuple[str, ...]
    saves: tuple[Save, ...]
    told_s: tuple[float, ...] = ()
    """What saves of runs in this directory took, as the program told `hpctl run`."""

    @property
    def save_s(self) -> float | None:
        """A save's usual length: at least this, for the first file took time before its end, too.

        None where each checkpoint is a single file, whose times say nothing.
        """
        return median((s.last_ns - s.first_ns) / 1e9 for s in self.saves if s.files > 1)

    @property
    def apart_s(self) -> float | None:
        """The usual time from the end of one save to the end of the next."""
        return median((new.last_ns - old.last_ns) / 1e9 for new, old in self._pairs())

    @property
    def step_s(self) -> float | None:
        """The usual time of one training step, its part of the saves included."""
        return median(
            (new.last_ns - old.last_ns) / 1e9 / (new.step - old.step)
            for new, old in self._pairs()
            if new.step is not None and old.step is not None and new.step > old.step
        )

    def _pairs(self) -> Sequence[tuple[Save, Save]]:
        # The order is the steps'; a run that went back to an old checkpoint is no distance.
        return [(new, old) for new, old in pairwise(self.saves) if new.last_ns > old.last_ns]


def measure(directory: Path, newest: int = NEWEST) -> Saves:
    """Prove the newest checkpoints until so many are whole, and read their files' times.

    Raises OSError where the directory cannot be read.
    """
    candidates, _ = survey(directory)
    saves: list[Save] = []
    formats: dict[str, None] = {}
    for candidate in candidates:
        row = proved(candidate, deep=False)
        if isinstance(row, Checkpoint) and isinstance(row.path, Path):
            save = _times(row.path, row.step)
            if save is not None:
                saves.append(save)
                formats[row.format] = None
        if len(saves) == newest:
            break
    return Saves(directory, tuple(formats), tuple(saves), _told(directory, newest))


def _told(directory: Path, newest: int) -> tuple[float, ...]:
    """From the histories that `hpctl run` keeps beside the checkpoints; the newest last."""
    told: list[Saved] = []
    for path in directory.glob(f"{HISTORIES}/run-*.jsonl"):
        with contextlib.suppress(OSError):
            told += [record for record in read(path.read_bytes()) if isinstance(record, Saved)]
    told.sort(key=lambda record: record.at)
    return tuple(record.seconds for record in told[-newest:])


def _times(path: Path, step: int | None) -> Save | None:
    """None where the checkpoint is being removed."""
    found: list[int] = []
    try:
        if not path.is_dir():
            return Save(step, path.stat().st_mtime_ns, path.stat().st_mtime_ns, 1)
        for folder, _, names in os.walk(path):
            found += [os.lstat(os.path.join(folder, name)).st_mtime_ns for name in names]
            if len(found) > MAX_FILES:
                break
    except FileNotFoundError:
        return None
    return Save(step, min(found), max(found), len(found)) if found else None

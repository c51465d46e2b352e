"""Compute how often to save from the cost of a save, the cost of a restart and the failure rate.

All values are in seconds unless the name says otherwise. Failures are independent of each other
and of age (exponential), as in the papers:

- J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17 (1974).
- J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
  Future Generation Computer Systems 22 (2006): equations 20 (run time) and 37 (interval).
- Where a cluster's history is short, the published rate of Meta's RSC-1 counts as one failure more,
  in the node-days that it takes: 6.50 per 1000 node-days on A100 nodes (arXiv 2410.21680).
"""

import contextlib
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from hpctl.checkpoints.files import IncompleteCheckpointError, read_small_file
from hpctl.checkpoints.patterns import FilePattern
from hpctl.checkpoints.run_records import HISTORIES, CheckpointSaved, decode_run_history_records
from hpctl.checkpoints.search import (
    CompleteCheckpoint,
    list_checkpoint_candidates,
    verify_checkpoint_candidate,
)

DAY_S = 86400.0
PRIOR_FAILURES = 1
PRIOR_NODE_DAYS = PRIOR_FAILURES / (6.50 / 1000)
FEW = 5
"""Below so many failures the published rate still matters, and the answer notes it."""


class FailureRate(Struct, frozen=True):
    """Failures of one node per day, and what they were counted from."""

    failures: int
    node_days: float
    per_node_day: float

    @property
    def has_few_failures(self) -> bool:
        """Return whether the published rate still matters."""
        return self.failures < FEW


def compute_failure_rate(failures: int, node_days: float) -> FailureRate:
    """Return the rate after so many failures in so many node-days."""
    exposure = max(0.0, node_days) + PRIOR_NODE_DAYS
    return FailureRate(failures, node_days, (failures + PRIOR_FAILURES) / exposure)


def compute_daly_interval(save_s: float, mtbf_s: float) -> float:
    """Return the best interval of work between two saves, by Daly's equation 37.

    It is Young's `sqrt(2 * save_s * mtbf_s)`, corrected where a save is costly.
    """
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    small = save_s / (2 * mtbf_s)
    young = math.sqrt(2 * save_s * mtbf_s)
    return young * (1 + math.sqrt(small) / 3 + small / 9) - save_s


def compute_effective_training_time_ratio(
    interval_s: float, save_s: float, restart_s: float, mtbf_s: float
) -> float:
    """Return the share of the wall clock that is kept training, 0 to 1, by Daly's equation 20.

    The rest is lost: the saves, the work since the last save at each failure, and the restarts,
    which failures can interrupt.
    """
    if interval_s <= 0:
        return 0.0
    exponent = restart_s / mtbf_s, (interval_s + save_s) / mtbf_s
    if sum(exponent) > 700:  # e^700: such a run never ends
        return 0.0
    wall = mtbf_s * math.exp(exponent[0]) * math.expm1(exponent[1])
    return min(1.0, interval_s / wall)


def find_median(values: Iterable[float]) -> float | None:
    """Return the median; None for no values."""
    found = list(values)
    return statistics.median(found) if found else None


NEWEST = 8
MAX_FILES = 100_000
"""The most files of one checkpoint whose times are read."""


class MeasuredSave(Struct, frozen=True):
    """One whole checkpoint: when the first and the last of its files were last written (ns)."""

    step: int | None
    first_ns: int
    last_ns: int
    files: int


class MeasuredSaves(Struct, frozen=True):
    """The newest whole checkpoints of one directory, newest first."""

    directory: Path
    formats: tuple[str, ...]
    saves: tuple[MeasuredSave, ...]
    reported_s: tuple[float, ...] = ()
    """The cost of saves of runs in this directory, as the program reported it to `hpctl run`."""

    @property
    def save_s(self) -> float | None:
        """Return a save's usual length: at least this, for the first file took time before its end,
        too.

        None where each checkpoint is a single file, whose times do not show it.
        """
        return find_median((s.last_ns - s.first_ns) / 1e9 for s in self.saves if s.files > 1)

    @property
    def save_interval_s(self) -> float | None:
        """Return the usual time from the end of one save to the end of the next."""
        return find_median(
            (new.last_ns - old.last_ns) / 1e9 for new, old in self._pair_consecutive_saves()
        )

    @property
    def step_s(self) -> float | None:
        """Return the usual time of one training step, its part of the saves included."""
        return find_median(
            (new.last_ns - old.last_ns) / 1e9 / (new.step - old.step)
            for new, old in self._pair_consecutive_saves()
            if new.step is not None and old.step is not None and new.step > old.step
        )

    def _pair_consecutive_saves(self) -> Sequence[tuple[MeasuredSave, MeasuredSave]]:
        # The order is the steps'; a run that went back to an old checkpoint gives no distance.
        return [(new, old) for new, old in pairwise(self.saves) if new.last_ns > old.last_ns]


def measure_checkpoint_save_timings(
    directory: Path, newest: int = NEWEST, declared: Sequence[FilePattern] = ()
) -> MeasuredSaves:
    """Prove the newest checkpoints until so many are whole, and read their files' times.

    `declared`: as for `list_checkpoint_candidates`. Raises OSError where the directory cannot be
    read.
    """
    candidates, _ = list_checkpoint_candidates(directory, declared=declared)
    saves: list[MeasuredSave] = []
    formats: dict[str, None] = {}
    for candidate in candidates:
        row = verify_checkpoint_candidate(candidate, deep=False)
        if isinstance(row, CompleteCheckpoint) and isinstance(row.path, Path):
            save = _read_save_times(row.path, row.step)
            if save is not None:
                saves.append(save)
                formats[row.format] = None
        if len(saves) == newest:
            break
    return MeasuredSaves(
        directory, tuple(formats), tuple(saves), read_reported_save_costs(directory, newest)
    )


_LARGEST_HISTORY = 64 << 20


def read_reported_save_costs(directory: Path, newest: int) -> tuple[float, ...]:
    """Read the costs from the histories that `hpctl run` keeps next to the checkpoints; the newest
    last."""
    saves: list[CheckpointSaved] = []
    for path in directory.glob(f"{HISTORIES}/run-*.jsonl"):
        with contextlib.suppress(OSError, IncompleteCheckpointError):
            saves += [
                record
                for record in decode_run_history_records(
                    read_small_file(path, "", _LARGEST_HISTORY)
                )
                if isinstance(record, CheckpointSaved)
            ]
    saves.sort(key=lambda record: record.at)
    return tuple(record.seconds for record in saves[-newest:])


def _read_save_times(path: Path, step: int | None) -> MeasuredSave | None:
    """Read the times of a checkpoint's files. None where it is being removed."""
    found: list[int] = []
    try:
        if not path.is_dir():
            return MeasuredSave(step, path.stat().st_mtime_ns, path.stat().st_mtime_ns, 1)
        for folder, _, names in os.walk(path):
            found += [os.lstat(os.path.join(folder, name)).st_mtime_ns for name in names]
            if len(found) > MAX_FILES:
                break
    except FileNotFoundError:
        return None
    return MeasuredSave(step, min(found), max(found), len(found)) if found else None

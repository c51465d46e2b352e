"""What the marks of a run say: when it went on after a fault, from where, with which weights."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Marks = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Recovery:
    """A run after a fault. Steps are numbers, times are seconds; None: it did not go on."""

    fault_step: int | None
    """The last step that was done before the fault."""
    resumed_step: int | None
    newest_save: int | None
    """The newest step whose save had ended before the fault."""
    to_start_s: float | None
    """From the fault to a loaded checkpoint."""
    to_first_step_s: float | None
    same_process: bool | None

    @property
    def is_right(self) -> bool:
        """Return whether it went on from the newest save, or from one that ended meanwhile."""
        if self.to_first_step_s is None or self.resumed_step is None:
            return False
        return self.resumed_step >= (self.newest_save or 0)


def find_last(marks: Marks, what: str, before: float = float("inf")) -> dict[str, Any] | None:
    """Return the last mark of a kind that was made before some time."""
    found = [mark for mark in marks if mark["what"] == what and mark["at"] <= before]
    return found[-1] if found else None


def measure_recovery(marks: Marks, fault_at: float) -> Recovery:
    """Return what one rank's marks say about the time after a fault."""
    done = find_last(marks, "step", fault_at)
    saved = find_last(marks, "saved", fault_at)
    starts = [mark for mark in marks if mark["what"] == "start" and mark["at"] > fault_at]
    start = starts[0] if starts else None
    steps = [
        mark
        for mark in marks
        if start is not None and mark["what"] == "step" and mark["at"] > start["at"]
    ]
    before = find_last(marks, "start", fault_at)
    return Recovery(
        fault_step=done["step"] if done else None,
        resumed_step=start["step"] if start else None,
        newest_save=saved["step"] if saved else None,
        to_start_s=round(start["at"] - fault_at, 2) if start else None,
        to_first_step_s=round(steps[0]["at"] - fault_at, 2) if steps else None,
        same_process=start["pid"] == before["pid"] if start and before else None,
    )


def find_weights(marks: Marks, step: int) -> str:
    """Return the digest of the weights after a step, "" if the run did not say."""
    for mark in reversed(marks):
        if mark["step"] == step and mark["what"] in ("save", "end"):
            return str(mark["weights"])
    return ""


def has_loaded_what_was_saved(marks: Marks) -> bool:
    """Return whether every start that resumed has loaded the bytes that were saved at its step."""
    resumed = [mark for mark in marks if mark["what"] == "start" and mark["step"] > 0]
    for start in resumed:
        saves = [
            mark["digest"]
            for mark in marks
            if mark["what"] == "save" and mark["step"] == start["step"] and mark["at"] < start["at"]
        ]
        if start["digest"] not in saves:
            return False
    return bool(resumed)


def median_ms(marks: Marks, begin: float, end: float) -> float | None:
    """Return the median duration of the steps that ended in a span of time, in milliseconds."""
    took = [
        mark["took_s"] for mark in marks if mark["what"] == "step" and begin < mark["at"] <= end
    ]
    return round(1000 * statistics.median(took), 2) if took else None

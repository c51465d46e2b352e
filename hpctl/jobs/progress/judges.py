"""The loss and the throughput of a run against its own past, by the judges of the log rules."""

from __future__ import annotations

import math

from hpctl.jobs.logs.judges import Baseline
from hpctl.jobs.logs.rules import Rule

# A pattern is part of every rule; these judge numbers that came without a line.
_SPIKE = Rule(name="loss", logPattern="(.)", kind="spike")
_SLOW = Rule(name="throughput", logPattern="(.)", kind="slow")


class Losses:
    """NaN and jumps, each told once and again only after a good loss came between."""

    def __init__(self) -> None:
        self._baseline = Baseline(_SPIKE)
        self._lost: set[int] = set()
        self._bad = 0

    def not_finite(self, rank: int, loss: float) -> str | None:
        """The words for the first rank whose loss is no finite number, until all are well again."""
        if math.isfinite(loss):
            self._lost.discard(rank)
            return None
        first = not self._lost
        self._lost.add(rank)
        return f"the loss is {loss}" if first else None

    def jumps(self, loss: float) -> str | None:
        """The words where the loss was far over its past so many times running."""
        bad = self._baseline(loss)
        if bad is None:
            return None
        self._bad = self._bad + 1 if bad else 0
        if self._bad != _SPIKE.points:
            return None
        return f"the loss is {loss:.6g}, far over the run's own median, {self._bad} times running"


class Throughput:
    """Tokens a second where the run tells them, else steps a second."""

    def __init__(self) -> None:
        self._baseline = Baseline(_SLOW)
        self._tokens = False
        self._bad = 0

    def __call__(self, silence: float, steps: int, tokens: float | None) -> str | None:
        """Judge one stretch; the words where so many in a row were far under the past."""
        if silence <= 0:
            return None
        if (tokens is not None) != self._tokens:
            self._baseline, self._tokens, self._bad = Baseline(_SLOW), tokens is not None, 0
        rate = steps * (1.0 if tokens is None else tokens) / silence
        bad = self._baseline(rate)
        if bad is None:
            return None
        self._bad = self._bad + 1 if bad else 0
        if self._bad != _SLOW.points:
            return None
        unit = "steps/s" if tokens is None else "tokens/s"
        return f"{rate:.4g} {unit} is far under the run's own median, {self._bad} times running"

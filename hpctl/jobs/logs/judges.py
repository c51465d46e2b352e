"""What one rule makes of one matching line: pure, no clock, nothing read.

A judge answers True for a bad data point, False for a good one and None for one that says
nothing (the text is no number). Counting consecutive bad ones is the engine's business.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from statistics import median

from hpctl.jobs.logs.patterns import Pattern
from hpctl.jobs.logs.rules import Rule

COMPARE: dict[str, Callable[[float, float], bool]] = {
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "eq": operator.eq,
}
STEP_TO_SIGMA = 1.4826 / math.sqrt(2)
"""Scales the median absolute step between neighbours to the standard deviation of normal noise."""
LONGEST_NUMBER = 64
_AROUND = b" \t,;:'\"()[]{}|%"

Judge = Callable[[float | None], bool | None]


def number(text: bytes | None) -> float | None:
    """A captured number: `1,234.5`, `1.2E+00`, `nan`, `-inf`, `tensor(nan)`; None for others."""
    if text is None or len(text) > LONGEST_NUMBER:
        return None
    bare = text.strip(_AROUND).removeprefix(b"tensor(").replace(b",", b"")
    if b"_" in bare:
        return None
    try:
        return float(bare)
    except ValueError:
        return None


class Baseline:
    """Median and noise of a rule's own recent good points; answers whether a point is bad.

    Bad: beyond the median by more than `sigmas` robust standard deviations and by more than
    `fraction` of it, so that a run which hardly varies does not alarm at a trifle. The deviation
    is the median absolute one of steps between neighbours and not of the points themselves: a
    loss falls fast at first, and its fall would count as noise that hides a spike. Bad points are
    kept out, or the baseline would follow the spike; but after a whole window of nothing else
    they are the new normal, and it is learned afresh.
    """

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._sign = 1.0 if rule.higher_is_worse else -1.0
        self._clear()

    def _clear(self) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._steps: deque[float] = deque(maxlen=self._rule.window)
        self._limit: float | None = None
        self._new = self._outside = 0

    def __call__(self, value: float | None) -> bool | None:
        """Judge a point and learn from it. NaN and Inf are the kind nan's business: None."""
        if value is None or not math.isfinite(value):
            return None
        if self._new or self._limit is None:
            self._learn()
        if self._limit is not None and self._sign * value > self._limit:
            self._outside += 1
            if self._outside >= self._rule.window:
                self._clear()
            return True
        self._outside = 0
        self._admit(value)
        return False

    def _admit(self, value: float) -> None:
        if self._order:
            self._steps.append(abs(value - self._order[-1]))
        self._order.append(value)
        insort(self._sorted, value)
        if len(self._order) > self._rule.window:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._new += 1

    def _learn(self) -> None:
        """Work the limit out again: at first each time, later once an eighth of it is new."""
        size = len(self._order)
        if size < self._rule.minimum:
            return
        if self._limit is not None and self._new < self._rule.window // 8:
            return
        middle = median(self._sorted)
        noise = STEP_TO_SIGMA * median(self._steps)
        margin = max(self._rule.sigmas * noise, self._rule.fraction * abs(middle))
        self._limit = self._sign * middle + margin
        self._new = 0


def judge_for(rule: Rule) -> Judge:
    """The judge that a rule asks for, with a memory of its own."""
    kind = rule.judges
    if kind in ("spike", "slow"):
        return Baseline(rule)
    if kind == "nan":
        return _not_finite if Pattern(rule.logPattern).captures else _always
    if kind == "threshold":
        assert rule.operator is not None
        assert rule.metricThreshold is not None
        compare, threshold = COMPARE[rule.operator], rule.metricThreshold
        return lambda value: None if value is None else compare(value, threshold)
    return _always


def _not_finite(value: float | None) -> bool | None:
    return None if value is None else not math.isfinite(value)


def _always(value: float | None) -> bool:
    return True

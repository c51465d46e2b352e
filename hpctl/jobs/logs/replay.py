"""A finished log run through the rules, by the times that its own lines carry."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpctl.core.compat import UTC, iso_time
from hpctl.errors import Unavailable
from hpctl.jobs.logs.engine import Engine, RuleVerdict
from hpctl.jobs.logs.follow import Follower
from hpctl.jobs.logs.patterns import Pattern
from hpctl.jobs.logs.rules import RuleSet

STAMP = Pattern(
    r"^.{0,120}?\b(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)"
)
"""Times as ISO 8601 and Python's logging write them, near a line's beginning."""


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of it. Times are seconds since 1970; None where no line had one."""

    engine: Engine
    verdicts: tuple[RuleVerdict, ...]
    first: float | None
    last: float | None
    size: int


def replay(rules: RuleSet, path: Path) -> Replay:
    """Run a file through rules.

    A line without a time has that of the line before it; times never run backwards. Without any
    time in the first megabyte hangs are not judged, and every verdict's time is 0.
    Raises Unavailable or NotALog where the file cannot be read.
    """
    blocks = _blocks(path)
    block = next(blocks, b"")
    first = next((at for _, at in stamps(block)), None)
    engine = Engine(rules, first or 0.0)
    verdicts: list[RuleVerdict] = []
    now, size = first, 0
    while block:
        size += len(block)
        if now is None:
            verdicts += engine.feed(block, 0.0)
        else:
            now = _timed(engine, block, now, verdicts)
        block = next(blocks, b"")
    return Replay(engine, tuple(verdicts), first, now, size)


def stamps(block: bytes) -> Iterator[tuple[int, float]]:
    """The offset and time of every line that carries a time (UTC where it names no zone)."""
    for match in STAMP.matches(block):
        try:
            at = iso_time((match.captured or b"").decode())
        except ValueError:
            continue
        yield match.at, (at.replace(tzinfo=UTC) if at.tzinfo is None else at).timestamp()


def _timed(engine: Engine, block: bytes, now: float, verdicts: list[RuleVerdict]) -> float:
    begin = 0
    for offset, at in stamps(block):
        if at <= now:
            continue
        if offset > begin:
            verdicts += engine.feed(block[begin:offset], now)
        # A line at the very moment a hang is due still comes in time.
        verdicts += engine.look(math.nextafter(at, 0.0))
        begin, now = offset, at
    verdicts += engine.feed(block[begin:], now)
    return now


def _blocks(path: Path) -> Iterator[bytes]:
    follower = Follower(path)
    try:
        if not path.exists():
            raise Unavailable(f"cannot read {path}: no such file", "name a job's log")
        done = False
        while not done:
            lines, done = follower.read()
            if lines:
                yield lines
        if lines := follower.finish():
            yield lines
    finally:
        follower.close()

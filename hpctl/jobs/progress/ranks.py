"""What is known of each rank, and which of them the others wait for. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpctl.core.model import NodeName
from hpctl.jobs.progress.notes import Note

MOST_RANKS = 1 << 16
MOST_NAMED = 8
"""Ranks that a sentence names one by one."""


@dataclass(slots=True)
class Rank:
    """One rank as it last told of itself. Times are the book's seconds."""

    rank: int
    at: float
    """When it was last heard."""
    node: NodeName | None = None
    pid: int | None = None
    gpu: str = ""
    step: int | None = None
    phase: str = ""
    phase_at: float = 0.0
    stepping: bool = False
    """A step was reported within its phase: the phase is not one without steps."""
    saving_at: float | None = None
    """Since when it saves."""
    stride: int = 0
    """Steps between its last two reports, where it had to leave some out; 0 where it did not."""

    def hear(self, note: Note, at: float) -> None:
        """Who it is; what it did is the book's business."""
        self.at = at
        self.node = note.node or self.node
        self.pid = note.pid or self.pid
        self.gpu = note.gpu or self.gpu

    def __str__(self) -> str:
        """`rank 3 on node-2 (GPU 5)`."""
        node = f" on {self.node}" if self.node else ""
        gpu = f" (GPU {self.gpu})" if self.gpu else ""
        return f"rank {self.rank}{node}{gpu}"


@dataclass(frozen=True, slots=True)
class Behind:
    """The ranks that the others wait for, and how that shows. Empty: the notes do not tell."""

    ranks: tuple[Rank, ...] = ()
    why: str = ""


def behind(ranks: Mapping[int, Rank], since: float, expected: int | None) -> Behind:
    """Who is behind: by step; else in another phase than most; else never heard.

    Only what was said after `since`, when the run last went back, is compared. A lag that may be
    a report left out by a rank that steps faster than it may tell is none.
    """
    fresh = [rank for rank in ranks.values() if rank.at >= since]
    stepped = [rank for rank in fresh if rank.step is not None]
    if len(stepped) > 1:
        front = max(_step(rank) for rank in stepped)
        lowest = min(stepped, key=_step)
        slack = max(rank.stride for rank in stepped)
        if _step(lowest) < front - slack:
            late = [rank for rank in stepped if rank.step == lowest.step]
            if 2 * len(late) <= len(stepped):
                there = f"at step {lowest.step}, the furthest at {front}"
                return Behind(tuple(late), f"{named(late)} {_is(late)} {there}")
    return _elsewhere(fresh) or _silent(ranks, expected)


def _elsewhere(fresh: list[Rank]) -> Behind | None:
    """Ranks in another phase than most, where few enough are."""
    phases = Counter(rank.phase for rank in fresh if rank.phase)
    if len(phases) < 2:
        return None
    most, times = phases.most_common(1)[0]
    others = [rank for rank in fresh if rank.phase and rank.phase != most]
    if len(others) >= times:
        return None
    where = ", ".join(sorted({rank.phase for rank in others})[:MOST_NAMED])
    return Behind(
        tuple(others), f"{named(others)} {_is(others)} in {where}, the other {times} in {most}"
    )


def _silent(ranks: Mapping[int, Rank], expected: int | None) -> Behind:
    """Ranks that never said anything, where most others do."""
    if expected is None or not len(ranks) < expected < 2 * len(ranks):
        return Behind()
    missing = [rank for rank in range(expected) if rank not in ranks][:MOST_NAMED]
    never = [Rank(rank, 0.0) for rank in missing]
    return Behind(tuple(never), f"{named(never)} never reported, {len(ranks)} others did")


def named(ranks: Iterable[Rank]) -> str:
    """The ranks in words, the first few of many."""
    found = sorted(ranks, key=lambda rank: rank.rank)
    text = ", ".join(str(rank) for rank in found[:MOST_NAMED])
    more = len(found) - MOST_NAMED
    return f"{text} and {more} more" if more > 0 else text


def _is(ranks: list[Rank]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _step(rank: Rank) -> int:
    assert rank.step is not None
    return rank.step

"""Circles among ranks that wait for each other.

Ranks that call their collectives in one order never wait in a circle: the rank that is at the
earliest collective waits for none that has not come. So a circle shows that the order differs.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

MOST_TRIED: Final = 64
"""Ranks that are tried as the one that is part of every circle."""


def find_circular_wait(waits: Mapping[int, frozenset[int]]) -> tuple[tuple[int, ...], int | None]:
    """Return the ranks that wait for each other in circles, in order, and the one of them that is
    part of every circle; None where several are, or none is. Both are empty without a circle.

    `waits` maps a rank to those that it waits for. Ranks that wait for the same others cost little
    more than one of them.
    """
    circle = _remove_ranks_outside_wait_cycles(waits, set(waits))
    if not circle:
        return (), None
    # Of two ranks that wait for the same others, neither is part of every circle: a circle through
    # one can go through the other instead.
    alike = Counter(waits[rank] for rank in circle)
    tried = [rank for rank in sorted(circle) if alike[waits[rank]] == 1][:MOST_TRIED]
    common = [
        rank for rank in tried if not _remove_ranks_outside_wait_cycles(waits, circle - {rank})
    ]
    return tuple(sorted(circle)), common[0] if len(common) == 1 else None


def _remove_ranks_outside_wait_cycles(
    waits: Mapping[int, frozenset[int]], ranks: Collection[int]
) -> set[int]:
    """Return those of some ranks that are in a circle of them, or between two circles: without
    those that wait for none of the rest, and those that none of the rest waits for."""
    left = set(ranks)
    while True:
        waited = {waits[rank] for rank in left}
        waiting = {others for others in waited if not others.isdisjoint(left)}
        needed: set[int] = set().union(*waiting)
        kept = {rank for rank in left & needed if waits[rank] in waiting}
        if len(kept) == len(left):
            return left
        left = kept

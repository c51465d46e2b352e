"""Circles among ranks that wait for each other.

Ranks that call their collectives in one order never wait in a circle: the rank that is at the
earliest collective waits for none that has not come. So a circle shows that the order differs.
"""

from collections.abc import Collection, Mapping


def find_circle(waits: Mapping[int, Collection[int]]) -> tuple[tuple[int, ...], int | None]:
    """Return the ranks that wait for each other in circles, in order, and the one of them that is
    part of every circle; None where several are, or none is. Both are empty without a circle.

    `waits` maps a rank to those that it waits for. Takes time in proportion to the edges for each
    rank of a circle.
    """
    circle = _strip(waits)
    if not circle:
        return (), None
    common = [rank for rank in sorted(circle) if not _strip(_without(circle, rank))]
    return tuple(sorted(circle)), common[0] if len(common) == 1 else None


def _without(waits: Mapping[int, Collection[int]], rank: int) -> dict[int, Collection[int]]:
    return {one: others for one, others in waits.items() if one != rank}


def _strip(waits: Mapping[int, Collection[int]]) -> dict[int, set[int]]:
    """Return the waits without the ranks that are in no circle: those that wait for none that
    waits, and those that none that waits waits for."""
    left = {rank: set(others) & waits.keys() for rank, others in waits.items()}
    while True:
        needed = set().union(*left.values())
        kept = {rank for rank, others in left.items() if others and rank in needed}
        if len(kept) == len(left):
            return left
        left = {rank: left[rank] & kept for rank in kept}

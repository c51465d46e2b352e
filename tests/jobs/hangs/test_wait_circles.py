"""Circles among ranks that wait for each other, and the one rank that is part of each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctl.jobs.hangs.wait_circles import find_circular_wait


@pytest.mark.parametrize(
    ("waits", "circle", "common"),
    [
        ({}, (), None),
        ({1: {0}, 2: {1}}, (), None),
        ({0: {1}, 1: {0}}, (0, 1), None),
        ({0: {1, 2, 3}, 1: {0}, 2: {0}, 3: {2}}, (0, 1, 2, 3), 0),
        ({0: {1}, 1: {0}, 2: {3}, 3: {2}}, (0, 1, 2, 3), None),
        ({0: {1}, 1: {0}, 5: {0}, 6: set()}, (0, 1), None),
        ({0: {1, 2}, 1: {0}, 2: {0}}, (0, 1, 2), 0),
    ],
)
def test_the_rank_of_every_circle_is_named(
    waits: dict[int, set[int]], circle: tuple[int, ...], common: int | None
) -> None:
    fixed = {rank: frozenset(others) for rank, others in waits.items()}
    assert find_circular_wait(fixed) == (circle, common)


@given(st.dictionaries(st.integers(0, 6), st.integers(0, 9)))
def test_ranks_that_call_in_one_order_wait_in_no_circle(places: dict[int, int]) -> None:
    """Each rank is at a place of one order of collectives, and waits for those behind it."""
    waits = {
        rank: frozenset(other for other, behind in places.items() if behind < place)
        for rank, place in places.items()
    }
    assert find_circular_wait(waits) == ((), None)


def find_common_slowly(waits: dict[int, frozenset[int]]) -> int | None:
    """Return the rank that is part of every circle, by all paths from each rank."""

    def has_circle(left: set[int]) -> bool:
        for first in left:
            reached: set[int] = set()
            todo = [first]
            while todo:
                others = waits[todo.pop()] & left
                todo += others - reached
                reached |= others
            if first in reached:
                return True
        return False

    ranks = set(waits)
    if not has_circle(ranks):
        return None
    common = [rank for rank in ranks if not has_circle(ranks - {rank})]
    return common[0] if len(common) == 1 else None


@given(st.dictionaries(st.integers(0, 6), st.frozensets(st.integers(0, 6), max_size=3)))
def test_the_rank_of_every_circle_is_the_one_that_all_paths_show(
    waits: dict[int, frozenset[int]],
) -> None:
    others = {rank: waited - {rank} for rank, waited in waits.items()}
    assert find_circular_wait(others)[1] == find_common_slowly(others)


def test_two_groups_of_thousands_that_wait_for_each_other_take_no_time() -> None:
    half = 8192
    first, second = frozenset(range(half)), frozenset(range(half, 2 * half))
    waits = dict.fromkeys(first, second) | dict.fromkeys(second, first)
    circle, common = find_circular_wait(waits)
    assert len(circle) == 2 * half
    assert common is None

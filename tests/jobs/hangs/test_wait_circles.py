"""Circles among ranks that wait for each other, and the one rank that is part of each."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctl.jobs.hangs.wait_circles import find_circle


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
def test_the_rank_of_every_circle_is_named(waits, circle, common) -> None:
    assert find_circle(waits) == (circle, common)


@given(st.dictionaries(st.integers(0, 6), st.integers(0, 9)))
def test_ranks_that_call_in_one_order_wait_in_no_circle(places: dict[int, int]) -> None:
    """Each rank is at a place of one order of collectives, and waits for those behind it."""
    waits = {
        rank: {other for other, behind in places.items() if behind < place}
        for rank, place in places.items()
    }
    assert find_circle(waits) == ((), None)

"""Pauses of random length."""

import random

from hpctl.toolkit.jitter import pick_random_pause_seconds


def test_a_pause_is_between_its_bounds_and_differs() -> None:
    found = {pick_random_pause_seconds(0.5, 1.5) for _ in range(100)}
    assert 0.5 <= min(found) <= max(found) <= 1.5
    assert len(found) > 50


def test_a_pause_leaves_the_generator_of_others_as_it_is() -> None:
    """A thread that still retries must not disturb a test whose generator is seeded."""
    before = random.getstate()
    pick_random_pause_seconds(0.0, 1.0)
    assert random.getstate() == before

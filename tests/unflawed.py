"""What a fan-out made, where nothing may be flawed."""

from collections.abc import Sequence
from typing import TypeVar

from hpctl.vocabulary.isolation import ItemProcessingFailure

T = TypeVar("T")


def unflawed(answer: tuple[T, Sequence[ItemProcessingFailure]]) -> T:
    """The first part of (made, flaws)."""
    made, flaws = answer
    assert not flaws
    return made

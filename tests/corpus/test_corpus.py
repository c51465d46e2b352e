"""The bar: no benign case causes a node action, and every fault gets its remedy."""

from collections import Counter

import pytest

from tests.corpus.case import Case, load
from tests.corpus.play import Player
from tests.corpus.score import Result

CASES = load()


@pytest.fixture(scope="module")
def player() -> Player:
    return Player()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(player: Player, case: Case) -> None:
    result = Result(case, player.verdict(case))
    assert result.right, f"expected {case.expect}, got {result.told}"


def test_every_case_has_a_name_of_its_own_and_a_source() -> None:
    names = Counter(case.name for case in CASES)
    assert [name for name, count in names.items() if count > 1] == []
    assert all(case.source for case in CASES)

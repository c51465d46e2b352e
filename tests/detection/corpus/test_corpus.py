"""The bar: no benign case causes a node action, and every fault gets its remedy in time."""

from collections import Counter

import pytest

from hpctl.vocabulary.assessment import NodeCondition
from tests.detection.corpus.case import Case, load
from tests.detection.corpus.play import Player, acts

pytestmark = pytest.mark.integration

CASES = load()
WITHIN_S = {"gpu-driver-hang": 30}
"""From the fault to a verdict, of classes for which that is promised; kernel lines within 10 s."""


@pytest.fixture(scope="module")
def player() -> Player:
    return Player()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(player: Player, case: Case) -> None:
    played = player.verdict(case)
    verdict, fault = played.verdict, played.verdict.fault
    if isinstance(case.expect, str):
        assert not acts(verdict), verdict
        assert case.expect != "suspect" or verdict.condition is NodeCondition.SUSPECT, verdict
        return
    assert acts(verdict), verdict
    assert (fault.urgency, fault.ladder[0]) == (case.expect.urgency, case.expect.remedy), verdict
    assert case.expect.rule in ("", fault.rule)
    within_s = WITHIN_S.get(case.kind, 10 if case.kernel else None)
    assert within_s is None or (played.delay_s or 0.0) <= within_s


def test_every_case_has_its_own_name_and_a_source() -> None:
    names = Counter(case.name for case in CASES)
    assert [name for name, count in names.items() if count > 1] == []
    assert all(case.source for case in CASES)

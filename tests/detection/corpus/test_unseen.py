"""The bars of `hpctl agent triage` on kernel lines that were labeled before hpctl read them."""

import pytest

from tests.detection.corpus.unseen import SETS, figures, hpctl, load

SEEN = {"seventh": 0.94}
"""The bar of what is told of, where it is lower: a line of another program's log, or of kernels
before 4.0, is none that hpctl reads."""

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_judged_as_it_is_labeled(name: str) -> None:
    found = figures(load(name), hpctl)
    assert found.benign_acted == 0, found.wrong
    assert found.acts_right >= 0.99, found.wrong
    assert found.act_recall >= 0.98, found.wrong
    assert found.seen >= SEEN.get(name, 0.98), found.wrong

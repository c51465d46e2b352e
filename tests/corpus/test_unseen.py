"""The bars of `hpctl triage` on kernel lines that were labeled before hpctl read them."""

from __future__ import annotations

import pytest

from tests.corpus.unseen import SETS, Said, figures, hpctl, load
from tests.unit.kernel_cases import BENIGN, CASES


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_judged_as_it_is_labeled(name: str) -> None:
    found = figures(load(name), hpctl)
    assert found.benign_acted == 0
    assert found.acts_right >= 0.99
    assert found.act_recall >= 0.98
    assert found.seen >= 0.98


def test_the_sets_are_large_and_hold_little_twice() -> None:
    texts = [case.text for name in SETS for case in load(name)]
    assert len(texts) >= 1000
    assert len(texts) - len(set(texts)) <= 20


def test_the_last_set_is_in_no_list_of_ours() -> None:
    ours = {case[0] for case in CASES} | set(BENIGN)
    same = [case.text for case in load(SETS[-1]) if case.text in ours]
    assert len(same) <= 5, "a line without a name or number in it has one spelling"


def test_figures_are_counted_as_the_bars_mean_them() -> None:
    """Who acts on everything is right about some acts, and tells of every fault."""
    cases = load(SETS[0])
    zealous = figures(cases, lambda _: Said(True, "reboot"))
    assert zealous.benign_acted == sum(case.label == "none" for case in cases)
    assert zealous.act_recall == zealous.seen == zealous.benign_told == 1.0
    assert zealous.acts_right == sum("reboot" in c.remedies for c in cases) / len(cases)
    idle = figures(cases, lambda _: Said(False))
    assert (idle.benign_acted, idle.acts, idle.act_recall, idle.seen) == (0, 0, 0.0, 0.0)

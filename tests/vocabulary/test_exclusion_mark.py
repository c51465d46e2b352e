"""The mark of what hpctl excludes, among what others write into the AdminComment."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctl.vocabulary.exclusion_mark import LONGEST, format_exclusion_comment, parse_excluded_nodes
from tests.examples import examples

NODES = st.lists(st.sampled_from([f"n{i}" for i in range(1, 9)]), max_size=4, unique=True)


@pytest.mark.parametrize("others", ["", "site note", "a=1 | b=2", '{"cost": 3}'])
def test_others_words_stay_whatever_the_mark_does(others: str) -> None:
    text = format_exclusion_comment(others, ["n2", "n1"])
    assert text is not None
    assert parse_excluded_nodes(text) == ("n1", "n2")
    again = format_exclusion_comment(text, ["n3"])
    assert again is not None
    assert parse_excluded_nodes(again) == ("n3",)
    assert format_exclusion_comment(again, []) == others


@settings(max_examples=examples(50))
@given(st.text(max_size=80), NODES, NODES)
def test_any_text_is_read_and_the_last_mark_counts(others: str, first, second) -> None:
    parse_excluded_nodes(others)
    text = format_exclusion_comment(others, first)
    assert text is not None
    assert set(parse_excluded_nodes(format_exclusion_comment(text, second) or "")) == set(second)


@pytest.mark.parametrize("text", ["hpctl:excluded=n[1-", "xhpctl:excluded=n1", "hpctl:excluded="])
def test_what_is_no_mark_names_no_node(text: str) -> None:
    assert parse_excluded_nodes(text) == ()


def test_a_text_that_slurmctld_would_refuse_is_not_written() -> None:
    assert format_exclusion_comment("x" * LONGEST, ["n1"]) is None

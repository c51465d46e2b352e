"""The pages that come from tables in the code say what the code says."""

from docs.generate import TABLES, stale


def test_generated_pages_are_fresh() -> None:
    assert TABLES
    assert stale() == [], "run `make docs`"

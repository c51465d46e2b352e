"""Each test of the repertoire has a row on its page."""

import pytest

from docgen.repertoire import page
from tests.repertoire.stories import read_chapters


def test_each_test_is_a_row_of_the_page() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| ")]
    chapters = read_chapters()
    headings = len(chapters)
    assert len(rows) == headings + sum(len(chapter.stories) for chapter in chapters)


def test_a_test_without_a_row_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.repertoire import test_arrays

    monkeypatch.setattr(test_arrays, "test_more", lambda: None, raising=False)
    with pytest.raises(ValueError, match=r"test_arrays\.test_more has no row"):
        read_chapters()

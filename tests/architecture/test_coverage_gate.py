"""The gate of `make coverage`: which files it is about, and the badge that it writes."""

import xml.etree.ElementTree as ET

import pytest
from coverage import Coverage

from tests.architecture.source import ROOT, python_files
from tests.architecture.test_purity import list_pure
from tools.coverage_badge import LABEL, draw_badge

SETTINGS = Coverage(config_file=str(ROOT / "pyproject.toml"))
INCLUDED = SETTINGS.get_option("report:include")
CORE = {
    "hpctl/engine/plan.py", "hpctl/engine/gates.py", "hpctl/engine/advance.py",
    "hpctl/engine/view.py", "hpctl/engine/journal/state.py", "hpctl/jobs/decide.py",
    "hpctl/jobs/verdict.py",
}  # fmt: skip
"""What the gate may never leave out."""


def list_included() -> set[str]:
    assert isinstance(INCLUDED, list)
    return set(INCLUDED)


def test_the_gate_asks_for_all_branches_of_files_that_exist() -> None:
    assert SETTINGS.get_option("report:fail_under") == 100
    assert list_included() >= CORE
    files = {str(path) for path in python_files("hpctl")}
    assert list_included() - files == set(), "a place that has moved"


def test_what_the_gate_is_about_decides_from_its_arguments() -> None:
    """What is not pure is measured by its own room's tests, with the world that it needs."""
    assert list_included() - set(list_pure()) == set()


@pytest.mark.parametrize(
    ("covered", "number", "shown"), [(7, 7, "100 %"), (1999, 2000, "99 %"), (0, 7, "0 %")]
)
def test_a_badge_shows_a_share_that_is_never_rounded_up(
    covered: int, number: int, shown: str
) -> None:
    drawn = ET.fromstring(draw_badge(covered, number))
    assert drawn.attrib["aria-label"] == f"{LABEL}: {shown}"


def test_nothing_measured_is_no_badge() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        draw_badge(0, 0)


def test_the_badge_of_the_tree_is_a_badge() -> None:
    drawn = ET.fromstring((ROOT / "docs/coverage.svg").read_text())
    assert drawn.attrib["aria-label"].startswith(f"{LABEL}: ")

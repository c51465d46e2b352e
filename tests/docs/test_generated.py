"""The pages that come from tables in the code say what the code says."""

import re

import pytest

from docgen.generate import PAGES, TABLES, find_stale_pages
from hpctl.engine.gates import GATES
from hpctl.engine.remedies import REMEDY_GATES


def test_generated_pages_are_fresh() -> None:
    assert TABLES
    assert find_stale_pages() == [], "run `make docs`"


def test_troubleshooting_names_every_gate() -> None:
    page = (PAGES / "troubleshooting.md").read_text(encoding="utf-8")
    section = page.partition("## A node is sick")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert named == {gate.name for gate in (*GATES, *REMEDY_GATES)}


@pytest.mark.parametrize("page", sorted(PAGES.rglob("*.md")), ids=lambda path: path.name)
def test_files_that_a_page_names_are_there(page):
    root = PAGES.parent
    roots = "hpctl|docgen|tests|examples|slurm_plugins|lifecycle_scripts|benchmarks"
    named = re.findall(rf"`((?:{roots})/[\w/.-]*)`", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (root / path).exists()] == []

"""Links in the documentation lead somewhere, and the targets of `make` that it names exist."""

import re
from pathlib import Path

import pytest

from tests.architecture.source import ROOT, text, tracked

PAGES = [path for path in tracked() if path.suffix == ".md"]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
MAKE = re.compile(r"`make ([a-z-]+)")


def prose(path: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", text(path), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchors that a page's headings get."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(path), flags=re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def dead(page: Path, target: str) -> bool:
    name, _, anchor = target.partition("#")
    file = (ROOT / page.parent / name).resolve() if name else ROOT / page
    if not file.exists():
        return True
    return bool(anchor) and file.suffix == ".md" and anchor not in anchors(file.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_inside_the_project_resolve(page: Path) -> None:
    targets = [first or second for first, second in LINK.findall(prose(page))]
    local = [t for t in targets if not re.match(r"[a-z][a-z0-9+.-]*:", t)]
    assert [target for target in local if dead(page, target)] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_make_targets_that_are_named_exist(page: Path) -> None:
    rules = set(re.findall(r"^([a-z-]+):", text(Path("Makefile")), flags=re.MULTILINE))
    assert set(MAKE.findall(text(page))) - rules == set()

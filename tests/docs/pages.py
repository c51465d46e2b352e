"""The tables of docs/, read."""

from tests.architecture.source import ROOT


def read_rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of a section's table, without its head. `heading`: how the section's title
    begins."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]

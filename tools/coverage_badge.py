"""Write the badge of branch coverage: `make coverage` calls it after the tests.

The figure is that of all code that decides from its arguments alone (`PURE` in
`tests/architecture/test_purity.py`). The gate, `[tool.coverage.report]` of pyproject.toml, is about
those of its files that have reached 100 %.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from coverage import Coverage

from tests.architecture.test_purity import list_pure

LABEL = "branches of what decides"
GOOD, BAD = "#2e7d32", "#c62828"
CHARACTER = 7
"""Pixels of a character, about, at 11 px."""

TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{label}: {text}">
<title>{label}: {text}</title>
<rect width="{left}" height="20" fill="#555"/>
<rect x="{left}" width="{right}" height="20" fill="{color}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{left_middle}" y="14">{label}</text>
<text x="{right_middle}" y="14">{text}</text>
</g>
</svg>
"""  # noqa: E501 -- the first element of the file


def read_totals() -> dict[str, int]:
    """Return coverage.py's totals of all code that decides."""
    measured = Coverage()
    measured.load()
    with tempfile.TemporaryDirectory() as room:
        path = Path(room) / "coverage.json"
        measured.json_report(outfile=str(path), include=list_pure())
        totals: dict[str, int] = json.loads(path.read_text())["totals"]
    return totals


def format_share(covered: int, number: int) -> str:
    """Return a share in whole percent, rounded down. Raises ValueError for a share of nothing."""
    if number == 0:
        raise ValueError("nothing was measured")
    return f"{100 * covered // number} %"


def draw_badge(covered: int, number: int) -> str:
    """Return the badge as SVG."""
    text = format_share(covered, number)
    left, right = (CHARACTER * len(words) + 10 for words in (LABEL, text))
    return TEMPLATE.format(
        label=LABEL,
        text=text,
        width=left + right,
        left=left,
        right=right,
        left_middle=left / 2,
        right_middle=left + right / 2,
        color=GOOD if covered == number else BAD,
    )


def main() -> int:
    """Write the badge to the path that the command line names."""
    parser = argparse.ArgumentParser(prog="tools/coverage_badge.py", description=__doc__)
    parser.add_argument("path", type=Path)
    options = parser.parse_args()
    totals = read_totals()
    options.path.write_text(draw_badge(totals["covered_branches"], totals["num_branches"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

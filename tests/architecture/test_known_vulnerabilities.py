"""No requirement allows a version with a vulnerability that is known.

The list is kept by hand, because an audit needs its database: run `pip-audit` before a release and
add what it finds (docs/development.md).
"""

import re
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]

FIXED = {
    "jinja2": ("3.1.6", "CVE-2025-27516: a template reaches str.format by the attr filter"),
    "pymysql": ("1.1.1", "CVE-2024-36039: keys of JSON are not escaped"),
    "starlette": ("0.49.1", "CVE-2025-62727: a Range header takes quadratic time"),
    "urllib3": ("2.6.3", "CVE-2026-21441: a redirect's body is decompressed without a bound"),
}
"""By package: the first release without any known vulnerability, and what the last one was."""


def list_floors(name: str) -> list[Version]:
    """Return the lowest version that each requirement of a package allows, 0 where it names none.

    Read without a reader of TOML, which Python 3.10 does not have.
    """
    text = (ROOT / "pyproject.toml").read_text()
    found = re.findall(rf'"{name}(?:\[[^]]*\])?((?:[<>=!~][^";]*)?)[";]', text, re.IGNORECASE)
    return [find_least_version(specifiers) for specifiers in found]


def find_least_version(specifiers: str) -> Version:
    """Return the lowest version that `>=1.2,<3` or `==1.2` allows."""
    floors = re.findall(r"[>=]=([\w.!]+)", specifiers)
    return max((Version(floor) for floor in floors), default=Version("0"))


@pytest.mark.parametrize("name", FIXED)
def test_no_requirement_allows_a_vulnerable_version(name):
    fixed, why = FIXED[name]
    floors = list_floors(name)
    assert floors, f"{name} is no requirement any more: take it off the list"
    assert min(floors) >= Version(fixed), why


def test_each_row_names_a_vulnerability():
    for _, why in FIXED.values():
        assert re.match(r"(CVE-\d{4}-\d+|GHSA-[\w-]+): \w", why)

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
    "apprise": ("0.9.5.1", "CVE-2021-39229: a regular expression of a sink takes exponential time"),
    "cryptography": ("50.0.0", "CVE-2026-69247: decryption of PKCS#7 tells padding errors apart"),
    "jinja2": ("3.1.6", "CVE-2025-27516: a template reaches str.format by the attr filter"),
    "PyMySQL": ("1.1.1", "CVE-2024-36039: keys of JSON are not escaped"),
    "PyYAML": ("5.4", "CVE-2020-14343: the full loader runs what a file names"),
    "SQLAlchemy": ("1.3.0", "CVE-2019-7548: group_by takes SQL"),
    "starlette": ("1.3.1", "CVE-2026-54283: the limits of a form are ignored"),
    "urllib3": ("2.7.0", "CVE-2026-44432: a body is decompressed without a bound"),
    "uvicorn": ("0.11.7", "CVE-2020-7695: a header's value may hold a line break"),
}
"""By package: the first release without any known vulnerability, and what the last one was."""

UNAFFECTED = {
    "backports.zstd", "boto3", "click", "google-re2", "httptools", "itsdangerous", "msgspec",
    "nvidia-ml-py", "packaging", "prometheus-client", "psycopg", "py-spy", "rich", "tenacity",
    "xxhash",
}  # fmt: skip
"""Packages of which no release that their requirement allows has a known vulnerability."""

RUNTIME_EXTRAS = ("postgresql", "mariadb", "notify", "stacks")
"""What `hpctl[...]` adds on a head or a compute node; the other extras are of tests and tools."""


def read_project_table() -> str:
    """Return pyproject.toml up to the settings of tools, which name packages for their own ends."""
    return (ROOT / "pyproject.toml").read_text().partition("\n[tool.")[0]


def list_floors(name: str) -> list[Version]:
    """Return the lowest version that each requirement of a package allows, 0 where it names none.

    Read without a reader of TOML, which Python 3.10 does not have.
    """
    text = read_project_table()
    found = re.findall(rf'"{name}(?:\[[^]]*\])?((?:[<>=!~][^";]*)?)[";]', text, re.IGNORECASE)
    return [find_least_version(specifiers) for specifiers in found]


def list_runtime_packages() -> set[str]:
    """Return the names of what hpctl and its runtime extras require, as pyproject.toml has them."""
    text = read_project_table()
    lists = [
        re.search(rf"^{name} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
        for name in ("dependencies", *RUNTIME_EXTRAS)
    ]
    lines = "\n".join(found[1] for found in lists if found)
    return set(re.findall(r'^\s*"([\w.-]+)', lines, re.MULTILINE))


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


def test_each_runtime_dependency_is_reviewed():
    """One that is new is looked up, and gets a row or a place among those without one."""
    assert list_runtime_packages() == FIXED.keys() | UNAFFECTED


def test_each_row_names_a_vulnerability():
    for _, why in FIXED.values():
        assert re.match(r"(CVE-\d{4}-\d+|GHSA-[\w-]+): \w", why)

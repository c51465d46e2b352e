"""Each row of the threat table names a test that exists."""

import ast
import re

import pytest

from tests.architecture.source import ROOT

TABLE = (ROOT / "SECURITY.md").read_text().partition("## Threats")[2]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ")][1:]


def functions_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}


def test_the_table_has_every_column() -> None:
    assert len(ROWS) > 20
    assert [row for row in ROWS if row.count("|") != 6] == []


@pytest.mark.parametrize("row", ROWS)
def test_a_row_names_a_test(row: str) -> None:
    named = re.fullmatch(r"`([\w/]+\.py)(?:::(\w+)(?:\[(.+)\])?)?`", row.split("|")[5].strip())
    assert named, row
    path, function, case = named.groups()
    assert (ROOT / path).is_file(), path
    if function:
        assert function in functions_in(path)
    if case:
        assert f'"{case}"' in (ROOT / path).read_text()

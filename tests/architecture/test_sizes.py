"""Small modules, small functions: what a reader can hold in their head."""

import ast
import statistics
from pathlib import Path

from tests.architecture.source import python_files, text, tree

MODULE_LINES = 700
MEDIAN_LINES = 150
FUNCTION_LINES = 50

# Tables may be long: they are looked up, not read. Each needs a reason.
TABLES = {
    Path("hpctl/core/catalogue_data.py"): "one row for each Xid and SXid code",
    Path("hpctl/jobs/crash_patterns.py"): "one row for each wording of a death",
}


def lines(path: Path) -> int:
    return len(text(path).splitlines())


def test_no_module_is_over_700_lines_unless_it_is_a_table() -> None:
    long = {p: lines(p) for p in python_files() if lines(p) > MODULE_LINES and p not in TABLES}
    assert not long


def test_every_exempted_table_is_still_there() -> None:
    assert [path for path in TABLES if path not in python_files()] == []


def test_the_median_module_is_under_150_lines() -> None:
    sizes = [lines(p) for p in python_files("hpctl") if p.name != "__init__.py"]
    assert statistics.median(sizes) <= MEDIAN_LINES


def test_no_function_is_over_50_lines() -> None:
    long = {
        f"{path}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for path in python_files()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES
    }
    assert not long

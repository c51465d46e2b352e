"""One concept a module, small functions: what a reader can hold in their head."""

import ast

from tests.architecture.source import python_files, text, tree

MODULE_LINES = 700
FUNCTION_LINES = 50


def lines(path):
    return len(text(path).splitlines())


def test_no_module_is_over_700_lines() -> None:
    long = {p: lines(p) for p in python_files() if lines(p) > MODULE_LINES}
    assert not long


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

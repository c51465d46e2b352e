"""The core decides from its arguments alone: no clock, no I/O, no logging, no randomness."""

import ast

from tests.architecture.source import imports, python_files, tree

BANNED_MODULES = {
    "asyncio",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "shutil",
    "signal",
    "socket",
    "sqlite3",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "urllib",
    "uuid",
}
BANNED_CALLS = {
    "__import__",
    "date.today",
    "datetime.now",
    "datetime.today",
    "datetime.utcnow",
    "eval",
    "exec",
    "hash",
    "input",
    "open",
    "print",
}


def called(node: ast.Call) -> str:
    """The last one or two parts of the name that is called: `datetime.now`, `open`."""
    return ".".join(ast.unparse(node.func).split(".")[-2:])


def test_the_core_imports_no_door_to_the_world() -> None:
    found = [
        f"{path}:{line} {name}"
        for path in python_files("hpctl/core")
        for line, name in imports(path)
        if name.split(".")[0] in BANNED_MODULES
    ]
    assert found == []


def test_the_core_calls_neither_clock_nor_files() -> None:
    found = [
        f"{path}:{node.lineno} {called(node)}"
        for path in python_files("hpctl/core")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and called(node) in BANNED_CALLS
    ]
    assert found == []


def test_the_core_keeps_nothing_between_calls() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path in python_files("hpctl/core")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Global | ast.Nonlocal)
    ]
    assert found == []

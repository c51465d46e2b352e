"""The core decides from its arguments alone: no clock, no I/O, no logging, no randomness."""

import ast

from tests.architecture.source import imports, python_files, tree

BANNED_MODULES = {
    "asyncio", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "select", "shutil", "signal", "socket", "sqlite3", "subprocess", "sys", "tempfile",
    "threading", "time", "urllib", "uuid",
}  # fmt: skip
BANNED_CALLS = {
    "__import__", "date.today", "datetime.now", "datetime.today", "datetime.utcnow", "eval",
    "exec", "hash", "input", "open", "print",
}  # fmt: skip


def called(node: ast.Call) -> str:
    """The last one or two parts of the name that is called: `datetime.now`, `open`."""
    return ".".join(ast.unparse(node.func).split(".")[-2:])


def test_the_core_opens_no_door_to_the_world_and_keeps_nothing_between_calls() -> None:
    files = python_files("hpctl/core")
    found = [
        f"{path}:{line} {name}"
        for path in files
        for line, name in imports(path)
        if name.split(".")[0] in BANNED_MODULES
    ]
    found += [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path in files
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Global | ast.Nonlocal)
        or (isinstance(node, ast.Call) and called(node) in BANNED_CALLS)
    ]
    assert found == []

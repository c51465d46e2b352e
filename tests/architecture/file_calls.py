"""Finds where code names files by paths, and which modules the daemon and the agent load."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import python_files, tree
from tests.architecture.test_late_imports import is_for_types, list_imported, name_module

PATH_METHODS = frozenset(
    {
        "open", "read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob", "rglob",
        "stat", "lstat", "unlink", "rename", "exists", "is_file", "is_dir", "mkdir", "chmod",
        "rmdir", "symlink_to", "hardlink_to", "readlink", "samefile",
    }
)  # fmt: skip
"""Methods of pathlib.Path. `replace` counts with one argument, which a text's never has."""
OS_FUNCTIONS = frozenset(
    {
        "open", "scandir", "listdir", "stat", "lstat", "unlink", "remove", "rename", "replace",
        "walk", "chmod", "chown", "lchown", "mkdir", "makedirs", "link", "symlink", "rmdir",
        "mkfifo", "mknod", "readlink", "utime", "truncate", "access", "statvfs", "removedirs",
        "renames",
    }
)  # fmt: skip
MODULES_OF_FILES = frozenset({"shutil", "tempfile", "glob"})
NO_FILES = frozenset({"which"})
"""Functions of those modules that open nothing."""


class FileCall(ast.NodeVisitor):
    """Collects the calls of one file, each with the function that it is in."""

    def __init__(self) -> None:
        self._within: list[str] = []
        self.found: list[tuple[str, str, int]] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._enter(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._enter(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._enter(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = name_file_call(node)
        if name:
            self.found.append((".".join(self._within), name, node.lineno))
        self.generic_visit(node)

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._within.append(node.name)
        self.generic_visit(node)
        self._within.pop()


def name_file_call(node: ast.Call) -> str:
    """Return what of a call names a file by its path; empty where nothing does."""
    function = node.func
    if isinstance(function, ast.Name):
        return "open" if function.id == "open" else ""
    if not isinstance(function, ast.Attribute):
        return ""
    name, owner = function.attr, ast.unparse(function.value)
    if owner in ("os", "os.path"):
        return f"os.{name}" if name in OS_FUNCTIONS | PATH_METHODS else ""
    if owner in MODULES_OF_FILES:
        return "" if name in NO_FILES else f"{owner}.{name}"
    if name == "replace":
        return name if len(node.args) == 1 and not node.keywords else ""
    return name if name in PATH_METHODS else ""


def list_file_calls(path: Path) -> list[tuple[str, str, int]]:
    """Return function, call and line of each call in a file that names another by its path."""
    calls = FileCall()
    calls.visit(tree(path))
    return calls.found


@functools.cache
def list_modules() -> dict[str, Path]:
    return {name_module(path): path for path in python_files("hpctl")}


def find_imported(path: Path) -> Iterator[str]:
    """Yield hpctl's modules that a file imports at any depth, but for types."""
    todo: list[ast.AST] = [tree(path)]
    while todo:
        node = todo.pop()
        if not is_for_types(node):
            yield from list_imported(node)
            todo.extend(ast.iter_child_nodes(node))


def is_within(name: str, rooms: frozenset[str]) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def find_loaded(roots: list[str], leave_out: frozenset[str]) -> set[Path]:
    """Return the files of these modules and of all that they import, but for rooms left out."""
    modules = list_modules()
    loaded: set[str] = set()
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name in loaded or name not in modules or is_within(name, leave_out):
            continue
        loaded.add(name)
        todo.extend(find_imported(modules[name]))
        todo.append(name.rpartition(".")[0])
    return {modules[name] for name in loaded}

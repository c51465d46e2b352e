#!/usr/bin/env python3
"""Prove that a move changed no statement: the syntax trees before and after are the same.

    python3 tools/move/prove_move.py BEFORE [AFTER]

Compares two commits (AFTER: HEAD). Every top-level statement of every Python file of the packages
is reduced to its syntax tree, without imports, without the names of modules, and without dotted
names and paths of the project in strings; then the two collections must be equal. Prints what was
added and removed, and exits with 1 where that is anything.
"""

import ast
import re
import subprocess
import sys
from collections import Counter

PACKAGES = ("hpctl", "tests", "docgen", "benchmarks")
OURS = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:[./]\w[\w-]*)+(?:\.\w+)?")
DEPTH = re.compile(r"parents\[\d\]")


def read_files(commit: str) -> dict[str, str]:
    """Return the Python files of the packages at a commit, by path."""
    listing = subprocess.run(
        ["git", "ls-tree", "-r", "--name-only", commit, "--", *PACKAGES],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    paths = [path for path in listing if path.endswith(".py")]
    found = {}
    for path in paths:
        shown = subprocess.run(
            ["git", "show", f"{commit}:{path}"], capture_output=True, text=True, check=True
        )
        found[path] = shown.stdout
    return found


def module_name(path: str) -> str:
    """Return the module name of a path."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def binds_variable(function: ast.FunctionDef, name: str) -> bool:
    """Whether a function has a parameter or a variable of that name, other than by an import."""
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and node.arg == name:
            return True
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
    return False


class Reducer(ast.NodeTransformer):
    """Takes the names of our modules out of a syntax tree."""

    def __init__(self, tree: ast.Module, modules: set[str]) -> None:
        self.aliases: set[str] = set()
        self.renamed: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
                for alias in node.names:
                    local = alias.asname or alias.name
                    if f"{node.module}.{alias.name}" in modules:
                        self.aliases.add(local)
                    elif alias.asname:
                        self.renamed[local] = alias.name
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] in PACKAGES:
                        self.aliases.add(alias.asname or alias.name.split(".")[0])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Reduce a function; a local variable of a module's name is no module."""
        kept = self.aliases
        self.aliases = {name for name in kept if not binds_variable(node, name)}
        self.generic_visit(node)
        self.aliases = kept
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Reduce `module.NAME` to NAME."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "<module>":
            return ast.copy_location(ast.Name(node.attr, node.ctx), node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """Reduce a module to one name for all, and an import's alias to what it stands for."""
        if node.id in self.aliases:
            return ast.copy_location(ast.Name("<module>", node.ctx), node)
        return ast.copy_location(ast.Name(self.renamed.get(node.id, node.id), node.ctx), node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Reduce dotted names and paths of ours in strings."""
        if isinstance(node.value, str):
            text = " ".join(OURS.sub("<ours>", node.value).split())
            return ast.copy_location(ast.Constant(text), node)
        if isinstance(node.value, bytes):
            text = OURS.sub("<ours>", node.value.decode("latin-1"))
            return ast.copy_location(ast.Constant(text), node)
        return node

    def visit_Import(self, _: ast.Import) -> None:
        """Drop an import."""

    def visit_ImportFrom(self, _: ast.ImportFrom) -> None:
        """Drop an import."""


def reduce_file(text: str, modules: set[str]) -> Counter[str]:
    """Return the reduced top-level statements of a file."""
    tree = ast.parse(text)
    reducer = Reducer(tree, modules)
    body = tree.body
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    found: Counter[str] = Counter()
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
            continue
        reduced = reducer.read_node_and_list_children(statement)
        for node in ast.walk(reduced):
            for name in ("body", "orelse", "finalbody"):
                if getattr(node, name, None) == [] and name == "body":
                    node.body = [ast.Pass()]
        dumped = DEPTH.sub("parents[]", ast.unparse(ast.fix_missing_locations(reduced)))
        if dumped != "log = logging.getLogger(__name__)":
            found[dumped] += 1
    return found


def reduce_commit(commit: str) -> Counter[str]:
    """Return the reduced statements of a commit."""
    files = read_files(commit)
    modules = {module_name(path) for path in files}
    modules |= {name.rpartition(".")[0] for name in modules if "." in name}
    total: Counter[str] = Counter()
    for text in files.values():
        total += reduce_file(text, modules)
    return total


def main() -> int:
    """Compare. Returns the exit code."""
    before = reduce_commit(sys.argv[1])
    after = reduce_commit(sys.argv[2] if len(sys.argv) > 2 else "HEAD")
    for sign, found in (("-", before - after), ("+", after - before)):
        for text, count in sorted(found.items()):
            lines = text.splitlines()
            print(sign, f"({count})" if count > 1 else "", "\n  ".join(lines[:12]))
    same = sum((before & after).values())
    gone, new = (before - after).total(), (after - before).total()
    print(f"{same} statements are the same, {gone} gone, {new} new")
    return int(before != after)


if __name__ == "__main__":
    sys.exit(main())

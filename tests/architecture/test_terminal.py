"""What others wrote reaches a terminal by `hpctl.toolkit.output`, or cleaned by `make_printable`,
alone."""

import ast
from collections import Counter
from pathlib import Path

from tests.architecture.source import python_files, tree

OUTPUT = Path("hpctl/toolkit/output.py")
PRINTS = {"echo", "secho", "echo_via_pager", "confirm", "prompt", "pause", "progressbar", "style"}
CLEAN = {"make_printable", "json.dumps"}
"""Calls whose answers hold nothing that a terminal obeys."""

ALLOWED = {
    # It may run where hpctl is not installed, and what it prints is the program's own or a path.
    "hpctl/jobs/elastic/in_process.py print": 2,
    # Its own words, for the parser of the contract.
    "hpctl/nodes/acceptance/speed.py print": 1,
    # JSON through a pipe to the agent that started it.
    "hpctl/nodes/evidence/gather.py sys.stdout.buffer.write": 1,
    # Numbers, and the places of its own options.
    "hpctl/sandbox/training/__main__.py print": 2,
    "hpctl/sandbox/training/model.py print": 2,
}


def bare(node: ast.AST) -> str:
    """What prints a text as it stands; empty for every other node."""
    if isinstance(node, ast.ImportFrom) and node.module == "click":
        return ", ".join(sorted({alias.name for alias in node.names} & PRINTS))
    if not isinstance(node, ast.Call):
        return ""
    name = ast.unparse(node.func)
    if all(isinstance(value, ast.Constant) for value in node.args):
        return "Console" if name.endswith("Console") else ""
    if name == "print":
        cleaned = all(
            isinstance(value, ast.Call) and ast.unparse(value.func) in CLEAN for value in node.args
        )
        return "" if cleaned else name
    module, _, attribute = name.rpartition(".")
    written = name in ("sys.stdout.write", "sys.stderr.write", "sys.stdout.buffer.write")
    return name if written or (module == "click" and attribute in PRINTS) else ""


def test_nothing_prints_past_the_one_way() -> None:
    found = Counter(
        f"{path} {name}"
        for path in python_files("hpctl")
        if path != OUTPUT
        for node in ast.walk(tree(path))
        if (name := bare(node))
    )
    assert found == ALLOWED

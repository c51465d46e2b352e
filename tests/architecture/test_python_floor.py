"""Python 3.10 is enough: what mypy and ruff, which check for 3.10, cannot see of it."""

import ast
import re
from pathlib import Path

from tests.architecture.source import python_files, text, tree

STAND_INS = {
    "asyncio.wait_for": "one whose TimeoutError is the builtin one, which 3.10's is not",
    "datetime.fromisoformat": "hpctl.toolkit.compat.parse_iso_time: 3.10's reads no `Z`",
}
MEANT = {
    # 19 characters that Slurm writes in one form, read 65536 times in a large cluster.
    Path("hpctl/toolkit/bounds.py"): {"datetime.fromisoformat"},
    Path("hpctl/toolkit/compat.py"): {"datetime.fromisoformat"},
    Path("hpctl/jobs/elastic/wire.py"): {"asyncio.wait_for"},
    Path("hpctl/wire/authentication.py"): {"asyncio.wait_for"},  # catches asyncio's own
}
OPTIONS = re.compile(r'"-[a-zA-Z]*P"|"\$HPCTL_PYTHON" -P')
"""Of the interpreter: -P came with 3.11."""


def test_what_3_10_does_otherwise_has_its_stand_in() -> None:
    found = [
        f"{path}:{node.lineno}: {name}: use {STAND_INS[name]}"
        for path in python_files("hpctl")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
        and (name := ast.unparse(node)) in STAND_INS
        and name not in MEANT.get(path, set())
    ]
    assert found == []


def test_no_option_of_a_later_interpreter() -> None:
    assert [str(path) for path in python_files("hpctl") if OPTIONS.search(text(path))] == []

"""No program of ours runs `python -m` bare: a folder `hpctl/` where it stands would be run."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctl.core.compat import SAFE_PATH

PACKAGE = Path(__file__).resolve().parents[2] / "hpctl"


def started(tree: ast.AST) -> list[ast.List | ast.Tuple]:
    """Each command line of this interpreter."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.List | ast.Tuple)
        and any(ast.unparse(word) == "sys.executable" for word in node.elts)
    ]


def bare(tree: ast.AST) -> list[int]:
    """The lines of command lines that take a module by `-m` alone."""
    return [
        line.lineno
        for line in started(tree)
        if (words := [ast.unparse(word) for word in line.elts])
        and "'-m'" in words
        and not {"'-P'", "'-I'"} & set(words)
    ]


def test_no_module_is_run_by_m_alone() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in PACKAGE.rglob("*.py")
        for line in bare(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
    assert sum(len(started(ast.parse(p.read_text()))) for p in PACKAGE.rglob("*.py")) > 8
    assert bare(ast.parse("run([sys.executable, '-S', '-m', name, word])")) == [1]


@pytest.mark.parametrize("path", [None, ""], ids=["none", "empty"])
def test_a_planted_package_is_not_run(tmp_path: Path, path: str | None) -> None:
    planted = tmp_path / "hpctl"
    planted.mkdir()
    (planted / "__init__.py").write_text("")
    (planted / "__main__.py").write_text("print('planted')")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = path

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return done.stdout

    assert run("-m", "hpctl") == "planted\n"
    assert run(*SAFE_PATH, "hpctl", "--version").startswith("hpctl")

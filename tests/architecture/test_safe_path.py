"""No program of ours runs `python -m` bare: a folder `hpctl/` where it stands would be run."""

import ast
import os
import sys

import pytest

from hpctl.toolkit.compat import SAFE_PATH
from tests.architecture.source import python_files, tree
from tests.process import run_text


def started():
    """Each command line of this interpreter in the package, and where it stands."""
    for path in python_files("hpctl"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.List | ast.Tuple):
                args = [ast.unparse(word) for word in node.elts]
                if "sys.executable" in args:
                    yield f"{path}:{node.lineno}", args


def test_no_module_is_run_by_m_alone() -> None:
    lines = list(started())
    assert len(lines) > 8
    assert [at for at, text in lines if "'-m'" in text and not {"'-P'", "'-I'"} & {*text}] == []


@pytest.mark.parametrize("path", [None, ""], ids=["none", "empty"])
def test_a_planted_package_is_not_run(tmp_path, path: str | None) -> None:
    planted = tmp_path / "hpctl"
    planted.mkdir()
    (planted / "__init__.py").write_text("")
    (planted / "__main__.py").write_text("print('planted')")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = path

    def run(*text: str) -> str:
        done = run_text([sys.executable, *text], cwd=tmp_path, env=environment)
        return done.stdout

    assert run("-m", "hpctl") == "planted\n"
    assert run(*SAFE_PATH, "hpctl", "--version").startswith("hpctl")

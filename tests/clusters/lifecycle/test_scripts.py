"""What the shipped scripts are made of."""

import ast
import shutil
import sys

import pytest

from hpctl.clusters.bundle import find_lifecycle_script_directory
from tests.architecture.source import ROOT, tracked
from tests.process import run_text

pytestmark = pytest.mark.integration

SCRIPTS = find_lifecycle_script_directory()
SHELL = [
    path
    for path in tracked()
    if path.parts[0] in ("lifecycle_scripts", "slurm_plugins") and path.suffix == ".sh"
]
PYTHON = sorted((SCRIPTS / "lifecycle").rglob("*.py"))


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="SCRIPTS NOT CHECKED: no shellcheck")
@pytest.mark.parametrize("script", SHELL, ids=str)
def test_shellcheck_has_nothing_to_say(script):
    done = run_text(["shellcheck", "--norc", str(ROOT / script)])
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: path.name)
def test_ubuntu_20_04_can_read_it_and_it_wants_nothing_but_the_standard_library(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            top = name.partition(".")[0]
            assert top == "lifecycle" or top in sys.stdlib_module_names, f"{path.name}: {name}"
            assert top not in LATER, f"{path.name}: {name} came after 3.8"
        if isinstance(node, ast.Attribute):
            assert node.attr not in LATER, f"{path.name}:{node.lineno}: .{node.attr} is newer"


LATER = {"tomllib", "zoneinfo", "graphlib", "removeprefix", "removesuffix", "is_relative_to"} | {
    "file_digest", "pairwise", "batched",  "with_stem", "randbytes", "hardlink_to",
}  # fmt: skip
"""Names of the standard library that 3.8 does not have, or not there."""

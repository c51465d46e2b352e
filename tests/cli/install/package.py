"""Debian packages of this tree, in two versions, from the wheels that are installed here."""

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

from tests.clusters.lifecycle.chroot import HERE, Machine
from tests.clusters.lifecycle.node import ROOT, wheelhouse
from tests.process import run_text


def build(room: Path, version: str) -> Path:
    """The package of a version, built as `make package` builds it."""
    wheelhouse(room / f"wheels-{version}", whole=True, version=version)
    args = ["--wheelhouse", str(room / f"wheels-{version}"), "--python", HERE]
    made = run_text(
        [sys.executable, "debian/build.py", *args, "--output", str(room / "dist")], cwd=ROOT
    )
    assert made.returncode == 0, made.stderr
    return Path(made.stdout.split()[-1])


def give(machine: Machine, package: Path) -> str:
    """Put a package on a machine; where it lies there."""
    shutil.copy(package, machine.path("/root"))
    return f"/root/{package.name}"


def load_build() -> ModuleType:
    """debian/build.py, which is a script and in no package."""
    place = importlib.util.spec_from_file_location("build", ROOT / "debian/build.py")
    assert place is not None
    assert place.loader is not None
    module = importlib.util.module_from_spec(place)
    place.loader.exec_module(module)
    return module

"""The wheel of hpctl-client, built in this checkout without a network."""

import subprocess
import sys
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

from tests.architecture.source import ROOT

PROJECT = ROOT / "hpctl/client"


def build_wheel(where: Path) -> Path:
    """Build the wheel into a directory, and return its path."""
    (built,) = WheelBuilder(str(PROJECT)).build(directory=str(where))
    return Path(built)


def install(wheel: Path, python: Path) -> None:
    """Install the wheel, and nothing beside it, for an interpreter."""
    options = ["--no-index", "--no-deps", "--disable-pip-version-check", "--quiet"]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, str(wheel)]
    subprocess.run(pip, check=True, timeout=120)


def make_environment(where: Path, interpreter: str = sys.executable) -> Path:
    """Make an empty virtual environment, and return its Python."""
    subprocess.run([interpreter, "-m", "venv", "--without-pip", str(where)], check=True, timeout=60)
    return where / "bin/python"

"""hpctl-client alone in the environment of a training program."""

import ast
import os
import shutil
import socket
import subprocess
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.architecture.test_distributions import list_wheel
from tests.client.wheel import PROJECT, build_wheel, install, make_environment

pytestmark = pytest.mark.integration
PROGRAM = """
import sys
import hpctl_client
from hpctl_client import progress, submit
progress.step(12, loss=0.5)
assert progress.dropped() == 0
assert not any(name.partition(".")[0] == "hpctl" for name in sys.modules)
print(submit("train.sbatch", checkpoint_dir="/shared/{job_id}"))
"""
HPCTL = '#!/bin/sh\necho "$@" >&2\necho 17\n'


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def run(python: Path, where: Path) -> tuple[str, str]:
    """Return what a program prints that uses the client, and what its job reports."""
    (where / "hpctl").write_text(HPCTL)
    (where / "hpctl").chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reader:
        reader.bind(str(where / "progress"))
        reader.settimeout(30)
        environment = {
            "HPCTL_COMMAND": str(where / "hpctl"),
            "HPCTL_PROGRESS": f"unix:{where}/progress",
            "PATH": os.defpath,
        }
        done = subprocess.run(
            [str(python), "-c", PROGRAM],
            check=True, capture_output=True, text=True, env=environment, cwd=where, timeout=60,
        )  # fmt: skip
        return done.stdout, reader.recv(2000).decode()


def test_a_fresh_environment_submits_and_reports_progress(wheel: Path, tmp_path: Path):
    python = make_environment(tmp_path / "venv")
    install(wheel, python)
    printed, reported = run(python, tmp_path)
    assert printed == "17\n"
    assert reported.startswith("step=12 loss=0.5")


def find_3_8() -> str | None:
    """Return a Python 3.8, the oldest that the client is for; None where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [str(path) for path in pyenv.glob("versions/3.8.*/bin/python3")]
    candidates += ["python3.8"]
    for candidate in candidates:
        found = shutil.which(candidate)
        # pyenv's shim is on PATH also where no 3.8 is chosen.
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return found
    return None


def test_python_3_8_takes_it(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as files:
        for name in files.namelist():
            if name.endswith(".py"):
                ast.parse(files.read(name), feature_version=(3, 8))
        files.extractall(tmp_path)
    interpreter = find_3_8()
    if interpreter is None:
        pytest.skip("no Python 3.8 here: its grammar was checked, its library was not")
    assert run(Path(interpreter), tmp_path)[0] == "17\n"


def test_the_wheel_holds_the_client_and_progress_and_needs_nothing(wheel: Path):
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
        metadata = files.read(f"hpctl_client-{version('hpctl')}.dist-info/METADATA").decode()
        entries = files.read(f"hpctl_client-{version('hpctl')}.dist-info/entry_points.txt").decode()
    held = {name for name in names if ".dist-info/" not in name}
    ours = {f"hpctl_client/{path.name}" for path in PROJECT.glob("*.py")}
    beside = {"progress.py", "py.typed", "toolkit/token_bucket.py"}
    assert held == ours | {f"hpctl_client/{name}" for name in beside}
    needed = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert needed == ["Requires-Dist: submitit<2,>=1.5; extra == 'submitit'"]
    assert "executor = hpctl_client.submitit_executor:HpctlExecutor" in entries


def test_no_file_is_of_two_distributions_and_both_have_the_code(wheel: Path):
    with zipfile.ZipFile(wheel) as files:
        ours = set(files.namelist())
    theirs = list_wheel(ROOT)
    assert not ours & theirs
    assert {f"hpctl/client/{path.name}" for path in PROJECT.glob("*.py")} <= theirs
    assert "hpctl/client/pyproject.toml" not in theirs

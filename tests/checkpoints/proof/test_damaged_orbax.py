"""Files of Orbax's steps, each cut, emptied and removed: what Orbax cannot load is not whole."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctl.checkpoints.search import CompleteCheckpoint, verify_checkpoint
from tests.checkpoints.proof.writers import missing
from tests.checkpoints.test_checkpoint_orbax import ITEMS, REAL

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]


class Loads:
    """A process with the library, which loads what it is told."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.checkpoints.proof.orbax_loads"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def errors(self, step: Path) -> dict[str, str]:
        """The library's errors, by the way to load."""
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()
        found: dict[str, str] = json.loads(self._process.stdout.readline())
        return {way: error for way, error in found.items() if error}

    def close(self) -> None:
        """End the process, which ends at the end of its input."""
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def loads() -> Iterator[Loads]:
    if missing("Orbax"):
        pytest.skip("NOT TESTED: orbax.checkpoint is not installed")
    started = Loads()
    yield started
    started.close()


@pytest.mark.parametrize("archive", [REAL, ITEMS], ids=lambda path: path.stem)
def test_what_orbax_cannot_load_is_not_called_whole(loads, tmp_path, archive):
    saved, damaged = tmp_path / "saved", tmp_path / "damaged"
    with zipfile.ZipFile(archive) as files:
        files.extractall(saved)
    for path in saved.rglob("*"):
        if path.is_dir():
            os.utime(path, (1000, 1000))  # older than the mark, as a save leaves it
    refused = 0
    for step in sorted(saved.iterdir()):
        assert loads.errors(step) == {}
        for file in sorted(path for path in step.rglob("*") if path.is_file()):
            raw = file.read_bytes()
            for kept in (None, b"", raw[: len(raw) // 2]):
                # A new copy for each: the library keeps what it has read of a file.
                shutil.rmtree(damaged, ignore_errors=True)
                shutil.copytree(step, copy := damaged / step.name)
                target = copy / file.relative_to(step)
                if kept is None:
                    target.unlink()
                else:
                    target.write_bytes(kept)
                errors = loads.errors(copy)
                refused += bool(errors)
                assert not errors or not isinstance(verify_checkpoint(copy), CompleteCheckpoint), (
                    target,
                    kept,
                    errors,
                )
    assert refused > 50, refused

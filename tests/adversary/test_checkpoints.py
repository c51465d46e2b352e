"""Checkpoints that others laid out for us: not taken, and never dear."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from hpctl.jobs.checkpoints import manifest
from hpctl.jobs.checkpoints.files import opened
from hpctl.jobs.checkpoints.last import last_complete
from hpctl.jobs.checkpoints.reasons import NotWhole
from hpctl.jobs.checkpoints.skim import Machine

NOBODY = 65534
SIZE = 20 * 1024 * 1024


def make(root: Path, step: int) -> Path:
    directory = root / f"step-{step}"
    directory.mkdir(parents=True)
    (directory / "data").write_bytes(b"x" * 100)
    file = manifest.describe(directory / "data", directory)
    manifest.write(directory, step=step, world_size=1, files=[file])
    return directory


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_newer_checkpoint_of_another_user_is_passed_over(tmp_path: Path) -> None:
    ours, theirs = make(tmp_path, 1), make(tmp_path, 2)
    os.chown(theirs, NOBODY, NOBODY)
    search = last_complete(tmp_path)
    assert search.found is not None
    assert search.found.path == ours
    (passed,) = search.passed_over
    assert f"user {NOBODY} owns it" in passed.why
    # Who owns the directory that we were told to look in is trusted with what is in it.
    os.chown(tmp_path, NOBODY, NOBODY)
    search = last_complete(tmp_path)
    assert search.found is not None
    assert search.found.path == theirs


def texts() -> bytes:
    """Different ones, each to be mentioned again."""
    return b"".join(b"\x8c\x07%07d\x94" % number for number in range(SIZE // 10))


@pytest.mark.parametrize(
    "pickled",
    [
        pytest.param(lambda: b"(" * SIZE, id="marks"),
        pytest.param(lambda: b"N" * SIZE, id="values"),
        pytest.param(lambda: b"N" + b")\x81\x94}\x94(" * (SIZE // 6), id="objects"),
        pytest.param(texts, id="texts"),
    ],
)
def test_a_pickle_that_would_fill_memory_is_given_up(tmp_path: Path, pickled: object) -> None:
    assert callable(pickled)
    (tmp_path / "x.pkl").write_bytes(b"\x80\x04" + pickled())
    with opened(tmp_path, "x.pkl") as file:
        tracemalloc.start()
        try:
            with pytest.raises(NotWhole, match="of a kind at once"):
                Machine(file, frozenset()).top()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 300 * 1024 * 1024

"""Checkpoints that others laid out for us: not taken, and never dear."""

import os
import socket
import time
import tracemalloc
from pathlib import Path

import pytest

from hpctl.checkpoints.files import IncompleteCheckpointError, open_file
from hpctl.checkpoints.formats import pickle_reader
from hpctl.checkpoints.formats.pickle_reader import PickleReader
from hpctl.checkpoints.search import (
    CompleteCheckpoint,
    find_newest_complete_checkpoint_in_tiers,
    list_checkpoints,
    verify_checkpoint,
)
from tests.checkpoints.checkpoint_files import generic

pytestmark = [pytest.mark.integration, pytest.mark.adversary]

NOBODY = 65534
SIZE = 12 << 20
MANY = 1 << 18


def make(root: Path, step: int) -> Path:
    return generic(root, f"step-{step}", step)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_newer_checkpoint_of_another_user_is_passed_over(tmp_path):
    ours, theirs = make(tmp_path, 1), make(tmp_path, 2)
    os.chown(theirs, NOBODY, NOBODY)
    search = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert search.found.path == ours
    (passed,) = search.passed_over
    assert f"user {NOBODY} owns it" in passed.why
    # Who owns the directory that we were told to look in is trusted with what is in it.
    os.chown(tmp_path, NOBODY, NOBODY)
    search = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert search.found.path == theirs


def texts() -> bytes:
    """Different ones, each to be mentioned again."""
    return b"".join(b"\x8c\x07%07d\x94" % number for number in range(MANY // 10))


@pytest.mark.parametrize(
    "pickled",
    [
        b"(" * MANY, b"N" * MANY, b"N" + b")\x81\x94}\x94(" * (MANY // 6), texts()
    ],
    ids=["marks", "values", "objects", "texts"],
)  # fmt: skip
def test_a_pickle_that_would_fill_memory_is_given_up(tmp_path, pickled, monkeypatch):
    """A fiftieth of what is allowed is enough to see that it is what bounds."""
    monkeypatch.setattr(pickle_reader, "MOST", pickle_reader.MOST // 50)
    (tmp_path / "x.pkl").write_bytes(b"\x80\x04" + pickled)
    with open_file(tmp_path, "x.pkl") as file:
        tracemalloc.start()
        try:
            with pytest.raises(IncompleteCheckpointError, match="of a kind at once"):
                PickleReader(file, frozenset()).top()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 10 * 1024 * 1024


@pytest.mark.parametrize("piece", [b"N0", b"X\0\0\0\x000"])
def test_a_pickle_that_would_take_hours_is_given_up_and_an_older_one_taken(
    tmp_path, monkeypatch, piece
):
    """It holds nothing, so that only time bounds it: the whole of it takes seconds."""
    monkeypatch.setattr(pickle_reader, "LOOK_S", 0.2)
    monkeypatch.setattr(pickle_reader, "CHUNK", 1 << 16)
    whole = make(tmp_path, 1)
    (tmp_path / "step-9").mkdir()
    (tmp_path / "step-9" / ".metadata").write_bytes(b"\x80\x04" + piece * (SIZE // len(piece)))
    (tmp_path / "step-9" / "__0_0.distcp").write_bytes(b"x")
    began = time.thread_time()
    search = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert time.thread_time() - began < 1.5
    assert search.found.path == whole
    (passed,) = search.passed_over
    assert passed.unreadable
    assert "takes hpctl more than 0.2 s to decode" in passed.why


NAMES = (
    "manifest.json", ".metadata", "metadata.json", "common.pt", "latest", "trainer_state.json",
    "model.safetensors", "model.safetensors.index.json", "mp_rank_00_model_states.pt", "model.pt",
    "meta.pt", "latest_checkpointed_iteration.txt", "pytorch_model.bin", "optimizer.pt",
)  # fmt: skip
"""Files by which one format or another is known."""


def fifo(path: Path) -> None:
    os.mkfifo(path)


def to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def endless_file(path: Path) -> None:
    path.symlink_to("/dev/zero")


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.getcwd()
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("hostile", [fifo, to_itself, endless_file, bound_socket])
def test_loops_fifos_and_devices_delay_nothing(tmp_path, hostile):
    """As each file that hpctl opens, as a checkpoint, and as a directory that leads to itself."""
    assert callable(hostile)
    whole = make(tmp_path, 1)
    for step, name in enumerate(NAMES, 2):
        directory = tmp_path / f"step-{step}"
        directory.mkdir()
        hostile(directory / name)
    for step in (101, 102):
        directory = make(tmp_path, step)
        (directory / "data").unlink()
        hostile(directory / "data")
    for name in ("iter_0000900", "step-901.pt", "step-902.ckpt", "latest", "latest_x.txt"):
        hostile(tmp_path / name)
    (tmp_path / "step-903").symlink_to(tmp_path)
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    began = time.monotonic()
    for deep in (False, True):
        assert find_newest_complete_checkpoint_in_tiers(tmp_path, deep=deep).found.path == whole
        good = [
            found
            for found in list_checkpoints(tmp_path, deep=deep)
            if isinstance(found, CompleteCheckpoint)
        ]
        assert [found.path for found in good] == [whole]
    assert not isinstance(verify_checkpoint(tmp_path / "step-901.pt"), CompleteCheckpoint)
    assert time.monotonic() - began < 60

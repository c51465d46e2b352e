"""Checkpoints of programs of their own: torch's older format, Accelerate, Flax.

They are written by their shape, so that they are tested without the libraries; `proof` has those.
"""

import os
import time

import pytest

from hpctl.checkpoints.search import (
    CompleteCheckpoint,
    find_newest_complete_checkpoint_in_tiers,
    verify_checkpoint,
)
from tests.checkpoints.checkpoint_files import (
    accelerate_files,
    flax_map,
    legacy_stream,
    torch_save,
    write,
)


def test_the_older_format_is_proved_by_its_size(tmp_path):
    path = tmp_path / "legacy.pt"
    whole = legacy_stream(70_000)
    path.write_bytes(whole)
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert (found.step, found.format, found.unproven) == (70_000, "torch-save", "")
    assert not find_newest_complete_checkpoint_in_tiers(tmp_path, deep=True).found.deep, (
        "the format has no digests"
    )
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        assert find_newest_complete_checkpoint_in_tiers(tmp_path).found is None, cut
    path.write_bytes(whole + b"x")
    assert "damaged" in find_newest_complete_checkpoint_in_tiers(tmp_path).passed_over[0].why
    path.write_bytes(whole.replace(b"LongStorage", b"NewsStorage"))
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "unreadable", (
        "the size of its items is not known"
    )
    path.write_bytes(whole.replace(b"K\1Nt", b"K\2Nt"))
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).found is None


@pytest.mark.parametrize("left", [0, 3, 100])
def test_the_only_copy_is_not_called_nothing_once_it_is_cut(tmp_path, left):
    (tmp_path / "ckpt.pt").write_bytes(torch_save({"iter_num": 5})[:left])
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "incomplete"
    (tmp_path / "ckpt.pt").write_bytes(bytes(1000))
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "incomplete"


@pytest.mark.parametrize(
    ("saved", "step"),
    [
        ({"iter_num": 4}, 4),
        ({"epoch": 4}, 4),
        ({"epoch": 1, "trainer": {"global_step": 9}}, 9),
        ({"train_state": {"step": 9}, "step": 8}, 8),
        ({"step": True}, None),
        ({"optimizer": {"state": {"step": 5}}}, None),
    ],
)
def test_the_step_of_a_program(tmp_path, saved, step):
    (tmp_path / "ckpt.pt").write_bytes(torch_save(saved))
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert (found.step if found else None) == step


def test_of_one_epoch_the_best_is_not_preferred(tmp_path):
    for name in ("checkpoint.pth.tar", "model_best.pth.tar"):
        (tmp_path / name).write_bytes(torch_save({"epoch": 4}))
    search = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert search.found.path.name == "checkpoint.pth.tar"
    assert "checkpoint.pth.tar is saved over in place" in search.caution


def test_accelerate_is_compared_with_the_save_before(tmp_path):
    path = write(tmp_path / "step_40", accelerate_files())
    found = verify_checkpoint(path)
    assert (found.step, found.format) == (40, "accelerate")
    assert "no other save" in found.unproven
    custom = {"custom_checkpoint_0.pkl": torch_save({})}
    write(tmp_path / "step_30", {**accelerate_files(), **custom})
    search = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert search.found.path.name == "step_30"
    assert search.passed_over[0].why == (
        "custom_checkpoint_0.pkl is missing, but the checkpoint step_30 in the same "
        "directory has this file"
    )
    write(path, custom)
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert (found.path, found.unproven) == (path, "")


@pytest.mark.parametrize("name", sorted(accelerate_files()))
def test_accelerate_without_a_file_or_with_one_cut_is_not_whole(tmp_path, name):
    path = write(tmp_path / "step_40", accelerate_files())
    write(tmp_path / "step_30", accelerate_files())
    assert verify_checkpoint(path).unproven == ""
    raw = (path / name).read_bytes()
    (path / name).write_bytes(raw[:-1])
    assert not isinstance(verify_checkpoint(path), CompleteCheckpoint)
    (path / name).unlink()
    assert not isinstance(verify_checkpoint(path), CompleteCheckpoint)


def test_accelerate_over_an_older_save_is_not_whole(tmp_path):
    path = write(tmp_path / "step_40", accelerate_files())
    later = time.time() + 30
    os.utime(path / "optimizer.bin", (later, later))
    assert "optimizer.bin is newer than random_states_0.pkl" in verify_checkpoint(path).why


def test_the_weights_that_save_model_leaves_are_named(tmp_path):
    model = accelerate_files()["model.safetensors"]
    write(tmp_path / "final", {"model.safetensors": model, "training_args.bin": torch_save({})})
    search = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert (search.verdict, search.unrecognized_files_note) == ("none", "")
    assert "only model weights" in search.passed_over[0].why


def test_flax_ends_where_its_last_value_does(tmp_path):
    path = tmp_path / "checkpoint_9"
    path.write_bytes(flax_map(3))
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert (found.step, found.format) == (9, "flax")
    (tmp_path / "latest.msgpack").write_bytes(flax_map(3))
    assert verify_checkpoint(tmp_path / "latest.msgpack").step == 3
    (tmp_path / "latest.msgpack").unlink()
    for damaged in (
        *(flax_map(3)[:cut] for cut in range(1, len(flax_map(3)))),
        flax_map(3) + b"x",
        bytes(50),
        b"",
    ):
        path.write_bytes(damaged)
        assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "incomplete", damaged


def test_a_nested_or_endless_flax_file_is_bounded(tmp_path):
    for hostile in (
        b"\x81\xa1a" * 100_000,
        b"\xdf\xff\xff\xff\xff" + b"\xa1a\1" * 10,
        b"\x81\xdb" + b"\xff" * 9,
    ):
        (tmp_path / "checkpoint_1").write_bytes(hostile)
        assert find_newest_complete_checkpoint_in_tiers(tmp_path).found is None

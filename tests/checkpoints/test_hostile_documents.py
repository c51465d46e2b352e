"""Documents and names that attack the memory, the answer or the terminal of a search."""

import json
import os
import time
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpctl.checkpoints import files, hpctl_checkpoint
from hpctl.checkpoints.files import (
    MOST_JSON_PARTS,
    FileTooLargeError,
    IncompleteCheckpointError,
    parse_json_object,
)
from hpctl.checkpoints.formats import hf_trainer, manifest, orbax
from hpctl.checkpoints.patterns import parse_checkpoint_file_patterns
from hpctl.checkpoints.search import (
    CompleteCheckpoint,
    find_newest_complete_checkpoint_in_tiers,
    verify_checkpoint,
)
from hpctl.cli.main import cli
from tests.adversary.hostile_files import NAMES, RAW_NAMES, deep_directory, remove
from tests.checkpoints.checkpoint_files import generic, hf_files, write

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("part", [b"[],", b"{},", b"0,"])
def test_json_of_more_values_than_a_model_has_is_refused(part: bytes) -> None:
    with pytest.raises(FileTooLargeError, match="values: too many"):
        parse_json_object(b'{"a":[' + part * MOST_JSON_PARTS + b"0]}", "x.json")


def test_json_of_zeros_is_none() -> None:
    with pytest.raises(IncompleteCheckpointError, match="is not valid JSON"):
        parse_json_object(b'{"a":1}'.decode().encode("utf-16-le"), "x.json")


def test_a_rare_character_does_not_make_a_state_four_times_as_large() -> None:
    raw = "\U0001f600".encode() + b"x" * (16 << 20)
    tracemalloc.start()
    try:
        hf_trainer.check_utf8(raw)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("cut", [b"\xff", b"\xe2\x80"])
def test_bytes_that_are_no_text_are_seen_at_the_end_of_a_state(cut: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        hf_trainer.check_utf8(b"x" * (2 << 20) + cut)


@pytest.mark.parametrize("name", ["\ud800", "x\ud800.safetensors"])
def test_a_name_that_no_file_can_have_costs_one_checkpoint(tmp_path: Path, name: str) -> None:
    whole = generic(tmp_path, "step-1", 1)
    path = write(tmp_path / "checkpoint-40", hf_files())
    index = {"weight_map": {"a": name}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    row = verify_checkpoint(path)
    assert not isinstance(row, CompleteCheckpoint)
    assert "is named in the checkpoint, but is not a valid name of a file" in row.why
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert found is not None
    assert found.path == whole


@pytest.mark.parametrize("name", ["\ud800", "a\0b"])
def test_no_look_takes_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    for look in (
        files.read_file_size,
        files.has_checkpoint_entry,
        files.list_directory_names,
        files.read_file_mtime_ns,
    ):
        with pytest.raises(
            IncompleteCheckpointError,
            match="is named in the checkpoint, but is not a valid name of a file",
        ):
            look(tmp_path, name)


def test_a_file_of_one_byte_is_no_declared_checkpoint(tmp_path: Path) -> None:
    old = time.time() - 10_000
    for step in (30, 40):
        (tmp_path / f"save_{step}.bin").write_bytes(b"\x80")
        os.utime(tmp_path / f"save_{step}.bin", (old, old))
    find_newest_complete_checkpoint_in_tiers(
        tmp_path, declared=parse_checkpoint_file_patterns(["save_{step}.bin"])
    )


def test_directories_deeper_than_calls_may_be_nested_are_walked(tmp_path: Path) -> None:
    deep_directory(tmp_path / "deep")
    try:
        orbax.check_unchanged_since_commit(tmp_path / "deep", time.time_ns() + 10**12)
        with pytest.raises(
            IncompleteCheckpointError, match="a file was changed after the save finished"
        ):
            orbax.check_unchanged_since_commit(tmp_path / "deep", 0)
    finally:
        remove(tmp_path / "deep")  # pytest's own removal calls itself for each directory


def test_a_link_below_a_checkpoint_is_not_walked_through(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "loop").symlink_to(place)
    orbax.check_unchanged_since_commit(place, time.time_ns() + 10**12)


def test_entries_are_counted_in_each_directory_that_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "place", {str(number): b"" for number in range(11)})
    assert files.list_directory_names(tmp_path, "none") is None
    monkeypatch.setattr(files, "MAX_ENTRIES", 10)
    monkeypatch.setattr(orbax, "MAX_ENTRIES", 10)
    with pytest.raises(IncompleteCheckpointError, match="more than 10 entries"):
        files.list_directory_names(tmp_path, "place")
    with pytest.raises(FileTooLargeError, match="more than 10 entries"):
        orbax.check_unchanged_since_commit(tmp_path / "place", time.time_ns() + 10**12)


def test_a_long_version_of_a_manifest_is_cut() -> None:
    raw = json.dumps({"format": hpctl_checkpoint.FORMAT, "version": "9" * 100_000}).encode()
    said = manifest.decode_manifest(raw)
    assert isinstance(said, str)
    assert len(said) < 200


def test_no_name_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    generic(tmp_path, "step-1", 1)
    for raw in (*map(os.fsencode, NAMES), *RAW_NAMES):
        place = os.path.join(os.fsencode(tmp_path), raw)
        os.mkdir(place)
        Path(os.fsdecode(place), "trainer_state.json").write_text("{")
        Path(os.fsdecode(place), os.fsdecode(raw)).touch()
    for command in ("ls", "last"):
        done = CliRunner().invoke(cli, ["checkpoint", command, str(tmp_path)])
        assert "step-1" in done.output
        shown = done.output.replace("\n", "").replace("\t", "")
        odd = {each for each in shown if not each.isprintable()}
        assert odd == set(), command
